"""What the kernel that multiplies and looks says is what the written-out gradients say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.engine import kernels
from cockpit.engine.kernels import Products, product_statistics, shifts_on
from cockpit.engine.kernels.language import INTERPRETED
from cockpit.engine.kernels.products import tile_of
from cockpit.engine.numbers import binning
from cockpit.engine.numbers.binning import Grid
from engine.kernels.factors import CPU, DEVICE, GRID, normal, written_out

BY_PLACE = Grid(40, -1.0, 1.0, 7)


def check(products: Products, directions: list[Tensor], rtol: float) -> None:
    """Counts are compared where rounding moves few elements over an edge."""
    g = written_out(products).flatten(1)
    norm2, dots, counts = product_statistics(products, directions, GRID)
    torch.testing.assert_close(norm2, g.square().sum(1), rtol=rtol, atol=1e-30)
    scale = g.norm(dim=1)
    for k, v in enumerate(directions):
        assert (
            (dots[:, k] - g @ v.double().flatten()).abs() <= rtol * scale * v.double().norm() + 1e-30
        ).all()
    counter = binning.Counter(binning.edges(GRID.bins, GRID.low, GRID.high, CPU), torch.float64)
    counter.add(g.cpu())
    assert counts is not None
    assert int(counts.sum()) == g.numel()
    assert products.rough or int((counts.cpu() - counter.result()).abs().sum()) <= 2 + g.numel() // 500
    place = torch.arange(g.shape[1], dtype=torch.int32, device=g.device) % (BY_PLACE.columns + 1) - 1
    same, _, joint = product_statistics(products, grid=BY_PLACE, place=place)
    torch.testing.assert_close(same, norm2, rtol=1e-6, atol=1e-30)
    assert joint is not None
    assert int(joint.sum()) == g.numel()
    moved = int((joint - kernels.count(g, BY_PLACE, place)).abs().sum())
    assert products.rough or moved <= 2 + g.numel() // 500
    assert moved <= 2 + g.numel() // 10
    before = normal(g.shape[1], seed=8)
    squares = before.clone()
    again, _, _ = product_statistics(products, directions, squares=squares)
    torch.testing.assert_close(again, norm2, rtol=1e-6, atol=1e-30)
    alone = before.clone()
    assert product_statistics(products, squares=alone, norms=False)[0].shape == (0,)
    assert torch.equal(alone, squares)
    torch.testing.assert_close(
        (squares - before).double(),
        g.square().sum(0),
        rtol=10 * rtol,
        atol=1e-6 + rtol * float(g.square().max()),
    )


@pytest.mark.skipif(not kernels.available(), reason="needs Triton and a GPU, or its interpreter")
class TestKernel:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize(
        ("n", "outputs", "inputs", "uses", "taps", "directions"),
        [
            (1, 1, 1, 1, 1, 0),
            (3, 33, 5, 40, 1, 3),
            (2, 70, 66, 7, 1, 1),
            (2, 9, 34, 65, 3, 2),
            (1, 130, 3, 2, 2, 1),
        ],
    )
    def test_any_shape(
        self, n: int, outputs: int, inputs: int, uses: int, taps: int, directions: int, dtype: torch.dtype
    ) -> None:
        if INTERPRETED and dtype is torch.bfloat16:
            pytest.skip("the interpreter multiplies the bits of bfloat16 as integers")
        b, a = normal(n, outputs, uses, dtype=dtype), normal(n, inputs, uses + taps, seed=1, dtype=dtype) / 4
        vectors = [normal(outputs, inputs, taps, seed=2 + k) for k in range(directions)]
        check(Products(b, a, shifts_on(a.device, *range(taps))), vectors, 1e-5)

    def test_any_strides(self) -> None:
        b, a = normal(2, 33, 50).transpose(1, 2), normal(2, 33, 40, seed=1).transpose(1, 2)
        check(Products(b, a, shifts_on(DEVICE, 0)), [normal(50, 40, 1, seed=3)], 1e-5)

    def test_rough_products_are_near(self) -> None:
        b, a = normal(2, 20, 30), normal(2, 25, 30, seed=1)
        check(Products(b, a, shifts_on(DEVICE, 0), rough=True), [normal(20, 25, 1, seed=3)], 3e-3)

    def test_numbers_that_are_not_finite_stay_with_their_example(self) -> None:
        b, a = normal(3, 5, 7), normal(3, 6, 7, seed=1)
        b[1, 2, 3] = float("nan")
        norm2, _, counts = product_statistics(Products(b, a, shifts_on(b.device, 0)), (), GRID)
        assert norm2.isnan().tolist() == [False, True, False]
        assert counts is not None
        assert int(counts[GRID.bins + 2]) == 6, "one row of the second example's gradient"

    @pytest.mark.filterwarnings("ignore:invalid value encountered")  # the interpreter multiplies by NumPy
    def test_nothing_beyond_the_gradient_counts(self) -> None:
        b, a = normal(1, 3, 4), normal(1, 3, 4, seed=1)
        a[0, 0, 0] = float("inf")
        _, _, counts = product_statistics(Products(b, a, shifts_on(b.device, 0)), (), GRID)
        assert counts is not None
        assert int(counts.sum()) == 9

    def test_no_example(self) -> None:
        norm2, dots, counts = product_statistics(
            Products(normal(0, 3, 4), normal(0, 2, 4), shifts_on(DEVICE, 0)), [], GRID
        )
        assert norm2.shape == (0,)
        assert dots.shape == (0, 0)
        assert counts is not None
        assert int(counts.sum()) == 0


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("inputs", [3, 40, 64, 70, 128, 147, 192, 200, 512])
@pytest.mark.parametrize("uses", [49, 784])
def test_tiles_cover_no_more_than_they_must(inputs: int, uses: int, packed: bool) -> None:
    tile = tile_of(100, inputs, 9, uses, packed)
    assert -inputs % tile.inputs < max(64, tile.inputs // 2) or tile.inputs == 32
    assert tile.hold == (uses == 49)
