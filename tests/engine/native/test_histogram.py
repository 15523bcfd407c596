from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cockpit.engine.native import count, count_outer, places, status
from cockpit.engine.native.grid import prepared
from cockpit.engine.native.library import library as loaded
from cockpit.engine.numbers.binning import CPU, EXTRA, Counter, Grid, bin_index, edges

pytestmark = pytest.mark.skipif(not status().startswith("compiled"), reason=status())

GRIDS = [
    Grid(100, -2.0, 2.0, 5),
    Grid(7, 0.1, 0.7, 3),
    Grid(60, -2.0, 2.0, 50),
    Grid(1, -1.0, 1.0, 1),
    Grid(9, -0.3, 0.3, 4),
    Grid(30, -0.3, 0.6, 2),
    Grid(10, 0.0, 1.0, 7),
    Grid(10, -1.0, 0.0, 1),
    Grid(6, -1e-42, 1e-42, 2),
    Grid(5, -5.0, -1.0, 2),
    Grid(8, -1e300, 1e300, 2),
    Grid(33, 1.0, 1.0001, 2),
    Grid(3000, -1.0, 1.0, 1),
]
FLOATS = [torch.float32, torch.float64]


def brute(x: Tensor, grid: Grid, place: Tensor | None) -> Tensor:
    """One value after the other, by the edges."""
    row = bin_index(x.double(), edges(grid.bins, grid.low, grid.high, CPU))
    column = torch.zeros(x.shape[1], dtype=torch.int64) if place is None else place.long()
    known, cells = column >= 0, grid.bins * grid.columns
    where = torch.where(row < grid.bins, row * grid.columns + column, cells + row - grid.bins)
    where = torch.where(known, where, cells + 2)
    return torch.bincount(where.flatten(), minlength=cells + EXTRA)


def numbers(
    rng: np.random.Generator, shape: tuple[int, int], grid: Grid, kind: str, dtype: torch.dtype
) -> Tensor:
    real = np.float64 if dtype == torch.float64 else np.float32
    size, info = shape[0] * shape[1], np.finfo(real)
    edge = np.linspace(grid.low, grid.high, grid.bins + 1)
    with np.errstate(over="ignore"):
        near = np.clip(edge, float(info.min), float(info.max)).astype(real)
        beside = np.concatenate([near, np.nextafter(near, real(-np.inf)), np.nextafter(near, real(np.inf))])
    tiny = [0.0, -0.0, info.smallest_subnormal, -info.smallest_subnormal, info.tiny, -info.tiny]
    pool = {
        "edges": beside,
        "special": np.array([*tiny, np.nan, np.inf, -np.inf, info.max, info.min, 1.0, *near[:3]]),
        "tiny": np.array([*tiny, 1.0, -1.0, 0.5, info.tiny * 8]),
        "signs": np.array([0.0, -0.0, 1.0, -1.0, 0.5, 3.0]),
        "huge": np.array([info.max, info.min, 1e30, -1e20, 1.0]),
        "normal": rng.normal(size=size or 1) * 0.5,
        "small": rng.normal(size=size or 1) * 0.003 * (rng.random(size or 1) < 0.6),
        "positive": np.maximum(rng.normal(size=size or 1), 0),
        "clustered": np.append(1.0 + rng.random(40) * 1e-6, 1e4),
    }[kind]
    return torch.from_numpy(rng.choice(pool, size=shape).astype(real))


KINDS = st.sampled_from(
    ["edges", "special", "tiny", "signs", "huge", "normal", "small", "positive", "clustered"]
)
SIZES = st.integers(0, 12) | st.sampled_from([1, 2, 33, 300])


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from(GRIDS), st.sampled_from(FLOATS), KINDS, SIZES, SIZES | st.just(2500),
    st.sampled_from(["no place", "place", "some without"]),
)  # fmt: skip
@example(0, GRIDS[0], torch.float32, "special", 3, 700, "no place")
@example(0, GRIDS[0], torch.float32, "small", 33, 2500, "some without")
def test_values_fall_where_the_edges_say(
    seed: int, grid: Grid, dtype: torch.dtype, kind: str, n: int, m: int, how: str
) -> None:
    rng = np.random.default_rng(seed)
    x = numbers(rng, (n, m), grid, kind, dtype)
    place = None
    if how != "no place":
        place = torch.from_numpy(rng.integers(-(how == "some without"), grid.columns, m).astype(np.int32))
    else:
        grid = Grid(grid.bins, grid.low, grid.high)
    counted = count(x, grid, place)
    assert counted is not None
    assert counted.dtype == torch.int64
    assert torch.equal(counted, brute(x, grid, place))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from(GRIDS), st.sampled_from(FLOATS), KINDS, KINDS,
    st.sampled_from([0, 1, 2, 3, 9]), SIZES, SIZES, st.sampled_from(["no place", "place", "some without"]),
)  # fmt: skip
@example(0, GRIDS[0], torch.float32, "special", "normal", 3, 300, 33, "place")
@example(0, GRIDS[0], torch.float32, "tiny", "tiny", 9, 33, 33, "place")
@example(0, GRIDS[0], torch.float32, "tiny", "tiny", 9, 33, 33, "no place")
@example(0, GRIDS[0], torch.float32, "huge", "huge", 2, 12, 33, "no place")
@example(0, GRIDS[0], torch.float32, "normal", "normal", 2, 300, 300, "no place")
@example(0, GRIDS[0], torch.float64, "edges", "signs", 2, 300, 300, "no place")
def test_products_fall_where_the_edges_say(
    seed: int,
    grid: Grid,
    dtype: torch.dtype,
    kind_a: str,
    kind_b: str,
    n: int,
    inputs: int,
    outputs: int,
    how: str,
) -> None:
    rng = np.random.default_rng(seed)
    a, b = numbers(rng, (n, inputs), grid, kind_a, dtype), numbers(rng, (n, outputs), grid, kind_b, dtype)
    place = None
    if how != "no place":
        place = torch.from_numpy(
            rng.integers(-(how == "some without"), grid.columns, outputs * inputs).astype(np.int32)
        )
    else:
        grid = Grid(grid.bins, grid.low, grid.high)
    counted = count_outer(a, b, grid, place)
    products = (b[:, :, None] * a[:, None, :]).reshape(n, outputs * inputs)
    assert counted is not None
    assert torch.equal(counted, brute(products, grid, place))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from(GRIDS), st.sampled_from(FLOATS), KINDS, SIZES | st.just(2500),
)  # fmt: skip
@example(0, GRIDS[0], torch.float32, "special", 700)
def test_places_are_bins_with_all_that_lies_outside_in_the_outer_ones(
    seed: int, grid: Grid, dtype: torch.dtype, kind: str, m: int
) -> None:
    x = numbers(np.random.default_rng(seed), (1, m), grid, kind, dtype)[0]
    clamped = x.double().clamp(grid.low, grid.high)
    expected = bin_index(clamped, edges(grid.bins, grid.low, grid.high, CPU))
    found = places(x, grid)
    assert found is not None
    assert found.dtype == torch.int32
    assert found.tolist() == torch.where(x.isnan(), -1, expected).tolist()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("scale_a", "scale_b"), [(1, 1e-3), (1, 0.05), (0.1, 0.1), (1, 1), (30, 1e20), (1e20, 1e20)]
)
@pytest.mark.parametrize("relu", [False, True])
def test_layers_of_many_sizes_of_gradients(
    dtype: torch.dtype, scale_a: float, scale_b: float, relu: bool
) -> None:
    rng = torch.Generator().manual_seed(1)
    a = scale_a * torch.randn(
        140, 150, generator=rng, dtype=dtype
    )  # more examples than have bits in two words
    b = scale_b * torch.randn(140, 40, generator=rng, dtype=dtype) * torch.logspace(-3, 0, 40, dtype=dtype)
    if relu:
        a, b = a.relu(), b * (torch.rand(140, 40, generator=rng) < 0.5)
    a[1, 3], a[139, 4], b[70, 5] = torch.nan, torch.inf, -torch.inf
    place = torch.randint(0, 50, (6000,), generator=rng, dtype=torch.int32)
    products = (b[:, :, None] * a[:, None, :]).flatten(1)
    flat, joint = Grid(100, -2.0, 2.0), Grid(40, -2.0, 2.0, 50)
    for grid, where in ((flat, None), (joint, place)):
        counter = Counter(edges(grid.bins, grid.low, grid.high, CPU), dtype, grid.columns)
        counter.add(products, where)
        for counted in (count(products, grid, where), count_outer(a, b, grid, where)):
            assert counted is not None
            assert torch.equal(counted, counter.result())


def test_every_way_of_guessing_is_met() -> None:
    library, _ = loaded()
    assert library is not None
    found = {known.native.way for g in GRIDS for d in (False, True) if (known := prepared(g, d, library))}
    assert found >= {1, 2}
    assert found <= {0, 1, 2}


def test_strided_tensors_and_those_that_require_a_gradient() -> None:
    x = torch.linspace(-3, 3, 60, dtype=torch.float64).view(10, 6).requires_grad_()
    grid = Grid(5, -2.0, 2.0)
    counted = count(x.T[::2], grid)
    assert counted is not None
    assert torch.equal(counted, brute(x.detach().T[::2], grid, None))


def test_what_is_not_for_the_kernels_is_left_to_others() -> None:
    x = torch.zeros(2, 3)
    assert count(x.half(), Grid(5, -1.0, 1.0)) is None
    assert count(x.to("meta"), Grid(5, -1.0, 1.0)) is None
    assert count(x, Grid(5, 1.0, 1.0)) is None
    assert count(x, Grid(5, 1.0, float("inf"))) is None
    assert count(x, Grid(2**12, -1.0, 1.0, 2**12)) is None
    assert count_outer(x, x.double(), Grid(5, -1.0, 1.0)) is None
    assert places(x.half(), Grid(5, -1.0, 1.0)) is None
    assert places(x, Grid(5, 1.0, 1.0)) is None


@pytest.mark.parametrize("place", [[0, 1], [0, 1, 4], [-2, 0, 0]])
def test_columns_that_there_are_not_are_refused(place: list[int]) -> None:
    with pytest.raises(ValueError, match="place"):
        count(torch.zeros(2, 3), Grid(5, -1.0, 1.0, 4), torch.tensor(place, dtype=torch.int32))


def test_factors_of_different_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="examples"):
        count_outer(torch.zeros(2, 3), torch.zeros(3, 3), Grid(5, -1.0, 1.0))
