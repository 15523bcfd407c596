"""Diagonals of a micro-batch: the choice between exact and estimated, and nothing computed twice."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine.answers.observed import Observed
from cockpit.engine.curvature import diagonals, square_sums
from cockpit.engine.engine import Engine
from cockpit.engine.needs import Diagonal

GGN, HESSIAN = Diagonal("diag_ggn_auto"), Diagonal("diag_h_auto")


def step(engine: Engine, x: Tensor, *needs: Diagonal) -> Observed:
    engine.begin(frozenset(needs))
    engine.model.zero_grad()
    losses = F.cross_entropy(engine.model(x), torch.arange(len(x)) % 5, reduction="none")
    engine.enter(losses)
    losses.mean().backward()
    engine.leave()
    engine.before_update()
    observed = engine.finish(moved=False)
    assert observed is not None
    engine.begin(frozenset())  # nothing is asked of the next step: attention is torch's own again
    return observed


def wide_net(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Five classes behind a layer that is used at many places: too much work for all columns."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(2, 40, 3), activation(), nn.Conv1d(40, 40, 3), nn.Flatten(), nn.Linear(160, 5)
    )


def test_few_products_are_exact() -> None:
    torch.manual_seed(0)
    engine = Engine(nn.Linear(6, 5))
    observed = step(engine, torch.randn(8, 6), GGN, HESSIAN, Diagonal("diag_ggn_exact"))
    assert [observed.methods[n] for n in (GGN, HESSIAN)] == ["ggn", "hessian=ggn"]
    exact = observed.table.by_parameter(Diagonal("diag_ggn_exact"))
    torch.testing.assert_close(observed.table.by_parameter(HESSIAN), exact)


@pytest.mark.parametrize(("frozen", "method"), [(0, "ggn"), (2, "ggn_mc")])
def test_frozen_layers_count_where_columns_pass_them(frozen: int, method: str) -> None:
    """One before the first trained layer costs nothing, one after it as much as any."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 5))
    net[frozen].requires_grad_(False)
    assert step(Engine(net), torch.randn(8, 6), GGN).methods[GGN] == method


def test_many_products_are_sampled_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    columns: list[int] = []
    original = square_sums.LayerSums.__call__

    def counted(self: Any, graph: Any, vectors: tuple[Tensor, ...]) -> dict[str, Tensor]:
        columns.append(len(vectors[0]))
        return original(self, graph, vectors)

    monkeypatch.setattr(square_sums.LayerSums, "__call__", counted)
    engine = Engine(wide_net())
    observed = step(engine, torch.randn(8, 2, 8), GGN, HESSIAN)
    assert [observed.methods[n] for n in (GGN, HESSIAN)] == ["ggn_mc", "hessian=ggn_mc"]
    assert columns == [1]
    found = [observed.table.by_parameter(n) for n in (GGN, HESSIAN)]
    torch.testing.assert_close(*found)


def test_the_sample_is_right_on_average() -> None:
    engine, x = Engine(wide_net()), torch.randn(8, 2, 8, generator=torch.Generator().manual_seed(0))
    exact = step(engine, x, Diagonal("diag_ggn_exact")).table.by_parameter(Diagonal("diag_ggn_exact"))
    traces = []
    for _ in range(60):
        found = step(engine, x, GGN).table.by_parameter(GGN)
        traces.append(sum(float(d.sum()) for d in found.values()))
    spread = torch.tensor(traces)
    truth = sum(float(d.sum()) for d in exact.values())
    assert abs(float(spread.mean()) - truth) < 4 * float(spread.std()) / 60**0.5


def test_an_exact_diagonal_that_exists_is_used() -> None:
    engine = Engine(wide_net())
    needs = Diagonal("diag_ggn_exact"), HESSIAN
    observed = step(engine, torch.randn(8, 2, 8), *needs)
    assert observed.methods[HESSIAN] == "hessian=ggn"


def test_a_hessian_that_is_not_the_ggn_is_estimated_with_its_error() -> None:
    engine = Engine(wide_net(nn.Tanh))
    observed = step(engine, torch.randn(8, 2, 8), HESSIAN)
    assert observed.methods[HESSIAN] == "hutchinson"
    assert observed.variances[HESSIAN] > 0


def test_in_steady_state_no_hessian_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    original = diagonals.HessianProduct
    monkeypatch.setattr(diagonals, "HessianProduct", lambda *a: built.append(1) or original(*a))
    engine, x = Engine(wide_net()), torch.randn(8, 2, 8)
    counts = []
    for _ in range(8):
        step(engine, x, HESSIAN)
        counts.append(len(built))
    assert counts == [1, 2, 3, 3, 4, 4, 4, 4]


@pytest.mark.parametrize(("activation", "kept"), [(nn.ReLU, 0), (nn.Tanh, 1)])
def test_a_hessian_is_kept_for_others_only_where_the_diagonal_is_made_of_its_products(
    activation: type[nn.Module], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    living: weakref.WeakSet[Any] = weakref.WeakSet()
    counts = []
    original, measured = diagonals.HessianProduct, diagonals.Diagonals.measured

    def built(*args: Any) -> Any:
        living.add(product := original(*args))
        return product

    def counted(self: Any, *args: Any) -> Any:
        result = measured(self, *args)
        counts.append(len(living))
        return result

    monkeypatch.setattr(diagonals, "HessianProduct", built)
    monkeypatch.setattr(diagonals.Diagonals, "measured", counted)
    engine, x = Engine(wide_net(activation)), torch.randn(8, 2, 8)
    for _ in range(3):
        step(engine, x, HESSIAN)
    assert counts == [0, kept, kept]


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_large_nets_have_no_hessian_product(
    activation: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagonals, "LARGE", 100)
    monkeypatch.delattr(diagonals, "HessianProduct")
    monkeypatch.delattr(diagonals, "hessian_diagonal")
    columns: list[int] = []
    original = square_sums.LayerSums.__call__

    def counted(self: Any, graph: Any, vectors: tuple[Tensor, ...]) -> dict[str, Tensor]:
        columns.append(len(vectors[0]))
        return original(self, graph, vectors)

    monkeypatch.setattr(square_sums.LayerSums, "__call__", counted)
    engine = Engine(wide_net(activation))
    observed = step(engine, torch.randn(8, 2, 8), GGN, HESSIAN)
    assert [observed.methods[n] for n in (GGN, HESSIAN)] == ["ggn_mc", "ggn_mc"]
    assert columns == [1]


def test_the_ggn_of_a_large_net_is_never_taken_for_its_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagonals, "LARGE", 1)
    observed = step(Engine(nn.Linear(6, 5)), torch.randn(8, 6), GGN, HESSIAN)
    assert [observed.methods[n] for n in (GGN, HESSIAN)] == ["ggn", "ggn_mc"]


@pytest.mark.parametrize("need", [GGN, HESSIAN, Diagonal("diag_ggn_exact"), Diagonal("diag_ggn_mc", 40)])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_all_are_sums_over_the_examples(
    need: Diagonal, activation: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch twice over has twice the sums, and variances likewise."""
    monkeypatch.setattr(diagonals, "EXACT", 1e9)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), activation(), nn.Linear(3, 5)).double()
    x = torch.randn(10, 4, dtype=torch.float64)
    engine = Engine(net)
    once, twice = (step(engine, batch, need) for batch in (x, torch.cat([x, x])))
    found, expected = (
        float(torch.stack([d.sum() for d in o.table.by_parameter(need).values()]).sum())
        for o in (twice, once)
    )
    estimated = need.curvature == "diag_ggn_mc"
    assert found == pytest.approx(2 * expected, rel=0.2 if estimated else 1e-9)
    if estimated:
        assert twice.variances[need] == pytest.approx(2 * once.variances[need], rel=1)
