"""Steps that are recorded together, in a row or at intervals: the same as if each had been recorded by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cockpit import Alpha, Cockpit, HessTrace, Quantity, Run, TICDiag, TICTrace
from cockpit.presets import ECONOMY
from cockpit.registry import make_preset
from cockpit.session import pending
from session.loops import (
    FIRST_ORDER,
    Training,
    batch,
    differences,
    events,
    losses_of,
    net,
    plain,
    records,
    sgd,
)

CURVED = [
    TICDiag(),
    TICTrace(),
    HessTrace(),
    HessTrace("diag_h", label="hessian"),
    HessTrace("diag_ggn_mc", 1, label="one draw"),
    HessTrace("diag_ggn_mc", 3, label="estimated"),
]


def at_intervals(names: Sequence[str], interval: int) -> list[Quantity]:
    """Make quantities that are due at every so many steps."""
    return [q for q in make_preset("economy", interval) if q.name in names]


def nan_at_two(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    x, y = batch(t)
    losses = losses_of(model, x, y)
    cockpit.backward(losses * torch.nan if t == 2 else losses)
    if t == 2:
        opt.zero_grad()  # nothing moves


def changing(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    opt.param_groups[0]["lr"] = 0.1 / (t + 1)
    plain(cockpit, model, opt, t)
    cockpit.log(mine=float(t))


def unwatched_at_two(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    if t == 2:
        losses_of(model, *batch(t)).mean().backward()
    else:
        plain(cockpit, model, opt, t)


def still_at_two(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    opt.param_groups[0]["lr"] = 0.0 if t == 2 else 0.1
    plain(cockpit, model, opt, t)


def flat_at_two(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    losses = losses_of(model, *batch(t))
    cockpit.backward(0.0 * losses if t == 2 else losses)


def fewer_at_two(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    cockpit.backward(losses_of(model, *batch(t, n=4 if t == 2 else 6)))


BODIES = [plain, nan_at_two, changing, unwatched_at_two, still_at_two, flat_at_two, fewer_at_two]


@pytest.mark.parametrize(
    "quantities", [ECONOMY, [*FIRST_ORDER, "time"], CURVED], ids=["economy", "first order", "curved"]
)
@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_records_are_the_same_whenever_they_come(
    body: Callable[..., object], quantities: list[Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for name in ("now", "late"):
        request.getfixturevalue("late" if name == "late" else "impatient")
        training = Training(tmp_path / name, quantities)
        for _ in range(7):
            training.step(body)
        training.cockpit.close()
    assert differences(records(tmp_path / "late"), records(tmp_path / "now"), rtol=0, atol=0) == []
    assert sorted(events(tmp_path / "late")) == sorted(events(tmp_path / "now"))


@pytest.mark.parametrize("names", [["alpha", "loss", "norm_test"], ["loss", "norm_test"]], ids=len)
def test_steps_at_intervals_are_looked_at_together(
    names: list[str], tmp_path: Path, patient: None, alone: set[int]
) -> None:
    training = Training(tmp_path, at_intervals(names, 3))
    for _ in range(20):
        training.step()
    training.cockpit.close()
    assert len(alone) <= 2  # the first one, and one where steps begin to be replayed
    for name in names:
        assert Run(tmp_path).series(name).steps.tolist() == list(range(0, 20, 3))


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("interval", [2, 3])
def test_records_at_intervals_are_the_same_whenever_they_come(
    body: Callable[..., object], interval: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Steps that are looked at, and those after them, which are looked at for their sake, come in turns."""
    quantities = [*at_intervals(ECONOMY, interval), Alpha(label="always")]
    for name in ("now", "late"):
        request.getfixturevalue("late" if name == "late" else "impatient")
        for some, chosen in (("even", quantities[:-1]), ("mixed", quantities)):
            training = Training(tmp_path / some / name, chosen)
            for _ in range(10):
                training.step(body)
            training.cockpit.close()
    for some in ("even", "mixed"):
        late, now = tmp_path / some / "late", tmp_path / some / "now"
        assert differences(records(late), records(now), rtol=0, atol=0) == []
        assert sorted(events(late)) == sorted(events(now))


@pytest.mark.parametrize("quantity", CURVED, ids=lambda q: q.name)
def test_curvature_of_many_steps_is_looked_at_together(
    quantity: Quantity, tmp_path: Path, patient: None, alone: set[int]
) -> None:
    training = Training(tmp_path, [quantity])
    for _ in range(6):
        training.step()
    training.cockpit.close()
    assert alone == {0}
    assert Run(tmp_path).series(quantity.name).steps.tolist() == list(range(6))


def test_steps_are_marked_by_what_was_known_at_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, patience in (("now", 0.0), ("late", 1e9)):
        monkeypatch.setattr(pending, "PATIENCE", patience)
        monkeypatch.setattr(pending, "LONGEST_PATIENCE", patience)
        model = nn.Sequential(net()[0], nn.BatchNorm1d(6, dtype=torch.float64), net()[2])
        opt = sgd(model)
        with Cockpit(model, opt, quantities=["norm_test"], run=tmp_path / name) as cockpit:
            for t in range(9):
                model.train(t not in (3, 4, 5))
                plain(cockpit, model, opt, t)
                opt.step()
                opt.zero_grad()
    now, late = records(tmp_path / "now"), records(tmp_path / "late")
    assert differences(late, now, rtol=0, atol=0) == []
    marked = [now[t, "norm_test", ""][1] != "ok" for t in range(9)]
    assert marked == [t not in (3, 4, 5) for t in range(9)]
