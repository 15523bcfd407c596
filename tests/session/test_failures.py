"""What fails inside our hooks, in the middle of the user's own passes, never reaches the training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cockpit import Cockpit, Run, attach


def trained(start: Callable[..., Cockpit] | None, folder: Path, blind: bool = False) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cockpit = start(model, optimizer, quantities=["grad_norm", "norm_test"], run=folder) if start else None
    for _ in range(3):
        x, y = torch.randn(5, 4).double(), torch.randint(3, (5,))
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        if cockpit is None or start is attach:
            losses.mean().backward()
        else:
            with cockpit.watch(None if blind else losses):
                losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if cockpit is not None:
        cockpit.close()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(
    ("place", "start", "blind"),
    [
        ("cockpit.engine.steps.batch.Batch.weigh", Cockpit, False),
        ("cockpit.engine.steps.accumulated.Accumulated.weigh", Cockpit, False),
        ("cockpit.engine.seeing.capture.Use.__init__", Cockpit, False),
        ("cockpit.engine.steps.passes.Passes._prepare", Cockpit, True),
        ("cockpit.engine.steps.passes.gradient_versions", attach, False),
        ("cockpit.engine.seeing.proxy.Proxy.__init__", attach, False),
    ],
)
def test_a_failing_hook_is_an_event(
    place: str, start: Callable[..., Cockpit], blind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = trained(None, tmp_path)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(place, broken)
    watched = trained(start, tmp_path / "run", blind)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    events = Run(tmp_path / "run").events()
    assert events, "something must be told"
    run = Run(tmp_path / "run")
    if "Batch.weigh" in place or "Accumulated.weigh" in place:
        assert any("on purpose" in e.text for e in events)
        assert "norm_test" not in run.names(), "nothing of a spoiled step may be stored as a value"


def test_a_pass_broken_off_between_others_spoils_the_step_and_no_more(tmp_path: Path):
    """What is left of the step would be stored as if it were whole, so nothing of it is."""
    model = nn.Linear(4, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(5, 4).double(), torch.randint(3, (5,))

    def losses() -> Tensor:
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    with Cockpit(model, optimizer, quantities=["norm_test"], run=tmp_path) as cockpit:
        for step in range(3):
            cockpit.backward(losses())
            if step == 1:
                with pytest.raises(KeyError), cockpit.watch(losses()):
                    raise KeyError("of the user's")
            cockpit.backward(losses())
            optimizer.step()
            optimizer.zero_grad()
    assert Run(tmp_path).series("norm_test").steps.tolist() == [0, 2]
