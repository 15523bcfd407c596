"""Curvature on a GPU: fused kernels that the CPU does not have, and generators that live on the device."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cockpit.engine.curvature.ggn import ggn_diagonal, ggn_diagonal_mc
from cockpit.engine.curvature.hessian import HessianProduct
from cockpit.engine.curvature.hessian_diagonal import hessian_diagonal
from cockpit.engine.curvature.lanczos import top_eigenpair
from cockpit.engine.curvature.loss_graph import LossGraph
from cockpit.engine.curvature.loss_kinds import root_of
from cockpit.engine.derivatives.attention import twice_differentiable_attention
from cockpit.engine.kernels import batch_norm, gelu, layer_norm
from cockpit.engine.kernels.trial import refused
from curvature_problems import F64, mlp, square_sums

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def kernels() -> Iterator[tuple[SDPBackend, torch.dtype, int, dict[str, object]]]:
    flash, efficient, cudnn = (
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
    )
    for options in ({}, {"is_causal": True}, {"scale": 0.2}):
        yield flash, torch.bfloat16, 64, options
        yield flash, torch.float16, 36, options  # padded to a multiple of 8 inside
        yield efficient, torch.float32, 32, options
        yield efficient, torch.bfloat16, 64, options
        yield cudnn, torch.bfloat16, 64, options
    mask = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0)) > 0.4
    mask[..., 0] = True
    yield efficient, torch.float32, 32, {"attn_mask": mask.cuda()}
    bias = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    yield efficient, torch.float32, 32, {"attn_mask": bias.cuda()}
    yield flash, torch.bfloat16, 64, {"enable_gqa": True}


def inputs(width: int, dtype: torch.dtype, grouped: bool) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    heads = (4, 2, 2) if grouped else (4, 4, 4)
    return [torch.randn(2, h, 16, width, generator=g).to("cuda", dtype).requires_grad_() for h in heads]


def test_fused_kernels_keep_every_bit_and_gain_second_derivatives():
    for backend, dtype, width, options in kernels():
        grouped = bool(options.get("enable_gqa"))
        first = []
        for around in (nullcontext, twice_differentiable_attention):
            q, k, v = inputs(width, dtype, grouped)
            with sdpa_kernel([backend]), around():
                result = F.scaled_dot_product_attention(q, k, v, **options)
            weight = torch.linspace(-1, 1, result.numel(), device="cuda").reshape(result.shape).to(dtype)
            first.append([result, *torch.autograd.grad(result, (q, k, v), weight, retain_graph=True)])
        assert all(torch.equal(a, b) for a, b in zip(*first, strict=True)), (backend, dtype, options)
        assert "Exit" in type(result.grad_fn).__name__, (backend, dtype, options)

        parameters = {"q": q, "k": k, "v": v}
        product = HessianProduct([(result.float().sin().flatten(1).sum(1), 1.0)], parameters)
        vector = torch.randn(product.flat.size, generator=torch.Generator().manual_seed(1)).cuda()
        found = product(vector)
        exact = {n: x.detach().double().requires_grad_() for n, x in parameters.items()}
        plain = {
            n: x.double() if n == "attn_mask" and x.is_floating_point() else x for n, x in options.items()
        }
        with sdpa_kernel([SDPBackend.MATH]):
            reference = F.scaled_dot_product_attention(*exact.values(), **plain)
        expected = HessianProduct([(reference.sin().flatten(1).sum(1), 1.0)], exact)(vector.double())
        error = float((found - expected).norm() / expected.norm())
        limit = 1e-4 if dtype == torch.float32 else 3e-2
        assert error < limit, (backend, dtype, options, error)


def test_rows_fall_back_where_a_kernel_cannot_be_batched():
    q, k, v = inputs(64, torch.bfloat16, False)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]), twice_differentiable_attention():
        result = F.scaled_dot_product_attention(q, k, v)
    product = HessianProduct([(result.float().sin().flatten(1).sum(1), 1.0)], {"q": q, "k": k, "v": v})
    vectors = torch.randn(2, product.flat.size, generator=torch.Generator().manual_seed(1)).cuda()
    rows = product.rows(vectors)
    error = (rows - torch.stack([product(x) for x in vectors])).norm() / rows.norm()
    assert float(error) < 3e-2


def test_curvature_on_the_device_equals_that_on_the_cpu():
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(16, 4, dtype=F64, generator=g), torch.randint(0, 3, (16,), generator=g)
    found = []
    for device in ("cpu", "cuda"):
        model = mlp(nn.ReLU).to(device)
        output = model(x.to(device))
        losses = F.cross_entropy(output, y.to(device), reduction="none")
        parameters, sums = dict(model.named_parameters()), square_sums(model, 16)
        before = torch.cuda.get_rng_state()
        generator = torch.Generator(device).manual_seed(0)
        product = HessianProduct([(losses, 1.0)], parameters)
        flat = product.flat
        pair = top_eigenpair(product, None, flat.size, flat.dtype, flat.device, generator, tolerance=1e-9)
        root = root_of(LossGraph(losses, (output,), parameters))
        exact = ggn_diagonal(root, sums)
        diagonal, _ = hessian_diagonal(losses, parameters, generator, (output,), lambda found=exact: found)
        sampled = ggn_diagonal_mc(root, sums, generator, samples=100)
        estimated, _ = hessian_diagonal(losses, parameters, generator, dense_limit=0, probes=100)
        assert torch.equal(torch.cuda.get_rng_state(), before)
        total = sum(float(t) for t in exact.trace_by_parameter.values())
        for guess in (sampled, estimated):
            off = sum(float(t) for t in guess.trace_by_parameter.values()) - total
            assert guess.total_standard_error is not None
            assert abs(off) < 4 * float(guess.total_standard_error)
        assert diagonal.method == "hessian=ggn"
        found.append((pair.value, [d.cpu() for d in diagonal.by_parameter.values()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-8)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("hand", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_dear_layers_are_derived_by_kernels(
    hand: bool, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(module: Any, name: str) -> None:
        own = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given: calls.append(name) or own(*given))

    for module in (batch_norm, gelu, layer_norm):
        counted(module, f"{module.__name__.rpartition('.')[2]}_twice")
    torch.manual_seed(0)
    parts = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU("tanh"), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
    model = nn.Sequential(*parts, nn.GELU(), nn.Flatten(), nn.LayerNorm(128), nn.Linear(128, 5))
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    found = []
    for dtype in (F64, torch.float32):
        network = copy.deepcopy(model).to("cuda", dtype)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast and dtype is torch.float32):
            losses = network(x.to("cuda", dtype)).square().sum(1)
        parameters = dict(network.named_parameters())
        product = HessianProduct([(losses.to(dtype), 1.0)], parameters, hand and dtype is torch.float32)
        v = torch.randn(product.flat.size, dtype=F64, generator=torch.Generator().manual_seed(2))
        found.append(product(v.to("cuda", dtype)).double())
    assert calls.count("batch_norm_twice") == 2
    assert calls.count("gelu_twice") == 2
    assert calls.count("layer_norm_twice") == 1
    assert (found[1] - found[0]).norm() < (0.1 if autocast else 5e-3) * found[0].norm()
    assert not refused
