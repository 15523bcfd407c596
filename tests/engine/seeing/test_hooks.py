"""Hooks of the user's on tensors are noticed, ours are not, and torch is left as it was."""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit.engine.seeing.hooks import Hooks, own_hooks, register_own


def test_whose_hooks_are_noticed() -> None:
    hooks, original = Hooks(), Tensor.register_hook
    w = torch.ones(3, requires_grad=True)
    with hooks.noticed():
        with own_hooks():
            (2 * w).register_hook(lambda g: g)
        ours: list[Tensor] = []
        x = 2 * w
        register_own(x, ours.append)
        x.sum().backward()
        assert [g.tolist() for g in ours] == [[1.0] * 3]
        assert not hooks.on([w])
        seen: list[Tensor] = []
        y = 2 * w
        handle = y.register_hook(seen.append)
        assert hooks.on([])
        y.sum().backward()
        handle.remove()
        (3 * w).sum().backward()
    assert [g.tolist() for g in seen] == [[1.0] * 3], "the hook did what hooks do"
    assert Tensor.register_hook is original
    with hooks.noticed():
        assert not hooks.on([w]), "what was before is forgotten"


def test_hooks_on_parameters_are_seen_as_long_as_they_are_there() -> None:
    hooks, w = Hooks(), torch.ones(3, requires_grad=True)
    handle = w.register_hook(lambda g: 2 * g)
    assert hooks.on([w])
    handle.remove()
    assert not hooks.on([w])


def test_blocks_that_end_out_of_order_leave_nothing_behind() -> None:
    first, second, original = Hooks(), Hooks(), Tensor.register_hook
    a, b = first.noticed(), second.noticed()
    a.__enter__()
    b.__enter__()
    torch.ones(1, requires_grad=True).register_hook(lambda g: g)
    assert first.seen
    assert second.seen
    a.__exit__(None, None, None)
    b.__exit__(None, None, None)
    assert Tensor.register_hook is original
