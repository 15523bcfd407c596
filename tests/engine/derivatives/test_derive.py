"""Derivatives by hand are those of autograd's engine, and leave the graph as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import compress, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cockpit.engine.derivatives.derive import by_hand, derivatives, is_by_hand
from cockpit.engine.derivatives.lean import LEAN, Call
from layer_check import filled, normal


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=g).requires_grad_()


COMPLEX = partial(leaf, dtype=torch.complex128)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2, bias=False)), (3, 4)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 2, 2)), (2, 2, 5, 4)),
    "groups, dilation": (lambda: nn.Conv2d(4, 6, 2, dilation=2, groups=2), (2, 4, 5, 5)),
    "stride, no bias": (lambda: nn.Conv2d(2, 3, 3, 2, padding=(1, 0), bias=False), (2, 2, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 4, 3, 2, output_padding=1, groups=2), (2, 2, 3, 3)),
    "1d": (lambda: nn.Conv1d(2, 3, 3), (2, 2, 7)),
    "3d": (lambda: nn.Conv3d(2, 2, 2), (2, 2, 3, 4, 3)),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3)), (3, 2, 4, 4)),
    "layer norm": (lambda: nn.LayerNorm(5), (3, 5)),
    "pooling": (lambda: nn.Sequential(nn.MaxPool2d(2, 1), nn.AvgPool2d(2)), (2, 2, 5, 5)),
    "relu": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Tanh()),
        (2, 2, 6, 7),
    ),
}
GRAPHS = [*LAYERS, "twice", "embedding", "losses", "broadcast", "views", "pieces", "in_place", "casts"]
GRAPHS += ["complex", "products"]


def graph(name: str) -> tuple[list[Tensor], list[Tensor]]:
    x, w, c, r = leaf(4, 6), leaf(6, 4, seed=1), leaf(4, 1, seed=2), leaf(6, seed=3)
    match name:
        case "twice":
            layer = filled(nn.Linear(6, 6))
            y = x + layer(layer(x).tanh()).sin()
            return [(y + y.sin() * y).sum(1)], [x, *layer.parameters()]
        case "embedding":
            table = filled(nn.Embedding(6, 3, padding_idx=2))
            return [table(torch.tensor([[1, 2, 5], [1, 1, 0]])).tanh().mean(1)], [*table.parameters()]
        case "losses":
            entropy = F.cross_entropy(x, torch.tensor([0, 4, 2, 2]), normal(6).abs(), reduction="none")
            return [entropy, F.mse_loss(x.softmax(-1), w.T, reduction="none").mean(1)], [x, w]
        case "broadcast":
            return [(x * r + r[:1]).tanh() / (1 + c * c)], [x, r, c]
        case "views":
            y = x.sin().view(2, 2, 6).transpose(0, 2).reshape(6, 4)[1::2].unsqueeze(0).expand(2, 3, 4)
            return [y * y, x.cos().T.diagonal(), x.exp()[:, [0, 0, 3]]], [x]
        case "pieces":  # of some results nothing is used
            first, _, third = x.sin().split([1, 3, 2], 1)
            left, right = x.cos().chunk(2, 0)
            return [torch.cat([third * c, first], 1).tanh(), left * left, right.unbind(1)[2].exp()], [x, c]
        case "in_place":
            y = (x * 2).mul_(3.0)
            y[:, 2:3] = c * 2
            return [y.relu_() * 2, x.sin().relu_().tanh()], [x, c]
        case "casts":
            y = x.float().tanh().double() @ w
            return [y.float().exp(), y.half().double().sin(), (x.half() * x).exp()], [x, w]
        case "complex":
            z, b, y = COMPLEX(3, 6), COMPLEX(4, seed=5), torch.complex(w, w.sin())
            return [torch.view_as_real(z @ y).square(), torch.addmm(b, z, y).abs(), (z @ y).real], [z, w, b]
        case "products":
            y = torch.addmm(c, x, w, beta=0.5, alpha=-2.0)
            cubes = torch.baddbmm(c, x.expand(2, 4, 6), w.expand(2, 6, 4)).tanh()
            return [cubes, torch.einsum("ij,jk->k", x, w), y @ c], [x, w, c]
    make, shape = LAYERS[name]
    module, image = filled(make(), seed=3), leaf(*shape, seed=7)
    return [module(image).tanh()], [image, *module.parameters()]


def vectors_for(outputs: Sequence[Tensor], *lead: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(20)
    return [torch.randn(*lead, *y.shape, dtype=y.dtype, generator=g) for y in outputs]


def hand(*args: Any, **settings: Any) -> tuple[Any, ...]:
    with by_hand():
        return derivatives(*args, **settings)


def engine(*args: Any, **settings: Any) -> tuple[Any, ...]:
    return torch.autograd.grad(*args, retain_graph=True, allow_unused=True, **settings)


def close(found: Sequence[Tensor | None], expected: Sequence[Tensor | None], rtol: float = 1e-12) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert theirs is not None or ours is None
        if ours is None and theirs is not None:  # where torch makes zeros of what cannot be anything else
            assert not theirs.any()
        if ours is not None and theirs is not None:
            assert ours.requires_grad == theirs.requires_grad
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=1e-12)


def agree(*args: Any) -> None:
    close(hand(*args), engine(*args))


def again(outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Tensor]) -> None:
    """Derive gradients again, by the vectors as well."""
    ways = [way(outputs, inputs, vectors, create_graph=True) for way in (hand, engine)]
    close(*ways)
    ours, theirs = ([g for g in way if g is not None and g.requires_grad] for way in ways)
    moving, signs = [*inputs, *(v for v in vectors if v.requires_grad)], vectors_for(ours)
    if ours:
        close(hand(ours, moving, signs), engine(theirs, moving, signs))
        close(*(way(ours, moving, signs, create_graph=True) for way in (hand, engine)))


@pytest.mark.parametrize("name", GRAPHS)
def test_gradients_are_those_of_the_engine_and_the_graph_stays_as_it_was(name: str) -> None:
    outputs, inputs = graph(name)
    expected = engine(outputs, inputs, vectors := vectors_for(outputs))
    close(hand(outputs, inputs, vectors), expected, rtol=1e-6 if name == "casts" else 1e-12)
    torch.autograd.backward(outputs, vectors)
    assert all(torch.equal(x.grad, g) for x, g in zip(inputs, expected, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in GRAPHS if name != "casts"])
def test_gradients_are_derived_again(name: str) -> None:
    outputs, inputs = graph(name)
    again(outputs, inputs, [v.requires_grad_() for v in vectors_for(outputs)])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ["linear", "conv", "transposed", "stride, no bias", "layer norm", "pieces"])
def test_several_vectors_at_once(name: str) -> None:
    outputs, inputs = graph(name)
    first = [g for g in hand(outputs, inputs, vectors_for(outputs), create_graph=True) if g.requires_grad]
    for starts in (outputs, first):
        rows = vectors_for(starts, 3)
        close(hand(starts, inputs, rows, batched=True), engine(starts, inputs, rows, is_grads_batched=True))


def test_ends_in_the_middle_and_edges() -> None:
    x, unused = leaf(3, 4), leaf(2)
    both = x.sin().split(2, 1)
    late = both[0] * both[1]
    y, z = late.exp(), late.cos().sum(1)
    vectors, inputs = vectors_for([y, z]), [late, both[1], x, unused, y, late]
    agree([y, z], inputs, vectors)
    assert hand([y, z], inputs, vectors)[3] is None
    agree([get_gradient_edge(t) for t in (y, z)], [get_gradient_edge(t) for t in inputs], vectors)
    agree(z, [x], vectors[1])
    for starts in ([late, y], [y, late]):  # one behind the other
        agree(starts, [x, late], vectors_for(starts))


def test_hooks_are_called_by_the_engine_alone() -> None:
    (y,), inputs = graph("linear")
    y.register_hook((seen := list[Tensor]()).append)
    found = derivatives(y, [*inputs, leaf(1)], torch.ones_like(y))
    close(found, [*hand(y, inputs, torch.ones_like(y)), None])
    assert len(seen) == 1


def test_functions_written_in_python_are_not_served() -> None:
    x, w = leaf(3), leaf(3, seed=1)
    y = w * checkpoint(torch.sin, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="CheckpointFunctionBackward is written in Python"):
        hand(y, [x], torch.ones_like(y))
    agree(y, [w], torch.ones_like(y))  # nobody needs its gradient


def test_complex_factors() -> None:
    b, x, w = COMPLEX(2), COMPLEX(3, 4, seed=2), COMPLEX(4, 2, seed=4)
    y = torch.addmm(b, x, w, beta=0.5 - 1j, alpha=1 + 2j)
    agree([y], [b, x, w], vectors_for([y]))


CONVOLVED = [leaf(2, 2, 4, 4), leaf(3, 2, 3, 3, seed=1), leaf(3, seed=2)]
ADDED = [leaf(2), leaf(3, 4, seed=1), leaf(4, 2, seed=2)]
CALLS: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
    "MmBackward0": (torch.mm, ADDED[1:]),
    "AddmmBackward0": (partial(torch.addmm, beta=0.5, alpha=3), ADDED),
    "ConvolutionBackward0": (partial(F.conv2d, stride=2, padding=1), CONVOLVED),
}


@pytest.mark.parametrize("name", CALLS)
def test_lean_formulas_give_what_is_needed_alone(name: str) -> None:
    call, inputs = CALLS[name]
    (v,) = vectors_for([y := call(*inputs)])
    for needed in product([True, False], repeat=len(inputs)):
        found = LEAN[name](y.grad_fn, Call([v], list(needed)))
        assert [g is not None for g in found] == list(needed)
        if wanted := list(compress(inputs, needed)):
            agree(y, wanted, v)


@pytest.mark.parametrize("count", [2, 3])
def test_gradients_of_convolutions_give_what_is_needed_alone(count: int) -> None:
    y = F.conv2d(*CONVOLVED[:count], stride=2, padding=1)
    delta = vectors_for([y])[0].requires_grad_()
    first = engine(y, CONVOLVED[:count], delta, create_graph=True)
    assert {g.grad_fn.name() for g in first} == {"ConvolutionBackwardBackward0"}
    for come, needed in product(product([True, False], repeat=count), product([True, False], repeat=3)):
        outputs, wanted = list(compress(first, come)), list(compress([delta, *CONVOLVED], needed))
        if outputs and wanted:
            found, expected = (way(outputs, wanted, vectors_for(outputs)) for way in (hand, engine))
            nothing = [g is None and e is not None for g, e in zip(found, expected, strict=True)]
            assert not any(map(torch.any, compress(expected, nothing)))  # torch makes zeros of it
            close(
                *([None if n else g for g, n in zip(way, nothing, strict=True)] for way in (found, expected))
            )


def test_by_hand_is_of_one_thread_and_one_block() -> None:
    with by_hand(), ThreadPoolExecutor(1) as elsewhere:
        assert not elsewhere.submit(is_by_hand).result()
        with pytest.raises(ValueError, match="inside"), by_hand():
            raise ValueError("inside")
        assert is_by_hand()
    assert not is_by_hand()


STEPS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: torch.addmm(a, b, a @ b),
    lambda a, b: a * b[0] + b[:, :1],
    lambda a, b: torch.cat(a.chunk(3, 1)[:2] + b.split([1, 2], 1)[:1], 1),
    lambda a, b: F.conv1d(a.unsqueeze(0), b.unsqueeze(2)).squeeze(0).tanh(),
    lambda a, b: torch.where(a > b, a.T, b.sin()),
]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(*map(st.integers, (0, 0, 0), (len(STEPS) - 1, 9, 9))), min_size=1, max_size=8))
def test_any_small_graph(steps: list[tuple[int, int, int]]) -> None:
    made = [leaf(3, 3, seed=k) / 3 for k in range(3)]
    for step, i, j in steps:
        made.append(STEPS[step](made[i % len(made)], made[j % len(made)]) / 2)
    outputs, inputs = made[-2:], made[:4]
    agree(outputs, inputs, vectors_for(outputs))
    again(outputs, inputs, vectors_for(outputs))
