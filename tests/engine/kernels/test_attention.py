"""What a product with the Hessian makes of attention's gradients: that of the textbook formula in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cockpit.engine.derivatives.fused_attention import AttentionGradients
from cockpit.engine.derivatives.textbook_attention import attention_gradients
from cockpit.engine.kernels import attention
from engine.kernels.factors import normal

# autograd's thread may be the first to multiply on a GPU
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
SHAPES = {  # examples and heads, queries, keys, numbers in a head
    "one tile": ((2, 3), 16, 16, 16),
    "several tiles": ((1, 2), 150, 150, 32),
    "a narrow head": ((2, 1), 37, 37, 5),
    "a wide head": ((1, 1), 70, 70, 100),
    "fewer queries": ((2, 2), 20, 90, 16),
    "fewer keys": ((2, 2), 90, 20, 16),
    "one key": ((3,), 40, 1, 16),
}


def problem(shape: str, dtype: torch.dtype, scale: float = 1.0) -> tuple[list[Tensor], list[Tensor]]:
    """Vectors for three gradients, and query, key, value and the result's gradient."""
    heads, queries, keys, depth = SHAPES[shape]
    lengths = (queries, keys, keys, queries, queries, keys, keys)
    tensors = [normal(*heads, length, depth, seed=k, dtype=dtype) for k, length in enumerate(lengths)]
    tensors[0] = tensors[0] * scale
    return tensors[4:], tensors[:4]


def by_the_textbook(
    vectors: list[Tensor], given: list[Tensor], causal: bool, factor: float
) -> tuple[Tensor, ...]:
    leaves = [x.double().requires_grad_() for x in given]
    gradients = attention_gradients(*leaves[:3], None, causal, factor, leaves[3])[:3]
    return torch.autograd.grad(gradients, leaves, [v.double() for v in vectors])


def near(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], within: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.double() - theirs).norm() <= within * theirs.norm() + 1e-5
        assert ours.isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_derivatives_are_those_of_the_textbook(device: torch.device, shape: str, causal: bool) -> None:
    vectors, given = problem(shape, torch.float32 if shape != "a wide head" else torch.float16)
    assert attention.takes(*given)
    factor = 1 / math.sqrt(given[0].shape[-1])
    found = attention.attention_twice(tuple(vectors), tuple(given), causal, factor)
    within = 3e-6 if found[0].dtype is torch.float32 else 2e-3
    near(found, by_the_textbook(vectors, given, causal, factor), within)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_loses_no_more_than_its_last_bits(
    device: torch.device, causal: bool, dtype: torch.dtype
) -> None:
    vectors, given = problem("several tiles", dtype)
    found = attention.attention_twice(tuple(vectors), tuple(given), causal, 0.2)
    assert all(x.dtype is dtype for x in found)
    near(found, by_the_textbook(vectors, given, causal, 0.2), 2 * torch.finfo(dtype).eps)


def test_scores_that_are_far_apart(device: torch.device) -> None:
    for scale, within in (
        (30.0, 1e-4),
        (1000.0, 0.2),
    ):  # the more, the less is left of a softmax to be derived
        vectors, given = problem("several tiles", torch.float32, scale)
        found = attention.attention_twice(tuple(vectors), tuple(given), True, 1.0)
        near(found, by_the_textbook(vectors, given, True, 1.0), within)


def test_rows_that_do_not_lie_in_order(device: torch.device) -> None:
    vectors, given = problem("several tiles", torch.float32)
    turned = [x.mT.contiguous().mT for x in (*vectors, *given)]
    found = attention.attention_twice(tuple(turned[:3]), tuple(turned[3:]), False, 0.5)
    near(found, by_the_textbook(vectors, given, False, 0.5), 3e-6)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_torch_and_can_be_derived(
    device: torch.device, causal: bool, batched: bool
) -> None:
    vectors, given = problem("several tiles", torch.float32)
    leaves = [x.requires_grad_() for x in given]
    found = AttentionGradients.apply(causal, 0.3, *leaves)
    expected = attention_gradients(*(x.double() for x in leaves[:3]), None, causal, 0.3, leaves[3].double())
    near(found, expected[:3], 1e-5 if device.type == "cpu" else 2e-3)
    twice = by_the_textbook(vectors, given, causal, 0.3)
    if batched:
        pairs = [torch.stack([v, -v]) for v in vectors]
        rows = torch.autograd.grad(found, leaves, pairs, is_grads_batched=True)
        near(tuple(-x[1] for x in rows), twice, 2e-5)
        near(tuple(x[0] for x in rows), twice, 2e-5)
    else:
        near(torch.autograd.grad(found, leaves, vectors), twice, 3e-6)


def test_what_it_does_not_take(device: torch.device) -> None:
    _, (q, k, v, o) = problem("one tile", torch.float32)
    assert not attention.takes(q.double(), k.double(), v.double(), o.double())
    assert not attention.takes(q, k[:, :1], v[:, :1], o)
    assert not attention.takes(q, k, v[..., :4], o[..., :4])
    assert not attention.takes(q, k.bfloat16(), v, o)
    assert not attention.takes(q[:0], k[:0], v[:0], o[:0])
    assert not attention.takes(*(x.repeat(1, 1, 1, 5) for x in (q, k, v, o)))
