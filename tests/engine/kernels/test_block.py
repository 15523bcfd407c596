"""One pass over a block gives the sums that float64 gives, and `Counter`'s counts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.engine import kernels
from cockpit.engine.gradients import reduction
from cockpit.engine.gradients.histograms import Histogram1d
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense
from cockpit.engine.kernels import block as looking
from cockpit.engine.kernels import trial
from cockpit.engine.numbers.binning import Counter, Grid, edges
from cockpit.engine.statistics import Norm2, Statistic


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("k", [0, 1, 2, 3])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (6, 9001)])
def test_sums(n: int, m: int, k: int, device: torch.device) -> None:
    block, directions = normal(n, m), [normal(m, seed=1 + j) for j in range(k)]
    norm2, dots, counts = kernels.block_statistics(block.to(device), [v.to(device) for v in directions])
    assert counts is None
    assert dots.shape == (n, k)
    torch.testing.assert_close(norm2.cpu(), block.double().square().sum(1), rtol=1e-6, atol=0)
    for j, v in enumerate(directions):
        products = block.double() * v.double()
        assert ((dots[:, j].cpu() - products.sum(1)).abs() <= 1e-6 * products.abs().sum(1)).all()


def test_counts_come_along(device: torch.device) -> None:
    block = normal(5, 700)
    block[2, 3], block[0, 0] = float("nan"), float("inf")
    block = block.to(device)
    grid = Grid(100, -2.0, 2.0)
    norm2, _, counts = kernels.block_statistics(block, [normal(700).to(device)], grid)
    assert counts is not None
    assert torch.equal(counts, kernels.count(block, grid))
    assert norm2.isfinite().tolist() == [False, True, False, True, True]


def test_counts_are_added_to_others(device: torch.device) -> None:
    block, grid = normal(3, 200).to(device), Grid(40, -1.0, 1.0)
    out = torch.ones(44, dtype=torch.int64, device=device)
    _, _, counts = kernels.block_statistics(block, (), grid, out)
    assert counts is out
    assert torch.equal(out - 1, kernels.count(block, grid))


def test_strides(device: torch.device) -> None:
    base = normal(9, 500).to(device)
    for block in (base[::2, 7:], base.t()[:40]):
        norm2, _, _ = kernels.block_statistics(block)
        torch.testing.assert_close(norm2, block.double().square().sum(1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_empty_blocks(shape: tuple[int, int], device: torch.device) -> None:
    block = torch.empty(shape, device=device)
    norm2, dots, counts = kernels.block_statistics(
        block, [torch.empty(shape[1], device=device)], Grid(4, -1.0, 1.0)
    )
    assert norm2.tolist() == [0.0] * shape[0]
    assert dots.shape == (shape[0], 1)
    assert counts is not None
    assert counts.sum() == 0


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 3"):
        kernels.block_statistics(torch.zeros(2, 2), [torch.zeros(2)] * 4)
    with pytest.raises(ValueError, match="float32"):
        kernels.block_statistics(torch.zeros(2, 2, dtype=torch.float64))


WIDE = Grid(100, -2.0, 2.0)
SHAPES = [(1, 4096), (3, 1024), (7, 512), (8, 520), (9, 513), (17, 31)]
OTHERS = [Grid(20, 0.0, 2.0), Grid(20, -2.0, 0.0), Grid(3, 0.0, 0.3), Grid(101, -2.0, 2.0)]


@pytest.mark.parametrize(
    ("grid", "n", "m"), [(WIDE, *shape) for shape in SHAPES] + [(grid, 3, 1030) for grid in OTHERS], ids=str
)
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_counts_of_any_block(grid: Grid, n: int, m: int, scale: float, device: torch.device) -> None:
    """What is not finite is found again."""
    block = normal(n, m) * scale
    block[:, 0], block[n // 2, m // 2] = -0.0, -1e-42
    for odd in (scale, float("nan"), float("-inf")):
        block[n - 1, m // 3] = odd
        expected = Counter(edges(grid.bins, grid.low, grid.high, block.device), block.dtype)
        expected.add(block)
        out = torch.full((grid.bins + 4,), 2**40, dtype=torch.int64, device=device)
        kernels.block_statistics(block.to(device), (), grid, out=out)
        assert torch.equal(out.cpu() - 2**40, expected.result())


@pytest.mark.parametrize("bins", [10, 11, 1000])
def test_many_values_in_one_bin(bins: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "programs", lambda *_: 1)
    values, grid = torch.full((1, 20 * 4096 + 3), 0.512, device=device), Grid(bins, 0.0, 1.0)
    counts = kernels.count(values, grid)
    assert counts[int(0.512 * bins)] == counts.sum() == values.numel()


def test_a_kernel_that_does_not_run_costs_nothing_but_time(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        calls.append(args)
        raise RuntimeError("no such instruction")

    calls: list[object] = []
    monkeypatch.setattr(kernels, "block_statistics", refuse)
    monkeypatch.setattr(trial, "refused", {})
    histogram, block = Histogram1d(20, -1.0, 1.0), normal(4, 30).to(device)
    g = ExampleGradients("p", torch.zeros(30, device=device), (Dense(block),))
    asked: list[Statistic] = [Norm2(), histogram]
    for _ in range(2):
        found = dict(reduction.reductions(g, asked, {}))
        torch.testing.assert_close(found[Norm2()].double(), block.double().square().sum(1), rtol=1e-5, atol=0)
        assert torch.equal(found[histogram], histogram.reduce(g))
    assert trial.refused == {"block": "RuntimeError: no such instruction"}
    assert len(calls) == 1, "it is not tried again"
