"""What watching has cost, on simulated trainings: what is spent is booked, and nothing else."""

from __future__ import annotations

import pytest

from cockpit import Alpha, GradHist1d, Loss, NormTest, every
from cockpit.quantities.quantity import Quantity
from cockpit.session.budget import Budget
from session.simulated import FakeClock, Training


def test_one_time_costs_are_forgotten_when_they_are_paid():
    training = Training(quantities=[NormTest()], once=20.0).run(4000)
    assert training.share() < 0.05
    assert training.share(2000) > 0.04
    assert training.budget.describe()["once_seconds"] == pytest.approx(20.4)


def test_the_share_reported_is_the_one_spent():
    training = Training(lag=3, quantities=[Loss(), NormTest(), Alpha(), GradHist1d()]).run(3000)
    assert training.budget.share == pytest.approx(training.share(), rel=0.05)


@pytest.mark.parametrize("quantity", [NormTest(), Alpha()])
def test_what_a_measured_step_leaves_behind_is_paid(quantity: Quantity):
    training = Training(quantities=[quantity], wake=0.6).run(2000)
    assert training.budget.share == pytest.approx(training.share(), rel=0.02)


def test_a_training_that_gets_faster_does_not_hide_the_cost():
    training = Training(pace=lambda t: 2 - t / 6000).run(6000)
    assert training.budget.share == pytest.approx(training.share(), abs=0.01)


def test_a_pause_before_the_backward_pass_is_the_users():
    """Even where every measured step has one: the user evaluates at the steps at which something is due."""
    plain = Training(quantities=[NormTest(when=every(20))], limit=0.01).run(4000)
    pauses = Training(quantities=[NormTest(when=every(20))], limit=0.01, pause=(20, 30.0)).run(4000)
    assert pauses.measured == plain.measured
    assert pauses.budget.share == pytest.approx(plain.budget.share)


def test_a_step_that_was_not_observed_says_nothing():
    q = [NormTest()]
    budget = Budget(0.05, q, clock := FakeClock())
    for t in range(60):
        due = budget.plan(t, q)
        clock.now += 1.0 + 5.0 * bool(due)
        budget.ended(seen=False)
    assert budget.share == 0
    assert "not known" in budget.report()


def test_the_time_of_a_skipped_step_is_left_out():
    training = Training(quantities=[NormTest()]).run(500)
    before = training.budget.share * 500
    for _ in range(100):
        training.budget.entered()
        training.clock.now += 1000.0
        training.budget.skipped()
        training.step()
    assert training.budget.share * 600 - before < 0.1 * 100


def test_numbers_recorded_later_are_paid_by_the_step_they_belong_to():
    q = [NormTest()]
    budget, late, spent = Budget(0.05, q, clock := FakeClock()), 0, 0.0
    for t in range(2000):
        if budget.plan(t, q):
            late = 4
        clock.now += 0.3
        budget.entered()
        clock.now += 0.7 + 0.5 * (late > 0)
        spent += 0.5 * (late > 0)
        late = max(0, late - 1)
        budget.ended(seen=True, unfinished=late > 0)
    assert budget.share == pytest.approx(spent / 2000, rel=0.05)
    assert 0.03 < budget.share < 0.05


def test_what_unwatched_steps_cost_is_said_and_paid_first():
    training = Training(standing=0.03, quantities=[NormTest()]).run(3000)
    assert training.budget.describe()["standing"] == pytest.approx(0.03, rel=0.05)
    assert training.budget.share == pytest.approx(training.share(), rel=0.05)
    assert training.budget.intervals["norm_test"] == pytest.approx(0.4 / (0.05 - 0.03), abs=2)
    assert Training(standing=0.2).run(3000).counts(1500)[0] > 20  # more than asked: watched all the same
