"""What is kept of a step while it is watched."""

from __future__ import annotations

from cockpit.engine.steps.versions import gradient_versions
from layer_check import normal


def test_gradient_versions_tell_every_change() -> None:
    p = normal(2).requires_grad_()
    parameters = {"p": p, "spare": normal(1)}
    assert gradient_versions(parameters) == [None, None]
    (p * 2).sum().backward()
    seen = [gradient_versions(parameters)]
    assert p.grad is not None
    p.grad.mul_(0.5)
    seen.append(gradient_versions(parameters))
    p.grad = p.grad.clone()
    seen.append(gradient_versions(parameters))
    assert [found is None for found in seen[0]] == [False, True]
    assert seen[0] != seen[1] != seen[2]
    assert gradient_versions(parameters) == seen[2]
