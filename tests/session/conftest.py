"""When steps are recorded: at once, later, or whenever their numbers arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cockpit import Quantity
from cockpit.engine.answers.observed import Observed
from cockpit.quantities.quantity import Observation
from cockpit.session import pending
from cockpit.session.recorder import Recorder


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps in the order in which they are recorded."""
    steps: list[int] = []
    write = Recorder.steps

    def seen(self: Recorder, some: Sequence[int], *more: Any) -> None:
        steps.extend(some)
        write(self, some, *more)

    monkeypatch.setattr(Recorder, "steps", seen)
    return steps


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The steps that some quantity looked at by themselves."""
    steps: set[int] = set()
    read = Recorder.read

    def seen(self: Recorder, quantity: Quantity, o: Observation, *more: Any) -> None:
        steps.add(o.step)
        read(self, quantity, o, *more)

    monkeypatch.setattr(Recorder, "read", seen)
    return steps


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no step wait for others."""
    monkeypatch.setattr(pending, "PATIENCE", 0.0)
    monkeypatch.setattr(pending, "LONGEST_PATIENCE", 0.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let steps wait for others for as long as it takes, even where the training is slow."""
    monkeypatch.setattr(pending, "PATIENCE", 1e9)
    monkeypatch.setattr(Recorder, "when_quiet", lambda self, call: None)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Let numbers be under way until somebody waits for them; steps in this set (by order of sending) arrive."""
    arrived: set[int] = set()
    order: list[Observed] = []  # kept, so that no two have the same identity
    send = Observed.send

    def sent(self: Observed) -> None:
        order.append(self)
        send(self)

    def here(self: Observed) -> bool:
        return next(k for k, o in enumerate(order) if o is self) in arrived

    monkeypatch.setattr(Observed, "send", sent)
    monkeypatch.setattr(Observed, "arrived", property(here))
    return arrived
