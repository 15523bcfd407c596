from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cockpit import Cockpit, Run
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Outer
from cockpit.engine.steps.factored import Factored

F64 = torch.float64


def gradients(seed: int, n: int = 4, inputs: int = 30, outputs: int = 20, uses: int = 1) -> ExampleGradients:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=F64)

    part = Outer(normal(n, 1, uses, inputs), normal(n, 1, uses, outputs), torch.Size((outputs, inputs)))
    return ExampleGradients("w", nn.Parameter(normal(outputs, inputs)), (part,))


def test_projections_on_a_sum_of_gradients() -> None:
    before, now = gradients(0), gradients(1, n=6)
    kept = Factored.of(before, [])
    assert kept is not None
    torch.testing.assert_close(kept.dense(), before.total())
    torch.testing.assert_close(kept.dot(now), now.dot(before.total()))


def test_gradients_of_several_uses_are_projected_too() -> None:
    kept, now = Factored.of(gradients(0), []), gradients(1, uses=3)
    assert kept is not None
    torch.testing.assert_close(kept.dot(now), now.dot(kept.dense()))


def test_nothing_is_kept_where_the_sum_is_smaller() -> None:
    assert Factored.of(gradients(0, n=13), []) is None, "13 · 50 > 600"
    assert Factored.of(gradients(0, uses=2), []) is None
    assert Factored.of(gradients(0, n=12), []) is not None


def test_factors_of_which_somebody_has_overwritten_one() -> None:
    for which in ("a", "b"):
        g = gradients(0)
        kept = Factored.of(g, [])
        assert kept is not None
        assert kept.intact
        getattr(g.parts[0], which).zero_()
        assert not kept.intact


def trained(folder: Path, fast: bool, resume: bool = False) -> dict[tuple[int, str], float]:
    """Train a layer wide enough for factors; read alpha of the model and of its weight."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 3)).double()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    cockpit = Cockpit(model, opt, quantities=["alpha"], run=folder, fast=fast)
    kept = []
    for step in range(7):
        if resume and step == 5:
            state = cockpit.state_dict()
            cockpit.close()
            cockpit = Cockpit(model, opt, quantities=["alpha"], run=folder, fast=fast)
            cockpit.load_state_dict(state)
        x = torch.randn(5, 30, generator=draw, dtype=F64)
        cockpit.backward(model(x).square().sum(1))
        opt.step()
        opt.zero_grad()
        kept.append(any(isinstance(v, Factored) for v, _ in cockpit._engine.motion.last.values()))
    cockpit.close()
    assert any(kept) is fast
    run = Run(folder)
    return {
        (int(t), scope): float(v)
        for scope in ("", "0.weight")
        for t, v in zip(*run.series("alpha", scope).to_numpy(), strict=True)
    }


@pytest.mark.parametrize("resume", [False, True])
def test_slopes_along_the_last_step_are_those_of_the_plain_way(tmp_path: Path, resume: bool) -> None:
    found, expected = trained(tmp_path / "fast", True, resume), trained(tmp_path / "plain", False)
    assert found == pytest.approx(expected, rel=1e-8)
    assert len(found) == 12
