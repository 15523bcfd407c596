"""Compiled and plain counting give equal counts: on edges, outside, not finite, in columns or without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.numbers import counting
from cockpit.engine.numbers.binning import EXTRA, Grid, edges
from cockpit.engine.numbers.counting import count, count_outer, places
from cockpit.engine.scripts.recorder import ScriptRecorder
from layer_check import normal

CPU = torch.device("cpu")
GRIDS = [Grid(10, -1, 1), Grid(7, -0.3, 1.1), Grid(100, -2, 2), Grid(1, 0, 1e-3), Grid(5, -1, 1, columns=3)]


def by_numpy(values: Tensor, grid: Grid, place: Tensor | None = None) -> list[int]:
    """The definition: every value is looked up among the edges."""
    edge = edges(grid.bins, grid.low, grid.high, CPU).numpy()
    columns = np.zeros(values.shape[1], int) if place is None else place.numpy()
    table, outside = np.zeros((grid.bins, grid.columns), int), [0] * EXTRA
    for row in values.double().numpy():
        for x, column in zip(row, columns, strict=True):
            if column < 0 or np.isnan(x):
                outside[2] += 1
            elif np.isinf(x):
                outside[3] += 1
            elif x < edge[0]:
                outside[0] += 1
            elif x > edge[-1]:
                outside[1] += 1
            else:
                table[min(np.searchsorted(edge, x, side="right") - 1, grid.bins - 1), column] += 1
    return [*table.ravel().tolist(), *outside]


def awkward(grid: Grid, dtype: torch.dtype) -> Tensor:
    """Values [2, m]: on every edge, next to it on both sides, far out, zeros of both signs, not finite."""
    edge = edges(grid.bins, grid.low, grid.high, CPU).to(dtype)
    up, down = torch.tensor([torch.inf, -torch.inf], dtype=dtype)
    more = torch.tensor(
        [0.0, -0.0, 1e-30, -1e-30, 1e30, -1e30, torch.nan, torch.inf, -torch.inf], dtype=dtype
    )
    row = torch.cat([edge, edge.nextafter(up), edge.nextafter(down), more, normal(40, seed=1).to(dtype)])
    return torch.stack([row, row.flip(0)])


def some_places(grid: Grid, m: int, some_without: bool) -> Tensor | None:
    if grid.columns == 1 and not some_without:
        return None
    low = -1 if some_without else 0
    generator = torch.Generator().manual_seed(3)
    return torch.randint(low, grid.columns, (m,), generator=generator, dtype=torch.int32)


@pytest.mark.parametrize("some_without", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_values(grid: Grid, dtype: torch.dtype, some_without: bool) -> None:
    values = awkward(grid, dtype)
    place = some_places(grid, values.shape[1], some_without)
    expected = by_numpy(values, grid, place)
    for fast in (True, False):
        found = count(values, grid, place, fast)
        assert found.dtype == torch.int64
        assert found.tolist() == expected, f"fast={fast}"
    assert sum(expected) == values.numel(), "nothing is lost"


@pytest.mark.parametrize("some_without", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_products(grid: Grid, dtype: torch.dtype, some_without: bool) -> None:
    a, b = (normal(4, m, seed=m).to(dtype) for m in (9, 5))
    a[0, 0], a[1, 1], b[2, 2], b[3, 3] = torch.nan, torch.inf, 0.0, 1.0
    a[3] = edges(8, -1, 1, CPU).to(dtype)
    products = (b[:, :, None] * a[:, None, :]).flatten(1)
    place = some_places(grid, products.shape[1], some_without)
    expected = by_numpy(products, grid, place)
    for fast in (True, False):
        assert count_outer(a, b, grid, place, fast).tolist() == expected, f"fast={fast}"


@settings(max_examples=25, deadline=None)
@given(
    bins=st.integers(1, 40),
    low=st.floats(-3, 3, width=32),
    width=st.floats(2**-10, 8, width=32),
    columns=st.integers(1, 4),
    seed=st.integers(0, 99),
    single=st.booleans(),
)
def test_any_grid(bins: int, low: float, width: float, columns: int, seed: int, single: bool) -> None:
    grid = Grid(bins, low, low + width, columns)
    a, b = (normal(3, m, seed=seed + m).to(torch.float32 if single else torch.float64) for m in (6, 7))
    place = some_places(grid, 42, some_without=seed % 2 == 0)
    assert torch.equal(count_outer(a, b, grid, place), count_outer(a, b, grid, place, fast=False))
    values = (b[:, :, None] * a[:, None, :]).flatten(1)
    assert torch.equal(count(values, grid, place), count(values, grid, place, fast=False))
    assert torch.equal(count(values, grid, place), count_outer(a, b, grid, place))


@pytest.mark.parametrize("chunk", [1, 50])
def test_products_in_pieces(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, grid = normal(6, 4), normal(6, 5, seed=1), Grid(8, -1, 1)
    whole = count_outer(a, b, grid, fast=False)
    monkeypatch.setattr(counting, "CHUNK", chunk)
    assert torch.equal(count_outer(a, b, grid, fast=False), whole)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(("n", "m"), [(0, 4), (3, 0), (0, 0)])
def test_nothing_to_count(n: int, m: int, fast: bool) -> None:
    grid = Grid(4, -1, 1)
    assert count(torch.zeros(n, m), grid, fast=fast).tolist() == [0] * (4 + EXTRA)
    assert count_outer(torch.zeros(n, m), torch.zeros(n, 2), grid, fast=fast).tolist() == [0] * (4 + EXTRA)


def test_views_are_counted_as_they_look() -> None:
    x, grid = normal(8, 6), Grid(10, -1, 1)
    expected = count(x, grid, fast=False)
    assert torch.equal(count(x.T, grid), expected)
    assert torch.equal(count(x[:, ::2], grid), count(x[:, ::2].clone(), grid, fast=False))


def test_half_precision_is_counted_by_torch() -> None:
    x, grid = normal(8, 6).to(torch.bfloat16), Grid(10, -1, 1)
    assert native.count(x, grid) is None
    assert count(x, grid).tolist() == by_numpy(x, grid)


def test_without_a_compiler_the_counts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, grid = normal(8, 6), Grid(10, -1, 1)
    expected = count(x, grid), count_outer(x, x, grid)
    monkeypatch.setattr(native, "count", lambda *_: None)
    monkeypatch.setattr(native, "count_outer", lambda *_: None)
    assert torch.equal(count(x, grid), expected[0])
    assert torch.equal(count_outer(x, x, grid), expected[1])


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("some_without", [False, True])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_script_counts_again(grid: Grid, some_without: bool, fast: bool) -> None:
    """By torch as well, which looks at the values: what is next to an edge, what is not finite."""
    a, b = normal(4, 9), normal(4, 5, seed=1)
    place, of_product = (some_places(grid, m, some_without) for m in (9, 45))
    repeat, found = ScriptRecorder(CPU).record(
        lambda: (count(a, grid, place, fast), count_outer(a, b, grid, of_product, fast))
    )
    for seed in (2, 3):
        a.copy_(normal(4, 9, seed=seed))
        a[0, :3] = torch.tensor([torch.nan, torch.inf, grid.high])
        repeat()
        assert found[0].tolist() == by_numpy(a, grid, place)
        products = (b[:, :, None] * a[:, None, :]).flatten(1)
        assert found[1].tolist() == by_numpy(products, grid, of_product)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_places(grid: Grid, dtype: torch.dtype) -> None:
    values = awkward(grid, dtype)[0]
    edge = edges(grid.bins, grid.low, grid.high, CPU).numpy()
    inside = np.clip(values.double().numpy(), edge[0], edge[-1])
    expected = np.minimum(np.searchsorted(edge, inside, side="right") - 1, grid.bins - 1)
    expected[np.isnan(inside)] = -1
    for fast in (True, False):
        found = places(values, grid, fast)
        assert found.dtype == torch.int32
        assert found.tolist() == expected.tolist(), f"fast={fast}"
