"""On a GPU: large tensors, skewed values, no wait for the device, graphs, the same bits every time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine import kernels
from cockpit.engine.layers import conv
from cockpit.engine.layers.conv import _convolved
from cockpit.engine.numbers.binning import Counter, Grid, edges

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
FLAT, PLACED = Grid(100, -2.0, 2.0), Grid(40, -1.0, 1.0, 50)


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda") * scale


def places(m: int) -> Tensor:
    return torch.randint(
        -1,
        PLACED.columns,
        (m,),
        dtype=torch.int32,
        device="cuda",
        generator=torch.Generator("cuda").manual_seed(1),
    )


def reference(values: Tensor, grid: Grid, place: Tensor | None = None) -> Tensor:
    counter = Counter(edges(grid.bins, grid.low, grid.high, values.device), values.dtype, grid.columns)
    known = slice(None) if place is None else place >= 0
    counter.add(values[:, known], None if place is None else place[known])
    if place is not None:
        counter.nan += int((place < 0).sum()) * len(values)
    return counter.result()


@contextmanager
def no_wait() -> Iterator[None]:
    torch.cuda.synchronize()
    with warnings.catch_warnings():  # it warns, once, that it does not notice every wait
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.3, 30.0])
def test_large_and_skewed(scale: float) -> None:
    values = normal(129, 100_003, scale=scale)
    place = places(100_003)
    assert torch.equal(kernels.count(values, FLAT), reference(values, FLAT))
    assert torch.equal(kernels.count(values, PLACED, place), reference(values, PLACED, place))


def test_large_outer() -> None:
    a, b = normal(65, 785, scale=0.5), normal(65, 301, seed=1)
    products = (b[:, :, None] * a[:, None, :]).flatten(1)
    place = places(785 * 301)
    assert torch.equal(kernels.count_outer(a, b, FLAT), reference(products, FLAT))
    assert torch.equal(kernels.count_outer(a, b, PLACED, place), reference(products, PLACED, place))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_half_precision_round_as_in_torch(dtype: torch.dtype) -> None:
    a, b = normal(9, 201).to(dtype), normal(9, 33, seed=1).to(dtype)
    products = (b[:, :, None] * a[:, None, :]).flatten(1).float()
    place = places(201 * 33)
    assert torch.equal(kernels.count_outer(a, b, FLAT), reference(products, FLAT))
    assert torch.equal(kernels.count_outer(a, b, PLACED, place), reference(products, PLACED, place))


def test_denormal_products_are_not_flushed() -> None:
    a = torch.full((1, 4), -1e-30, device="cuda")
    b = torch.full((1, 3), 1e-12, device="cuda")  # −1e−42 is on its own side of zero
    assert kernels.count_outer(a, b, FLAT)[49].item() == 12
    assert kernels.count_outer(a, b, PLACED, places(12).clamp_min(0)).view(-1)[19 * 50 : 20 * 50].sum() == 12


def test_more_than_an_int32_of_elements() -> None:
    values = torch.zeros(2**31 + 5, dtype=torch.bfloat16, device="cuda").view(1, -1)
    counts = kernels.count(values, FLAT)
    assert counts[50].item() == 2**31 + 5
    assert counts.sum().item() == 2**31 + 5


def calls() -> dict[str, Callable[[], object]]:
    values, place = normal(32, 5000), places(5000)
    a, b = normal(32, 100), normal(32, 50, seed=1)
    directions = [normal(5000, seed=2), normal(5000, seed=3), normal(5000, seed=4)]
    return {
        "flat": lambda: kernels.count(values, FLAT),
        "placed": lambda: kernels.count(values, PLACED, place),
        "outer": lambda: kernels.count_outer(a, b, FLAT),
        "outer placed": lambda: kernels.count_outer(a, b, PLACED, place),
        "block": lambda: kernels.block_statistics(values, directions, FLAT),
        "segments": lambda: kernels.segment_statistics(values, (2000, 1, 2999), directions, FLAT),
        "products": convolved(False),
        "packed products": convolved(True),
    }


def convolved(rough: bool) -> Callable[[], object]:
    layer = nn.Conv2d(130, 144, 3, padding=1, device="cuda")
    x, dy = normal(9, 130, 8, 8), normal(9, 144, 8, 8, seed=1)
    directions = [normal(*layer.weight.shape, seed=2)]

    def call() -> tuple[Tensor, ...]:
        with mock.patch.object(conv, "rounds", return_value=rough):
            (products,) = _convolved(layer, x[:, None], dy[:, None], (1, 1, 1, 1)).products()
        assert (products.greatest is not None) == rough
        found = kernels.product_statistics(products, directions, FLAT)
        return tuple(tensor for tensor in found if tensor is not None)

    return call


@pytest.mark.parametrize("name", calls().keys() if torch.cuda.is_available() else [])
def test_no_wait_and_capturable(name: str) -> None:
    call = calls()[name]
    first = call()
    with no_wait():
        second = call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        third = call()
    graph.replay()
    for other in (second, third):
        for x, y in zip(_tensors(first), _tensors(other), strict=True):
            assert torch.equal(x, y)  # bit for bit


def _tensors(result: object) -> list[Tensor]:
    return [x for x in (result if isinstance(result, tuple) else (result,)) if isinstance(x, Tensor)]


def test_what_was_not_seen_before_is_capturable() -> None:
    """Its table of bounds is written by the graph; the kernel itself has been compiled."""
    values = normal(6, 700)
    kernels.segment_statistics(values, (300, 400), (), FLAT)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norm2, _, counts = kernels.segment_statistics(values, (123, 577), (), FLAT)
    graph.replay()
    torch.testing.assert_close(norm2[0], values[:, :123].double().square().sum(1), rtol=1e-6, atol=0)
    assert counts is not None
    assert torch.equal(counts[1], reference(values[:, 123:], FLAT))


def test_block_sums() -> None:
    block, v = normal(37, 300_001, scale=1e-3), normal(300_001, seed=1)
    norm2, dots, counts = kernels.block_statistics(block, [v], FLAT)
    products = block.double() * v.double()
    torch.testing.assert_close(norm2, block.double().square().sum(1), rtol=1e-6, atol=0)
    assert ((dots[:, 0] - products.sum(1)).abs() <= 1e-6 * products.abs().sum(1)).all()
    assert counts is not None
    assert torch.equal(counts, reference(block, FLAT))
