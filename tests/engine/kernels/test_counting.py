"""Kernels count exactly what `Counter` counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cockpit.engine import kernels
from cockpit.engine.kernels import placed
from cockpit.engine.numbers import binning
from cockpit.engine.numbers.binning import Grid

GRIDS = [
    Grid(100, -2.0, 2.0),
    Grid(7, -1.0, 2.0),
    Grid(101, -2.0, 2.0),
    Grid(10, -0.3, 0.3),
    Grid(3, 0.0, 300.0),
    Grid(4, 1.0, 1.0 + 2**-23),
    Grid(1, -1.0, 1.0),
    Grid(123, -1.0, 1.0),
    Grid(1024, -2.0, 2.0),
]
INF, NAN = float("inf"), float("nan")
pytestmark = pytest.mark.filterwarnings(  # NumPy's, in the interpreter
    "ignore:(overflow|invalid value) encountered:RuntimeWarning"
)


def reference(values: Tensor, grid: Grid, place: Tensor | None = None) -> Tensor:
    values = values.cpu() if values.dtype in (torch.float32, torch.float64) else values.cpu().float()
    edge = binning.edges(grid.bins, grid.low, grid.high, values.device)
    if place is None:
        counter = binning.Counter(edge, values.dtype)
        counter.add(values)
        return counter.result()
    index = binning.bin_index(values.double(), edge)
    column = place.cpu().long().expand(index.shape)
    index = torch.where(column < 0, grid.bins + 2, index)
    cell = torch.where(
        index < grid.bins, index * grid.columns + column, index - grid.bins + grid.bins * grid.columns
    )
    return torch.bincount(cell.flatten(), minlength=grid.bins * grid.columns + binning.EXTRA)


def hard(grid: Grid, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return every edge with the representable numbers around it, and what is not a number."""
    edge = torch.from_numpy(np.linspace(grid.low, grid.high, grid.bins + 1)).to(dtype)
    up, down = torch.tensor(INF, dtype=dtype), torch.tensor(-INF, dtype=dtype)
    tiny = torch.finfo(dtype).smallest_normal
    odd = torch.tensor([INF, -INF, NAN, -0.0, tiny / 4, -tiny / 4, tiny, -tiny, 3e38, -3e38], dtype=dtype)
    return torch.cat([edge, torch.nextafter(edge, up), torch.nextafter(edge, down), odd])[None]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_around_the_edges(grid: Grid, dtype: torch.dtype, device: torch.device) -> None:
    values = hard(grid, dtype)
    assert torch.equal(kernels.count(values.to(device), grid).cpu(), reference(values, grid))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_types(dtype: torch.dtype, device: torch.device) -> None:
    values = normal(13, 77).to(dtype)
    assert torch.equal(kernels.count(values.to(device), GRIDS[0]).cpu(), reference(values, GRIDS[0]))


@pytest.mark.parametrize("shape", [(1, 1), (1, 4097), (9000, 1), (3, 5000)])
def test_odd_shapes(shape: tuple[int, int], device: torch.device) -> None:
    values = normal(*shape)
    assert torch.equal(kernels.count(values.to(device), GRIDS[1]).cpu(), reference(values, GRIDS[1]))


def test_strides(device: torch.device) -> None:
    base = normal(12, 300)
    for values in (base[:, 3:200], base.t(), base[::3, ::2], base[:1].expand(5, 300)):
        moved = base.to(device).as_strided(values.shape, values.stride(), values.storage_offset())
        assert torch.equal(kernels.count(moved, GRIDS[0]).cpu(), reference(values, GRIDS[0]))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_nothing_counts_nothing(shape: tuple[int, int], device: torch.device) -> None:
    grid = Grid(5, -1.0, 1.0)
    empty = torch.empty(shape, device=device)
    assert torch.equal(kernels.count(empty, grid).cpu(), torch.zeros(9, dtype=torch.int64))
    assert torch.equal(kernels.count_outer(empty, empty, grid).cpu(), torch.zeros(9, dtype=torch.int64))


def test_counts_are_added_to_what_is_given(device: torch.device) -> None:
    values = normal(4, 50).to(device)
    out = torch.full((104,), 2**40, dtype=torch.int64, device=device)
    assert kernels.count(values, GRIDS[0], out=out) is out
    assert torch.equal(out.cpu() - 2**40, reference(values, GRIDS[0]))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    bins=st.integers(1, 60),
    low=st.floats(-100, 100, width=32),
    width=st.floats(2**-10, 100, width=32),
    values=st.lists(st.floats(width=32), min_size=1, max_size=40),
)
def test_any_grid_and_values(bins: int, low: float, width: float, values: list[float]) -> None:
    if not kernels.available():
        pytest.skip("needs a GPU or the interpreter")
    grid = Grid(bins, low, low + width)
    x = torch.cat([torch.tensor(values)[None], hard(grid)], 1)
    where = x if not torch.cuda.is_available() else x.cuda()
    assert torch.equal(kernels.count(where, grid).cpu(), reference(x, grid))


@pytest.mark.parametrize(("n", "i", "o"), [(3, 70, 33), (1, 1, 1), (2, 5, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_outer(n: int, i: int, o: int, dtype: torch.dtype, device: torch.device) -> None:
    a, b = normal(n, i).to(dtype), normal(n, o, seed=1).to(dtype)
    a[0, 0], b[0, 0] = INF, 0.0  # a product that is NaN
    products = (b[:, :, None] * a[:, None, :]).flatten(1)
    counts = kernels.count_outer(a.to(device), b.to(device), GRIDS[0])
    assert torch.equal(counts.cpu(), reference(products, GRIDS[0]))


def test_outer_of_views(device: torch.device) -> None:
    a, b = normal(6, 40), normal(6, 20, seed=1)
    counts = kernels.count_outer(a.to(device)[:, 5:], b.to(device)[:, ::2], GRIDS[0])
    products = b[:, ::2, None] * a[:, None, 5:]
    assert torch.equal(counts.cpu(), reference(products.flatten(1), GRIDS[0]))


@pytest.mark.parametrize(
    ("grid", "n", "m"), [(Grid(40, -1.0, 1.0, 50), 19, 150), (Grid(101, -2.0, 2.0, 3), 2, 7)]
)
def test_columns(grid: Grid, n: int, m: int, device: torch.device) -> None:
    values = normal(n, m)
    values[0, :3] = torch.tensor([NAN, INF, -INF])
    place = torch.arange(m, dtype=torch.int32) % (grid.columns + 1) - 1
    counts = kernels.count(values.to(device), grid, place.to(device))
    assert torch.equal(counts.cpu(), reference(values, grid, place))


def test_columns_of_numbers_around_the_edges(device: torch.device) -> None:
    for grid in (Grid(40, -1.0, 1.0, 2), Grid(10, -0.3, 0.3, 2)):
        values = hard(grid).expand(2, -1)
        place = torch.arange(values.shape[1], dtype=torch.int32) % 2
        counts = kernels.count(values.to(device), grid, place.to(device))
        assert torch.equal(counts.cpu(), reference(values, grid, place))


def test_a_cell_holds_more_than_a_byte(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """All values in one cell of one program."""
    monkeypatch.setattr(placed, "programs", lambda *_: 1)
    grid, place = Grid(8, -1.0, 1.0, 2), torch.ones(3, dtype=torch.int32)
    values = torch.full((265, 3), 0.99)
    counts = kernels.count(values.to(device), grid, place.to(device))
    assert torch.equal(counts.cpu(), reference(values, grid, place))


def test_outer_with_columns(device: torch.device) -> None:
    grid = Grid(40, -1.0, 1.0, 5)
    a, b = normal(11, 13), normal(11, 17, seed=1)
    place = torch.arange(13 * 17, dtype=torch.int32) % 6 - 1
    counts = kernels.count_outer(a.to(device), b.to(device), grid, place.to(device))
    products = (b[:, :, None] * a[:, None, :]).flatten(1)
    assert torch.equal(counts.cpu(), reference(products, grid, place))


def test_supports(device: torch.device) -> None:
    x = torch.zeros(1, 1, device=device)
    assert kernels.supports(Grid(100, -2.0, 2.0), x, x)
    assert kernels.supports(Grid(40, -1.0, 1.0, 50), x)
    assert not kernels.supports(Grid(5000, -2.0, 2.0), x)
    assert not kernels.supports(Grid(300, -2.0, 2.0, 2), x)
    assert not kernels.supports(Grid(100, -2.0, 2.0, 100), x)
    assert not kernels.supports(Grid(100, -2.0, 2.0), x, x.double())
    assert not kernels.supports(Grid(100, -2.0, 2.0), x.long())


@pytest.mark.skipif(kernels.available(), reason="there are kernels")
def test_nothing_is_supported_without_kernels() -> None:
    assert not kernels.supports(Grid(100, -2.0, 2.0), torch.zeros(1, 1))
