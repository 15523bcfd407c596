"""Functions of ours, called by hand as by the engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cockpit.engine.derivatives.derive import by_hand, derivatives
from cockpit.engine.derivatives.walked import Walked
from layer_check import normal


class Scaled(Walked):
    """Several arguments, of which some are no tensors, and several results."""

    @staticmethod
    def forward(ctx: Any, factor: float, x: Tensor, nothing: None, y: Tensor) -> tuple[Tensor, Tensor]:
        Scaled.note(ctx, factor, x, nothing, y)
        ctx.factor = factor
        ctx.save_for_backward(x, y)
        return factor * x * y, x.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        product, total = grads
        x, y = ctx.saved_tensors
        by_x, by_y = torch.zeros_like(x), torch.zeros_like(y)
        if product is not None:
            by_x, by_y = ctx.factor * product * y, ctx.factor * product * x
        return None, by_x if total is None else by_x + total, None, by_y


class Foreign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g


@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)])
def test_by_hand_and_by_the_engine(used: tuple[bool, bool]) -> None:
    x, y = (normal(3, seed=k).requires_grad_() for k in (1, 2))
    product, total = Scaled.apply(2.0, x, None, y)  # type: ignore[no-untyped-call]
    loss = sum(part.square().sum() for part, wanted in zip((product, total), used, strict=True) if wanted)
    assert isinstance(loss, Tensor)
    theirs = torch.autograd.grad(loss, (x, y), retain_graph=True)
    with by_hand():
        ours = derivatives(loss, (x, y), torch.ones(()).double())
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


def test_they_can_be_derived_again() -> None:
    x, y = (normal(3, seed=k).requires_grad_() for k in (1, 2))
    product, _ = Scaled.apply(2.0, x, None, y)  # type: ignore[no-untyped-call]
    with by_hand():
        (first,) = derivatives(product.sum(), (x,), torch.ones(()).double(), create_graph=True)
    assert first is not None
    (second,) = torch.autograd.grad(first.sum(), (y,))
    assert second.tolist() == [2.0] * 3


def test_those_of_others_are_not_called() -> None:
    x = normal(3).requires_grad_()
    loss = Foreign.apply(x).sum()  # type: ignore[no-untyped-call]
    with by_hand(), pytest.raises(RuntimeError, match="ForeignBackward is written in Python"):
        derivatives(loss, (x,), torch.ones(()).double())
