"""What is kept of a step while it is watched."""

from __future__ import annotations

from cockpit.engine.accumulated import Accumulated
from cockpit.engine.step import Step
from cockpit.engine.table import Table
from layer_check import normal


def test_gradient_versions_tell_every_change() -> None:
    p = normal(2).requires_grad_()
    step = Step({"p": p, "spare": normal(1)}, Table({}), Accumulated({}))
    assert step.gradient_versions() == [None, None]
    (p * 2).sum().backward()
    seen = [step.gradient_versions()]
    assert p.grad is not None
    p.grad.mul_(0.5)
    seen.append(step.gradient_versions())
    p.grad = p.grad.clone()
    seen.append(step.gradient_versions())
    assert [found is None for found in seen[0]] == [False, True]
    assert seen[0] != seen[1] != seen[2]
    assert step.gradient_versions() == seen[2]
