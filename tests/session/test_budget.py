"""The budget, on simulated trainings: what is spent, what is measured, what is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cockpit import Alpha, CockpitError, HessMaxEV, Loss, NormTest, at, every
from cockpit.session.budget import REFERENCE, Budget
from cockpit.session.cost_groups import FIRST
from session.simulated import COSTS, FakeClock, Training

# -- the promise ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "low", "high"),
    [
        ({}, 0.04, 0.05),
        ({"limit": 0.01}, 0.004, 0.011),
        ({"limit": 0.3}, 0.25, 0.3),
        ({"noise": 0.1}, 0.035, 0.055),
        ({"pause": (100, 50.0)}, 0.04, 0.05),
        ({"pause": (100, 50.0), "announced": False}, 0.02, 0.05),
        ({"announced": False}, 0.04, 0.05),
        ({"lag": 7}, 0.04, 0.05),
        ({"pace": lambda t: 1 + t / 6000}, 0.02, 0.05),
        ({"pace": lambda t: 2 - t / 6000}, 0.03, 0.06),
        ({"tail": (0.1, 10.0)}, 0.015, 0.06),
        ({"quantities": [NormTest()]}, 0.03, 0.05),
        ({"quantities": [Alpha(), Loss()]}, 0.03, 0.05),
        ({"standing": 0.02}, 0.04, 0.052),
    ],
)
def test_the_share_is_kept_and_used(settings: dict[str, Any], low: float, high: float):
    training = Training(**settings).run(6000)
    assert low < training.share(2500) < high
    assert training.budget.share < 1.3 * training.limit + 30 * len(training.quantities) / 6000


@pytest.mark.parametrize("standing", [0.03, 0.2])
def test_short_steps_let_it_rest(standing: float):
    """What is paid where nothing is measured would alone be most of the budget, or more."""
    costs = {**COSTS, "loss": 0.4}  # beside so short a step, everything costs
    awake, resting = (
        Training(standing=standing, rests=rests, costs=costs).run(20000) for rests in (False, True)
    )
    assert resting.share(8000) < 0.05
    assert resting.share(8000) < 0.75 * awake.share(8000)
    assert all(count > 0 for count in resting.counts(8000)), "it wakes up"
    assert resting.budget.share < 0.07


@pytest.mark.parametrize("others", [{"agree": list, "standing": 0.2}, {"standing": 0.001}])
def test_it_rests_neither_among_others_nor_where_that_is_not_worth_it(others: dict[str, Any]):
    costs = {**COSTS, "loss": 0.4}
    assert Training(rests=True, costs=costs, **others).run(3000).asleep == 0


def test_cheap_ones_are_measured_often_and_dear_ones_rarely():
    often, sometimes, rarely, hardly = Training().run(6000).counts(2500)
    assert often > 0.9 * 3500
    assert often > 10 * sometimes > 20 * rarely > 40 * hardly
    assert hardly >= 1


def test_what_is_cheap_enough_is_measured_at_every_step_but_for_a_few_that_are_timed():
    training = Training(quantities=[Loss()]).run(2000)
    missing = sorted(set(range(1000, 2000)) - set(training.measured["loss"]))
    assert 5 <= len(missing) <= 0.05 * 1000
    assert training.budget.intervals == {"loss": 1}


def test_where_a_dear_one_is_measured_the_cheap_ones_are():
    measured = Training().run(4000).measured
    assert set(measured["hess_max_ev"]) <= set(measured["norm_test"]) <= set(measured["loss"])


def test_a_dear_start_is_paid_back_and_forbids_nothing():
    training = Training(once=300.0).run(6000)  # a quarter of all the time there is
    assert training.budget.share == pytest.approx(training.share(), rel=0.02)
    assert 0.015 < training.share(2500) < 0.03  # one half is given out
    assert training.counts(2500)[1] > 20


def test_a_change_of_cost_is_followed():
    training = Training(quantities=[NormTest()]).run(3000)
    before = training.budget.intervals["norm_test"]
    training.costs["norm_test"] *= 10
    training.run(3000)
    assert 5 * before < training.budget.intervals["norm_test"]
    training.costs["norm_test"] /= 100
    training.run(6000)
    assert training.budget.intervals["norm_test"] == 1


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.floats(0.02, 0.5),
    st.lists(st.floats(0.0, 8.0), min_size=4, max_size=4),
    st.floats(0.0, 20.0),
    st.integers(0, 5),
)
def test_whatever_it_costs(limit: float, costs: list[float], once: float, lag: int):
    names = ["loss", "norm_test", "grad_hist1d", "hess_max_ev"]
    training = Training(limit=limit, costs=dict(zip(names, sorted(costs), strict=True)), once=once, lag=lag)
    training.run(2500)
    assert training.budget.share == pytest.approx(training.share(), rel=0.1, abs=0.005)
    dearest = 4 * max(costs) / 1500  # intervals do not end with the window
    assert training.share(1000) < limit + dearest
    if training.budget.share < limit < max(costs):
        assert training.share(1000) > 0.4 * limit - dearest


# -- schedules -----------------------------------------------------------------------------------------------


def test_schedules_are_only_thinned_out():
    wanted = [Loss(when=every(3)), NormTest(when=every(10)), HessMaxEV(when=at(200, 1000, 2000))]
    training = Training(quantities=wanted).run(3000)
    for q in wanted:
        assert all(q.when(t) for t in training.measured[q.name])
    assert training.measured["hess_max_ev"] == [200, 1000, 2000]
    assert len(training.measured["loss"]) > 900


def test_schedules_that_never_meet_both_get_their_turn():
    other = NormTest(when=every(10, offset=5), label="other")
    training = Training(
        quantities=[NormTest(when=every(10)), other], costs={"norm_test": 3, "norm_test:other": 3}
    )
    training.run(3000)
    first, second = (len(training.measured[n]) for n in ("norm_test", "norm_test:other"))
    assert min(first, second) > 10
    assert training.share(1500) < 0.05


def test_the_same_step_has_one_answer():
    """A skipped step is planned again; by then nothing may have changed, nor must processes talk once more."""
    asked: list[list[int]] = []
    training = Training(agree=lambda k: asked.append(k) or k)  # type: ignore[func-returns-value]
    training.run(FIRST)
    t, due = len(training.extra), list(training.quantities)
    first = training.budget.plan(t, due)
    said = len(asked)
    training.budget.skipped()
    assert training.budget.plan(t, due) == first == [training.quantities[-1]]
    assert len(asked) == said


def test_processes_follow_the_first_one_and_talk_rarely():
    """Whatever their clocks say, they measure at the same steps."""
    said: list[list[int]] = []
    first = Training(agree=lambda k: said.append(k) or k)  # type: ignore[func-returns-value]
    first.run(1500)
    heard = iter(said)
    second = Training(agree=lambda k: next(heard), noise=0.5, lag=5, pace=lambda t: 7.0)
    second.run(1500)
    assert second.measured == first.measured
    assert next(heard, None) is None
    assert len(said) < 0.1 * 1500


# -- what is said and saved ----------------------------------------------------------------------------------


def test_it_reports_what_it_chose():
    training = Training().run(3000)
    lines = training.budget.report().splitlines()
    assert lines[0] == f"{training.budget.share:.1%} of the training's time spent watching, 5.0% asked"
    assert any(line.startswith("every step: loss") for line in lines)
    assert any(
        f"every {training.budget.intervals['hess_max_ev']} steps: hess_max_ev" in line for line in lines
    )
    stored = training.budget.describe()
    assert stored["asked"] == 0.05
    assert stored["intervals"] == training.budget.intervals
    assert stored["step_seconds"] == pytest.approx(1.0)
    assert stored["history"][-1][1].keys() == training.budget.intervals.keys()


def test_changes_by_more_than_twice_are_news_once():
    training = Training(quantities=[NormTest()]).run(3000)
    assert "norm_test" in training.budget.news()[0]
    training.run(1000)
    assert training.budget.news() == []
    training.costs["norm_test"] = 40.0
    training.run(4000)
    assert training.budget.news()
    assert training.budget.news() == []


def test_a_resumed_training_goes_on_with_what_was_learnt(tmp_path: Any):
    training = Training().run(2000)
    torch.save(training.budget.state_dict(), tmp_path / "state.pt")
    resumed = Training(pace=lambda t: 5.0, costs={k: 5 * v for k, v in COSTS.items()})
    resumed.extra, resumed.usual = [0.0] * 2000, [1.0] * 2000
    resumed.budget.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert resumed.budget.intervals == training.budget.intervals
    assert resumed.budget.share == training.budget.share
    resumed.run(2000)  # a machine five times as slow: the same intervals, in steps
    training.run(2000)
    assert resumed.counts(2010)[1:] == pytest.approx(training.counts(2010)[1:], rel=0.3, abs=1)
    assert resumed.share(2000 + REFERENCE) < 0.06


def test_a_state_without_a_quantity_lets_it_begin_anew():
    state = Training(quantities=[NormTest()]).run(500).budget.state_dict()
    training = Training(quantities=[NormTest(), HessMaxEV()])
    training.budget.load_state_dict(state)
    assert training.budget.intervals["norm_test"] == state["groups"]["norm_test"]["interval"]
    training.run(1)
    assert training.measured["hess_max_ev"] == [0]


@pytest.mark.parametrize("limit", [0, 1, -0.1, 5, float("nan"), True, "5%", None])
def test_a_limit_that_is_none_is_refused_with_advice(limit: Any):
    with pytest.raises(CockpitError, match=r"between 0 and 1.*budget=0\.05"):
        Budget(limit, [Loss()], FakeClock())
