"""What is due at a step, and what it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cockpit import Alpha, Cockpit, GradNorm, Run, every
from cockpit.engine.needs import Need
from cockpit.session.agenda import Agenda
from session.loops import net, sgd


@pytest.fixture
def agenda(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """The agenda of a session whose quantities the test names, and its run."""
    model = net()
    with Cockpit(model, sgd(model), quantities=request.param, run=tmp_path) as cockpit:
        yield cockpit._agenda


def raises(step: int) -> bool:
    raise ValueError("no such step")


@pytest.mark.parametrize("agenda", [[GradNorm(when=every(3))]], indirect=True)
def test_schedules_decide(agenda: Agenda) -> None:
    due = []
    for step in range(5):
        agenda.plan(step)
        due.append(not agenda.empty)
        assert bool(agenda.needs(step)) == due[-1]
    assert due == [True, False, False, True, False]


@pytest.mark.parametrize("agenda", [[Alpha(when=every(2))]], indirect=True)
def test_who_needs_the_step_after_waits_for_it(agenda: Agenda) -> None:
    agenda.plan(0)
    first = agenda.needs(0)
    agenda.observed()
    agenda.plan(1)
    assert not agenda.due
    assert not agenda.empty
    after: frozenset[Need] = agenda.needs(1)
    assert after
    assert after != first


@pytest.mark.parametrize("agenda", [["grad_norm", "alpha"]], indirect=True)
def test_the_same_needs_are_the_same_object(agenda: Agenda) -> None:
    agenda.plan(7)
    agenda.observed()
    agenda.plan(8)
    first = agenda.needs(8)
    agenda.observed()
    agenda.plan(9)
    assert agenda.needs(9) is first
    agenda.forget()
    assert agenda.needs(9) is not first


def test_a_schedule_that_raises_is_told(tmp_path: Path) -> None:
    model = net()
    with Cockpit(model, sgd(model), quantities=[GradNorm(when=raises)], run=tmp_path) as cockpit:
        assert cockpit._agenda.empty
    assert any("its schedule raised" in event.text for event in Run(tmp_path).events())
