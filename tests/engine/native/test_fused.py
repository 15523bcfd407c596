"""Norms, projections and counts in one call, against sums in float64 and counts one by one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cockpit.engine.native import block_statistics, outer_statistics, status
from cockpit.engine.numbers.binning import Counter, Grid, edges

pytestmark = pytest.mark.skipif(not status().startswith("compiled"), reason=status())

GRIDS = [None, Grid(100, -2.0, 2.0), Grid(7, 0.1, 0.7), Grid(40, -0.01, 0.01), Grid(3000, -1.0, 1.0)]
DTYPES = [torch.float32, torch.float64]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def drawn(seed: int, *shape: int, dtype: torch.dtype, zeros: float = 0.0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=g, dtype=torch.float64)
    return torch.where(torch.rand(shape, generator=g) < zeros, 0.0, values).to(dtype)


def counted(written: Tensor, grid: Grid) -> Tensor:
    counter = Counter(edges(grid.bins, grid.low, grid.high, written.device), written.dtype)
    counter.add(written.flatten(1), None)
    return counter.result()


def check(
    written: Tensor,
    directions: list[Tensor],
    grid: Grid | None,
    found: tuple[Tensor, Tensor, Tensor | None] | None,
) -> None:
    assert found is not None
    norm2, dots, counts = found
    rtol, wide = TOLERANCE[written.dtype], written.double().flatten(1)
    torch.testing.assert_close(norm2, wide.square().sum(1), rtol=rtol, atol=0)
    assert dots.shape == (len(written), len(directions))
    for k, v in enumerate(directions):
        size = float(wide.norm(dim=1).max() * v.double().norm())
        torch.testing.assert_close(dots[:, k], wide @ v.double().flatten(), rtol=0, atol=rtol * size)
    assert (counts is None) == (grid is None)
    if grid is not None:
        assert counts is not None
        assert torch.equal(counts, counted(written, grid))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 9),
    m=st.sampled_from([1, 2, 15, 16, 17, 100, 1030, 3000, 9000]),
    k=st.integers(0, 3),
    grid=st.sampled_from(GRIDS),
    factor=st.sampled_from([1.0, 128.0, 0.3]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_gradients_that_are_written_out(
    n: int, m: int, k: int, grid: Grid | None, factor: float, dtype: torch.dtype, seed: int
) -> None:
    x = drawn(seed, n, m, dtype=dtype)
    directions = [drawn(seed + 1 + d, m, dtype=dtype) for d in range(k)]
    check(x * factor, directions, grid, block_statistics(x, directions, grid, factor))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 9),
    inputs=st.sampled_from([1, 3, 16, 50, 300, 1100]),
    outputs=st.sampled_from([1, 2, 7, 20]),
    k=st.integers(0, 3),
    zeros=st.sampled_from([0.0, 0.8, 1.0]),
    size=st.sampled_from([1.0, 1e-3, 30.0]),
    grid=st.sampled_from(GRIDS),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_gradients_of_factors(
    n: int,
    inputs: int,
    outputs: int,
    k: int,
    zeros: float,
    size: float,
    grid: Grid | None,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """Few inputs are compared with edges, many are ordered; neither may differ from counting one by one."""
    a, b = drawn(seed, n, inputs, dtype=dtype, zeros=zeros), size * drawn(seed + 50, n, outputs, dtype=dtype)
    directions = [drawn(seed + 1 + d, outputs * inputs, dtype=dtype) for d in range(k)]
    written = b[:, :, None] * a[:, None, :]
    check(written, directions, grid, outer_statistics(a, b, directions, grid))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite(bad: float) -> None:
    a, b = drawn(0, 3, 20, dtype=torch.float32), drawn(1, 3, 4, dtype=torch.float32)
    a[1, 5] = bad
    grid = Grid(10, -1.0, 1.0)
    found = outer_statistics(a, b, [], grid)
    assert found is not None
    norm2, _, counts = found
    assert norm2.isfinite().tolist() == [True, False, True]
    assert torch.equal(counts, counted(b[:, :, None] * a[:, None, :], grid))  # type: ignore[arg-type]


def test_what_the_kernels_do_not_know() -> None:
    x = torch.ones(2, 3)
    assert block_statistics(x.half(), [], None) is None
    assert block_statistics(x, [torch.ones(3, dtype=torch.float64)], None) is None
    assert block_statistics(torch.ones(3, 2).T, [], None) is None, "rows that do not lie side by side"
    assert block_statistics(x, [], Grid(5, -1.0, 1.0, 3)) is None, "columns"
