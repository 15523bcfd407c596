from __future__ import annotations

import gc
import math
import threading
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from cockpit.engine.curvature.hessian import HessianProduct
from cockpit.engine.derivatives.attention import twice_differentiable_attention
from cockpit.errors import Gap

F64 = torch.float64
ORIGINAL = F.scaled_dot_product_attention


def inputs(kv_heads: int = 4, dtype: torch.dtype = F64, **shape: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    length, width = shape.get("length", 5), shape.get("width", 8)
    heads = [4, kv_heads, kv_heads]
    return [
        torch.randn(2, h, length, width, dtype=F64, generator=g).to(dtype).requires_grad_() for h in heads
    ]


def half_hidden(length: int = 5) -> Tensor:
    keep = torch.rand(2, 1, length, length, generator=torch.Generator().manual_seed(3)) > 0.4
    keep[..., 0] = True
    return keep


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "bool mask": {"attn_mask": half_hidden()},
    "float mask": {"attn_mask": torch.where(half_hidden(), 0.5, -math.inf).double()},
    "grouped heads": {"enable_gqa": True, "is_causal": True},
}


def tensors(case: str) -> list[Tensor]:
    return inputs(kv_heads=2 if case == "grouped heads" else 4)


def hessian_rows(attention_inputs: list[Tensor], result: Tensor) -> Tensor:
    losses = (result.sin() + result**2).flatten(1).sum(1)
    product = HessianProduct([(losses, 1.0)], {str(k): x for k, x in enumerate(attention_inputs)})
    g = torch.Generator().manual_seed(1)
    return product.rows(torch.randn(4, product.flat.size, dtype=F64, generator=g))


@pytest.mark.parametrize("case", CASES)
def test_second_derivatives_equal_the_plain_formulas(case):
    with sdpa_kernel(SDPBackend.MATH):
        q, k, v = tensors(case)
        expected = hessian_rows([q, k, v], F.scaled_dot_product_attention(q, k, v, **CASES[case]))
    q, k, v = tensors(case)
    with twice_differentiable_attention():
        result = F.scaled_dot_product_attention(q, k, v, **CASES[case])
    assert "Exit" in type(result.grad_fn).__name__, "the kernel was not a fused one"
    torch.testing.assert_close(hessian_rows([q, k, v], result), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_result_and_gradients_are_those_of_the_kernel_to_the_bit(case, dtype):
    def run() -> list[Tensor]:
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in tensors(case))
        options = dict(CASES[case])
        if options.get("attn_mask", half_hidden()).dtype == F64:
            options["attn_mask"] = options["attn_mask"].to(dtype)
        result = F.scaled_dot_product_attention(q, k, v, **options)
        weight = torch.randn(result.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
        return [result, *torch.autograd.grad(result, (q, k, v), weight)]

    expected = run()
    with twice_differentiable_attention():
        found = run()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_one_tensor_as_query_key_and_value():
    def run() -> tuple[Tensor, Tensor]:
        x = inputs()[0]
        result = F.scaled_dot_product_attention(x, x, x)
        (first,) = torch.autograd.grad(result.square().sum(), x, retain_graph=True)
        return first, hessian_rows([x], result)

    with sdpa_kernel(SDPBackend.MATH):
        _, expected = run()
    plain = inputs()[0]
    (gradient,) = torch.autograd.grad(
        F.scaled_dot_product_attention(plain, plain, plain).square().sum(), plain
    )
    with twice_differentiable_attention():
        first, found = run()
    assert torch.equal(first, gradient)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_rows_that_may_look_nowhere_give_zero():
    q, k, v = inputs()
    mask = half_hidden()
    mask[0, :, 2] = False
    with twice_differentiable_attention():
        result = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    rows = hessian_rows([q, k, v], result)
    assert result[0, :, 2].abs().sum() == 0
    assert bool(rows.isfinite().all())


def test_frozen_inputs_stay_frozen():
    q, k, v = inputs()
    q.requires_grad_(False)
    with sdpa_kernel(SDPBackend.MATH):
        expected = hessian_rows([k, v], F.scaled_dot_product_attention(q, k, v))
    with twice_differentiable_attention():
        found = hessian_rows([k, v], F.scaled_dot_product_attention(q, k, v))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    assert q.grad is None


def test_a_learned_mask_keeps_its_gradient():
    def run() -> list[Tensor]:
        q, k, v = inputs(dtype=torch.float32)
        bias = torch.linspace(-1, 1, 25).reshape(5, 5).requires_grad_()
        result = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return [result, *torch.autograd.grad(result.square().sum(), (q, k, v, bias))]

    expected = run()
    with twice_differentiable_attention():
        found = run()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_dropout_is_left_alone():
    q, k, v = inputs()

    def run() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5), torch.get_rng_state()

    expected, state = run()
    with twice_differentiable_attention():
        found, after = run()
    assert torch.equal(found, expected)
    assert torch.equal(after, state)


@pytest.mark.parametrize("wrap", [torch.no_grad, torch.inference_mode])
def test_calls_without_gradients_are_untouched(wrap):
    with twice_differentiable_attention(), wrap():
        result = F.scaled_dot_product_attention(*inputs())
    assert result.grad_fn is None


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch.func.jvp's own
def test_functional_transforms_are_untouched():
    q, k, v = (x.detach() for x in inputs())

    def loss(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v).square().sum()

    with sdpa_kernel(SDPBackend.MATH):
        expected = torch.func.jvp(loss, (q,), (torch.ones_like(q),))[1]
        with twice_differentiable_attention():
            found = torch.func.jvp(loss, (q,), (torch.ones_like(q),))[1]
            rows = torch.func.vmap(torch.func.grad(loss))(torch.stack([q, q]))
    assert torch.equal(found, expected)
    assert torch.equal(rows[0], rows[1])


def block() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).to(F64)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True).to(F64)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("make", [block, SelfAttention])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_modules_have_exact_hessian_products(make, checkpointed):
    model = make()
    x = torch.randn(3, 5, 8, dtype=F64, generator=torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(2)

    def rows(result: Tensor) -> Tensor:
        product = HessianProduct([(result.sin().flatten(1).sum(1), 1.0)], dict(model.named_parameters()))
        vectors = torch.randn(2, product.flat.size, dtype=F64, generator=g.manual_seed(2))
        return torch.stack([product(v) for v in vectors])

    with sdpa_kernel(SDPBackend.MATH):
        expected = rows(model(x))
    with pytest.raises(Gap, match=r"^no_double_backward"):
        rows(model(x))
    with twice_differentiable_attention():
        result = checkpoint(model, x, use_reentrant=False) if checkpointed else model(x)
        found = rows(result)
        result.sum().backward()  # the graph is still good
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_training_is_the_same_to_the_bit(dropout, autocast, checkpointed):
    def train(around: object) -> tuple[list[Tensor], Tensor]:
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        data = torch.Generator().manual_seed(1)
        for _ in range(4):
            x = torch.randn(3, 5, 8, generator=data)
            with around() if callable(around) else nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    y = checkpoint(model, x, use_reentrant=False) if checkpointed else model(x)
                y.float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach() for p in model.parameters()], torch.get_rng_state()

    expected, state = train(None)
    found, after = train(twice_differentiable_attention)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(state, after)


def test_products_under_autocast_are_near_the_exact_ones():
    model = block().float()
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))

    def product(autocast: bool) -> Tensor:
        with twice_differentiable_attention(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            losses = model(x).float().sin().flatten(1).sum(1)
        h = HessianProduct([(losses, 1.0)], dict(model.named_parameters()))
        return h(torch.ones(h.flat.size))

    exact, rounded = product(False), product(True)
    assert float((rounded - exact).norm() / exact.norm()) < 0.05


def test_the_graph_can_be_used_again_and_again():
    q, k, v = inputs()
    with twice_differentiable_attention():
        result = F.scaled_dot_product_attention(q, k, v)
    first = [torch.autograd.grad(result.sum(), q, retain_graph=True)[0] for _ in range(3)]
    rows = [hessian_rows([q, k, v], result) for _ in range(2)]
    assert torch.equal(first[0], first[2])
    assert torch.equal(rows[0], rows[1])


def test_memory_is_let_go_with_the_graph_and_by_an_ordinary_backward():
    kept = []
    with twice_differentiable_attention():
        q, k, v = inputs()
        product = q * 2
        kept.append(weakref.ref(product))
        result = F.scaled_dot_product_attention(product, k, v)
        del product
        gc.disable()
        try:
            loss = result.square().sum()
            loss.backward()
            assert kept[0]() is None, "backward freed its graph but the activation lives"
            again = F.scaled_dot_product_attention(q, k, v)
            (g,) = torch.autograd.grad(again.square().sum(), q, create_graph=True)
            kept.append(weakref.ref(again))
            del g, again
            assert kept[1]() is None, "a reference cycle keeps the graph"
        finally:
            gc.enable()


def test_the_function_is_put_back_even_when_blocks_nest_or_fail():
    with twice_differentiable_attention():
        inside = F.scaled_dot_product_attention
        with pytest.raises(ZeroDivisionError), twice_differentiable_attention():
            raise ZeroDivisionError
        assert F.scaled_dot_product_attention is inside is not ORIGINAL
    assert F.scaled_dot_product_attention is ORIGINAL


def test_somebody_elses_wrapper_survives():
    calls = []

    def theirs(*args: Tensor, **more: object) -> Tensor:
        calls.append(len(args))
        return ours(*args, **more)

    try:
        with twice_differentiable_attention():
            ours = F.scaled_dot_product_attention
            F.scaled_dot_product_attention = theirs
        assert F.scaled_dot_product_attention is theirs
        assert F.scaled_dot_product_attention(*inputs()).grad_fn.name().startswith("ScaledDotProduct")
        with twice_differentiable_attention():
            q, k, v = inputs()
            hessian_rows([q, k, v], F.scaled_dot_product_attention(q, k, v))
        assert F.scaled_dot_product_attention is theirs
        assert calls == [3, 3]
    finally:
        F.scaled_dot_product_attention = ORIGINAL


def test_several_threads():
    expected = ORIGINAL(*inputs())
    failures: list[str] = []

    def work() -> None:
        for _ in range(20):
            with twice_differentiable_attention():
                q, k, v = inputs()
                result = F.scaled_dot_product_attention(q, k, v)
                if not torch.equal(result, expected):
                    failures.append("value")
                hessian_rows([q, k, v], result)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert F.scaled_dot_product_attention is ORIGINAL


def test_compiled_code_meets_the_original():
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v) * 2

    expected = attend(*inputs())
    with twice_differentiable_attention():
        compiled = torch.compile(attend, backend="eager", fullgraph=True)
        found = compiled(*inputs())
    assert torch.equal(found, expected)
