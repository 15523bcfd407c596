"""What the kernel that multiplies and looks says is what the written-out gradients say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine import binning, kernels
from cockpit.engine.binning import Grid
from cockpit.engine.kernels import Products, product_statistics, shifts_on
from cockpit.engine.kernels.language import INTERPRETED
from cockpit.engine.layers.conv import Convolved, _convolved, _padding

GRID = Grid(100, -2.0, 2.0)


DEVICE = torch.device("cuda" if kernels.available() and not INTERPRETED else "cpu")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(DEVICE, dtype)


def written_out(products: Products) -> Tensor:
    """[N, O, I, T] in float64."""
    a, b = products.a.double(), products.b.double()
    uses = b.shape[2]
    return torch.stack([b @ a[:, :, s : s + uses].transpose(1, 2) for s in products.shifts.tolist()], 3)


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
    counter = binning.Counter(
        binning.edges(GRID.bins, GRID.low, GRID.high, torch.device("cpu")), torch.float64
    )
    counter.add(g.cpu())
    assert counts is not None
    assert int(counts.sum()) == g.numel()
    assert products.rough or int((counts.cpu() - counter.result()).abs().sum()) <= 2 + g.numel() // 500


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


def part_of(layer: nn.Conv2d, size: tuple[int, int], n: int = 2) -> Convolved:
    x = normal(n, layer.in_channels, *size)
    y = layer(x)
    dy = normal(*y.shape, seed=5)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return _convolved(layer, x[:, None], dy[:, None], lambda images: F.pad(images, _padding(layer), mode))


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    size=st.tuples(st.integers(10, 14), st.integers(8, 13)),
)
def test_shifted_images_are_patches(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int],
    size: tuple[int, int],
) -> None:
    layer = nn.Conv2d(3, 4, kernel, stride, padding, dilation, device=DEVICE)
    part = part_of(layer, size)
    (products,) = part.products()
    found = written_out(products).reshape(2, *layer.weight.shape)
    torch.testing.assert_close(found, part.dense(0, 2).double(), rtol=1e-4, atol=1e-4)


def test_blocks_of_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit.engine.gradients.BLOCK", 300)
    part = part_of(nn.Conv2d(2, 3, 3, padding=1, device=DEVICE), (7, 7), n=5)
    blocks = list(part.products())
    assert len(blocks) > 1
    found = torch.cat([written_out(products) for products in blocks]).reshape(5, 3, 2, 3, 3)
    torch.testing.assert_close(found, part.dense(0, 5).double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(2, 2, 3).double()])
def test_what_the_kernel_does_not_know(layer: nn.Conv2d) -> None:
    x = normal(2, layer.in_channels, 6, 6).to(layer.weight)
    y = layer(x)
    part = _convolved(layer, x[:, None], torch.ones_like(y)[:, None].detach(), lambda images: images)
    assert list(part.products()) == []
