"""One process: no group, a group of one, and what joins do there (several: ``tests/distributed``)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from cockpit.engine.answers.ranks import Ranks, ranks_of
from cockpit.engine.gradients.histograms import Histogram1d
from cockpit.engine.statistics import AbsMax, Norm2, Quantiles, Total
from layer_check import normal

CPU = torch.device("cpu")


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("asked", [None, False, True])
def test_without_a_group_a_process_is_alone(asked: bool | None) -> None:
    assert not dist.is_initialized()
    assert ranks_of(asked, CPU) is None


@pytest.mark.usefixtures("group")
def test_a_group_of_one_is_alone() -> None:
    assert ranks_of(None, CPU) is None
    assert ranks_of(False, CPU) is None
    assert ranks_of(dist.group.WORLD, CPU) is None


@pytest.mark.usefixtures("group")
def test_joins_over_one_rank_change_nothing() -> None:
    ranks = Ranks(None, CPU)
    assert (ranks.size, ranks.rank) == (1, 0)
    x = normal(3, 2)
    assert torch.equal(ranks.sum(x), x)
    assert ranks.sum(x) is not x
    assert torch.equal(ranks.cat(x), x)
    assert ranks.cat(x[:0]).shape == (0, 2)
    assert ranks.union({"b", "c"}, ["a", "b", "c"]) == {"b", "c"}
    cells = {
        Norm2(): {"a": normal(4), "b": normal(4, seed=1)},
        Total(): {"a": normal(2), "b": normal(2, 3)},
        AbsMax(): {"a": normal(), "b": normal(seed=1)},
        Quantiles(0.1): {"a": normal(2), "b": normal(2, seed=1)},
        Histogram1d(2, -1, 1): {"a": torch.arange(6), "b": torch.arange(6) * 2**40},
    }
    before = {s: {n: v.clone() for n, v in row.items()} for s, row in cells.items()}
    ranks.join(cells)
    for statistic, row in before.items():
        for name, value in row.items():
            assert torch.equal(cells[statistic][name], value)
            assert cells[statistic][name].dtype == value.dtype


@pytest.mark.usefixtures("group")
def test_what_a_collective_was_given_is_held_until_nobody_else_uses_it() -> None:
    ranks = Ranks(None, CPU)
    result = ranks.sum(torch.ones(2))
    use = result.view(1, 2)  # as a thread of the process group uses it
    seen = weakref.ref(result)
    del result
    ranks.all(True)
    assert seen() is not None
    del use
    ranks.close()
    assert seen() is None


@pytest.mark.usefixtures("group")
def test_the_end_does_not_wait_for_results_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit.engine.answers.ranks.LINGERING", 0.01)
    ranks = Ranks(None, CPU)
    kept = ranks.sum(torch.ones(2)).view(1, 2)
    ranks.close()
    assert kept.tolist() == [[1.0, 1.0]]
