"""Curvature that is replayed from a recording is what the ordinary way gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from cockpit.engine.curvature.curvature_tape import CurvatureTape
from engine.replayed import MODELS, Training, apart, device  # noqa: F401

CURVED = ["tic_diag", "hess_trace", "hess_max_ev"]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[CurvatureTape]:
    """The tapes that were replayed, in order (the first replay of each is the comparison)."""
    ran: list[CurvatureTape] = []
    replay = CurvatureTape.replay

    def counted(self: CurvatureTape, *args: object) -> None:
        replay(self, *args)  # type: ignore[arg-type]
        ran.append(self)

    monkeypatch.setattr(CurvatureTape, "replay", counted)
    return ran


def refused(training: Training) -> list[str]:
    assert training.cockpit is not None
    tapes = training.cockpit._engine.curvatures.tapes
    assert tapes is not None
    return [kind.refused for kind in tapes._kinds.values() if kind.refused]


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [*((model, "sgd") for model in MODELS), ("batch_norm", "adam"), ("deep", "momentum")],
)
def test_replays_give_what_the_ordinary_way_gives(
    tmp_path: Path, replayed: list[CurvatureTape], model: str, optimizer: str
) -> None:
    found = {}
    for way in ("replayed", "plain"):
        training = Training(tmp_path / way, way, model, optimizer, quantities=CURVED)
        for _ in range(10):
            training.step()
        if way == "replayed":
            assert refused(training) == []
            derived = [reel for tape in replayed for reel in tape._derived.values()]
            assert bool(derived) == (model != "deep"), "which has parameters that are not recorded"
            assert None not in derived
        found[way] = training.run(())
    assert len(replayed) > 3
    assert apart(found["replayed"], found["plain"]) == []
