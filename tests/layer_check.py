"""The oracle for layer formulas: explicit per-example autograd on the same graph, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Part
from cockpit.engine.layers.formula import Call, Layout, Replay, formula_for


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return float64 numbers that do not depend on the global random state."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    """Turn a module to float64 and give every parameter and running statistic a value of its own."""
    module = module.double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, dtype=p.dtype, generator=generator) * 0.5)
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(torch.rand(buffer.shape, dtype=buffer.dtype, generator=generator) + 0.5)
    return module


def losses_of(outputs: tuple[Tensor, ...], layouts: tuple[Layout, ...], n: int) -> Tensor:
    """One nonlinear loss for each example, in which every output element has a weight of its own."""
    total = torch.zeros(n, dtype=torch.float64, device=outputs[0].device)
    for k, (out, layout) in enumerate(zip(outputs, layouts, strict=True)):
        y = layout.split(out, n, 0)
        total = total + (torch.sin(1.3 * y) * normal(*y.shape, seed=17 + k).to(y) + 0.2 * y.square()).sum(1)
    return total


def tensors(output: Any) -> tuple[Tensor, ...]:
    """Return the output tensors that take part in differentiation, as capture sees them."""
    return tuple(t for t in tree_flatten(output)[0] if isinstance(t, Tensor) and t.requires_grad)


def trace(
    module: nn.Module,
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]],
    n: int,
    *,
    pick: int = 0,
    keep: Tensor | None = None,
    used: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = lambda outputs: outputs,
) -> tuple[Tensor, list[Call]]:
    """Run the calls and go back with uneven loss weights; return the losses and what a formula receives."""
    f = formula_for(module)
    assert f is not None
    device = next(module.parameters()).device
    weights = torch.linspace(0.5, 2, n, dtype=torch.float64, device=device)
    losses = torch.zeros(n, dtype=torch.float64, device=device)
    kept: list[Any] = []
    for args, kwargs in calls:
        assert f.refuses(module, args, kwargs) is None
        seen: dict[int, Tensor] = {}

        def detached(x: Any, seen: dict[int, Tensor] = seen) -> Any:
            return seen.setdefault(id(x), x.detach()) if isinstance(x, Tensor) else x

        stored = tree_map(detached, (args, kwargs))
        replay = Replay.now(device) if f.replays(module) else None
        watcher = f.observer if f.observer is not None and f.observer.wants(module) else None
        before = None if watcher is None else watcher.before(module)
        outputs = tensors(module(*args, **kwargs))
        observed = [] if watcher is None else watcher.after(module, before, list(outputs))
        assert not isinstance(observed, str), observed
        layouts = f.candidates(module, outputs, n)[pick]
        grads: list[Tensor | None] = [None] * len(outputs)

        def store(g: Tensor, k: int, grads: list[Tensor | None], layout: Layout) -> None:
            grads[k] = g / layout.expand(weights, g).to(g)

        for k, out in enumerate(outputs):
            out.register_hook(lambda g, k=k, grads=grads, layout=layouts[k]: store(g, k, grads, layout))
        chosen = used(outputs)
        where = [next(k for k, o in enumerate(outputs) if o is c) for c in chosen]
        losses = losses + losses_of(chosen, tuple(layouts[k] for k in where), n)
        kept.append((stored, grads, layouts, replay, tuple(observed)))
    (losses * weights).sum().backward(retain_graph=True)
    return losses, [
        Call(module, args, kwargs, tuple(grads), n, layouts, keep, replay, observed)
        for (args, kwargs), grads, layouts, replay, observed in kept
    ]


def gradients_of(calls: list[Call]) -> dict[str, ExampleGradients]:
    """Apply the formula to every call and join the parts by parameter."""
    module = calls[0].module
    f = formula_for(module)
    assert f is not None
    found: dict[str, list[Part]] = {}
    with torch.no_grad():
        for call in calls:
            for name, part in f.parts(call).items():
                found.setdefault(name, []).append(part)
    return {
        name: ExampleGradients(name, p, tuple(found.pop(name)))
        for name, p in module.named_parameters()
        if p.requires_grad
    }


def by_autograd(module: nn.Module, losses: Tensor) -> dict[str, Tensor]:
    """Return every parameter's individual gradients [N, *shape] by one backward pass for each example."""
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    rows = [
        torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
        for loss in losses
    ]
    return {
        name: torch.stack([torch.zeros_like(p) if r[k] is None else r[k].to_dense() for r in rows])
        for k, (name, p) in enumerate(named.items())
    }


def compare(found: ExampleGradients, expected: Tensor, rtol: float = 1e-9) -> None:
    """Ask every question of the gradients and compare with the written-out ones."""
    n, v = len(expected), normal(*expected.shape[1:], seed=5).to(expected)
    weights = normal(n, seed=6).to(expected)
    scale = float(expected.abs().max())
    assert scale > 0, f"{found.name}: nothing to compare"

    def close(got: Tensor, want: Tensor, size: float) -> None:
        torch.testing.assert_close(got, want, rtol=rtol, atol=rtol * size, msg=lambda m: f"{found.name}: {m}")

    flat = expected.reshape(n, v.numel())
    assert found.examples == n
    close(found.dense(0, n), expected, scale)
    close(found.dense(n // 2, n), expected[n // 2 :], scale)
    close(torch.cat(list(found.blocks())), expected, scale)
    close(found.dot(v), flat @ v.flatten(), scale)
    close(found.total(), expected.sum(0), scale)
    close(found.total(weights), torch.tensordot(weights, expected, dims=1), scale)
    close(found.norm2(), flat.square().sum(1), scale**2)
    close(found.square_sum(), expected.square().sum(0), scale**2)


def check(
    module: nn.Module,
    *args: Any,
    n: int,
    again: tuple[Any, ...] | None = None,
    pick: int = 0,
    keep: list[int] | None = None,
    used: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = lambda outputs: outputs,
    **kwargs: Any,
) -> None:
    """Compare a layer's formula with autograd for each example; ``again`` calls the layer a second time."""
    calls = [(args, kwargs)] + ([(again, kwargs)] if again is not None else [])
    rows = None if keep is None else torch.tensor(keep)
    losses, recorded = trace(module, calls, n, pick=pick, keep=rows, used=used)
    expected = by_autograd(module, losses)
    found = gradients_of(recorded)
    assert set(found) == set(expected)
    for name in found:
        compare(found[name], expected[name] if rows is None else expected[name][rows])
