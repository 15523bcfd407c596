"""Images and output gradients, laid out for the kernel or packed, are the factors of a convolution's gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cockpit.engine import kernels
from cockpit.engine.gradients import reduction
from cockpit.engine.gradients.histograms import Histogram1d
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.kernels import images, product_statistics, trial
from cockpit.engine.layers import conv
from cockpit.engine.layers.conv import Convolved, _convolved, _padding, transposed_convolution
from cockpit.engine.layers.formula import Call, Layout
from cockpit.engine.numbers import binning
from cockpit.engine.statistics import Norm2, Statistic
from engine.kernels.factors import CPU, DEVICE, GRID, normal, written_out


def part_of(layer: nn.Conv2d, size: tuple[int, int], n: int = 2, scale: float = 1.0) -> Convolved:
    x = normal(n, layer.in_channels, *size)
    dy = normal(*layer(x).shape, seed=5) * scale
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return _convolved(layer, x[:, None], dy[:, None], _padding(layer), mode)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the training multiply in float32, so that nothing is rounded."""
    monkeypatch.setattr(conv, "rounds", lambda backend: False)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    size=st.tuples(st.integers(10, 14), st.integers(8, 13)),
)
@pytest.mark.usefixtures("exact")
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


@pytest.mark.usefixtures("exact")
def test_blocks_of_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit.engine.gradients.individual.BLOCK", 150)
    part = part_of(nn.Conv2d(2, 3, 3, padding=1, device=DEVICE), (7, 7), n=5)
    blocks = list(part.products())
    assert len(blocks) > 1
    found = torch.cat([written_out(products) for products in blocks]).reshape(5, 3, 2, 3, 3)
    torch.testing.assert_close(found, part.dense(0, 5).double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(2, 2, 3).double()])
def test_what_the_kernel_does_not_know(layer: nn.Conv2d) -> None:
    x = normal(2, layer.in_channels, 6, 6).to(layer.weight)
    y = layer(x)
    part = _convolved(layer, x[:, None], torch.ones_like(y)[:, None].detach(), (0, 0, 0, 0))
    assert list(part.products()) == []


def check_part(part: Convolved, count: int, packed: bool = True) -> None:
    """Compare what the kernel says of a convolution's products with its gradients, written out."""
    g = part.dense(0, count).double().flatten(1)
    vectors = [normal(*part.shape, seed=6 + k) for k in range(2)]
    found = [product_statistics(products, vectors, GRID) for products in part.products()]
    assert all((products.greatest is not None) == packed for products in part.products())
    norm2, dots = torch.cat([x[0] for x in found]), torch.cat([x[1] for x in found])
    torch.testing.assert_close(norm2, g.square().sum(1), rtol=3e-3, atol=1e-30)
    for k, v in enumerate(vectors):
        error = (dots[:, k] - g @ v.double().flatten()).abs()
        assert (error <= 3e-3 * g.norm(dim=1) * v.double().norm() + 1e-30).all()
    counter = binning.Counter(binning.edges(GRID.bins, GRID.low, GRID.high, CPU), torch.float64)
    counter.add(g.cpu())
    counts = sum(x[2].cpu() for x in found if x[2] is not None)
    assert isinstance(counts, Tensor)
    assert int(counts.sum()) == g.numel()
    moved = (counts.cumsum(0) - counter.result().cumsum(0)).abs()
    assert int(moved.max()) <= 2 + g.numel() // 100, "few elements move over an edge"


@pytest.mark.skipif(not kernels.available(), reason="needs Triton and a GPU, or its interpreter")
class TestPacked:
    @pytest.fixture(autouse=True)
    def rounding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(conv, "rounds", lambda backend: True)

    @pytest.mark.parametrize(
        ("layer", "size", "n"),
        [
            (nn.Conv2d(3, 5, 3, padding=1), (5, 6), 7),
            (nn.Conv2d(3, 70, 7, stride=2, padding=3), (13, 9), 2),
            (nn.Conv2d(3, 4, (2, 3), dilation=(3, 2), stride=(2, 1), padding=(1, 2)), (11, 8), 1),
            (nn.Conv2d(17, 33, 3, padding="same"), (5, 5), 3),
            (nn.Conv2d(20, 24, 3, padding=1, padding_mode="circular"), (6, 5), 2),
            (nn.Conv2d(16, 17, (3, 4), stride=(2, 3), padding=(0, 2), dilation=(1, 2)), (9, 14), 2),
            (nn.Conv2d(2, 3, 3, padding=(2, 0), padding_mode="reflect"), (7, 8), 2),
            (nn.Conv2d(18, 20, 3, padding=1), (17, 18), 2),  # more pixels than directions are held for
        ],
        ids=str,
    )
    def test_any_geometry(
        self, layer: nn.Conv2d, size: tuple[int, int], n: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(images, "WORTH", 0)
        check_part(part_of(layer.to(DEVICE), size, n), n)

    def test_one_pixel_of_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(images, "WORTH", 0)
        check_part(part_of(nn.Conv2d(40, 70, 1, stride=2, device=DEVICE), (7, 6)), 2)

    def test_small_gradients_are_counted_by_their_sign(self) -> None:
        check_part(part_of(nn.Conv2d(3, 5, 3, padding=1, device=DEVICE), (5, 6), 7, 1e-4), 7)

    def test_tiny_and_large_examples_keep_their_bits(self) -> None:
        part = part_of(nn.Conv2d(3, 5, 3, padding=1, device=DEVICE), (5, 6), 3)
        scales = torch.tensor([1e-20, 1e12, 0.0], device=DEVICE).view(3, 1, 1, 1, 1)
        check_part(part_of_scaled(part, scales), 3)

    def test_any_memory(self) -> None:
        layer = nn.Conv2d(3, 5, 3, padding=1, device=DEVICE)
        x, dy = normal(2, 3, 6, 5), normal(2, 5, 1, 1, seed=5).expand(2, 5, 6, 5)
        x = x.to(memory_format=torch.channels_last)
        check_part(_convolved(layer, x[:, None], dy[:, None], _padding(layer)), 2)

    def test_a_factor(self) -> None:
        part = part_of(nn.Conv2d(3, 5, 3, padding=1, device=DEVICE), (5, 6), 4).scaled(4.0)
        check_part(part, 4)

    def test_transposed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its padding cuts the output gradient, whose patches are looked at."""
        monkeypatch.setattr(images, "WORTH", 0)
        layer = nn.ConvTranspose2d(18, 17, 3, stride=2, padding=1, output_padding=1, device=DEVICE)
        x = normal(2, 18, 4, 5)
        dy = normal(*layer(x).shape, seed=5)
        part = transposed_convolution(Call(layer, (x,), {}, (dy,), 2, (Layout(),)))["weight"]
        assert isinstance(part, Convolved)
        check_part(part, 2)

    def test_blocks_are_of_one_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cockpit.engine.gradients.individual.BLOCK", 300)
        part = part_of(nn.Conv2d(3, 5, 3, padding=1, device=DEVICE), (5, 6), 7)
        assert [len(products.b) for products in part.products()] == [4, 3]
        check_part(part, 7)

    @pytest.mark.filterwarnings("ignore:invalid value encountered")  # the interpreter multiplies by NumPy
    def test_what_is_not_finite_stays_with_its_example(self) -> None:
        part = part_of(nn.Conv2d(3, 5, 3, padding=1, device=DEVICE), (5, 6), 3)
        part.placed[1, 0, 2, 3, 3] = float("nan")
        (products,) = part.products()
        norm2, _, counts = product_statistics(products, (), GRID)
        assert norm2.isnan().tolist() == [False, True, False]
        assert counts is not None
        assert int(counts[GRID.bins + 2]) == 27, "one output of the second example's gradient"

    def test_what_gains_nothing_is_not_packed(self) -> None:
        check_part(part_of(nn.Conv2d(20, 24, 1, device=DEVICE), (6, 5)), 2, packed=False)
        check_part(part_of(nn.Conv2d(20, 24, 1, stride=2, device=DEVICE), (6, 5)), 2, packed=False)


def part_of_scaled(part: Convolved, scales: Tensor) -> Convolved:
    """Return a convolution's part with every example's output gradient multiplied."""
    return _convolved(part.module, part.seen, part.placed * scales, part.zeros or ())


@pytest.mark.skipif(not kernels.available(), reason="needs Triton and a GPU, or its interpreter")
def test_a_kernel_that_does_not_run_costs_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(conv, "rounds", lambda backend: True)
    monkeypatch.setattr(images, "packed", refuse)
    monkeypatch.setattr(trial, "refused", {})
    part, histogram = part_of(nn.Conv2d(3, 5, 3, device=DEVICE), (6, 5)), Histogram1d(100, -2.0, 2.0)
    g = ExampleGradients("p", torch.zeros(part.shape, device=DEVICE), (part,))
    asked: list[Statistic] = [Norm2(), histogram]
    found = dict(reduction.reductions(g, asked, {}))
    torch.testing.assert_close(found[Norm2()].double(), g.norm2().double(), rtol=1e-4, atol=0)
    assert torch.equal(found[histogram], histogram.reduce(g))
    assert trial.refused == {"products": "RuntimeError: no such instruction"}
