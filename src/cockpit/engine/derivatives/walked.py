"""Functions of ours, written in Python, that a walk by hand can call as well as autograd's engine does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node


class Walked(torch.autograd.Function):
    """Whose ``backward`` needs no more than the gradients and what ``forward`` has kept.

    ``forward`` has to `note` its arguments, and ``backward`` to bear that some of several gradients are None.
    """

    settings: tuple[str, ...] = ()
    """Where ``forward`` keeps what ``backward`` depends on besides tensors."""

    @staticmethod
    def note(ctx: Any, *arguments: object) -> None:
        """Keep which arguments are tensors: ``backward`` returns something for each of them, the graph has tensors."""
        ctx.are_tensors = [isinstance(a, Tensor) for a in arguments]
        ctx.set_materialize_grads(False)


def function_of(node: Node) -> type[Walked]:
    """Return whose node this is, one of ours; an error if it is somebody else's."""
    function: Any = getattr(type(node), "_forward_cls", None)
    if function is None or not issubclass(function, Walked):
        raise RuntimeError(f"{node.name()} is written in Python")
    return function  # type: ignore[no-any-return]


def called(node: Node, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Return the results of such a node."""
    found: Any = function_of(node).backward(node, *grads)
    each = found if isinstance(found, tuple) else (found,)
    are_tensors: list[bool] = node.are_tensors  # type: ignore[attr-defined]
    return tuple(g for g, is_one in zip(each, are_tensors, strict=True) if is_one)
