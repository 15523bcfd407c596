"""The budget, on simulated trainings with a clock of their own: what is spent, what is measured, what is said."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cockpit import Alpha, CockpitError, GradHist1d, HessMaxEV, Loss, NormTest, at, every
from cockpit.quantities.quantity import Quantity
from cockpit.registry import make_quantity
from cockpit.session.budget import REFERENCE, Budget
from cockpit.session.cost_groups import FIRST, groups_of, kind, spread

COSTS = {"loss": 0.001, "alpha": 0.5, "norm_test": 0.4, "grad_hist1d": 1.5, "hess_max_ev": 8.0}
"""Extra time of a step in which this is the dearest quantity; an unwatched step takes 1."""


@dataclass
class FakeClock:
    """Time that passes when it is told to; with a lag it is known only some marks later, as on a device."""

    lag: int = 0
    now: float = 0.0
    marks: int = 0

    def mark(self) -> tuple[int, float]:
        self.marks += 1
        return self.marks, self.now

    def between(self, a: tuple[int, float], b: tuple[int, float]) -> float | None:
        return b[1] - a[1] if self.marks >= b[0] + self.lag else None


@dataclass
class Training:
    """A training of which only the times are real."""

    limit: float = 0.05
    quantities: Sequence[Quantity] = field(
        default_factory=lambda: [HessMaxEV(), GradHist1d(), NormTest(), Loss()]
    )
    costs: dict[str, float] = field(default_factory=lambda: dict(COSTS))
    lag: int = 0
    noise: float = 0.0
    pause: tuple[int, float] = (1, 0.0)  # every so many steps, so long
    once: float = 0.0
    announced: bool = True  # whether backward passes are
    after: float = 0.5  # what the step costs that alpha waits for
    pace: Callable[[int], float] = lambda t: 1.0
    tail: tuple[float, float] = (0.0, 1.0)  # so often a measurement costs so many times more
    wake: float = 0.0  # what the first unwatched step after measured ones costs
    standing: float = 0.0
    agree: Callable[[list[int]], list[int]] = list

    def __post_init__(self) -> None:
        self.clock = FakeClock(self.lag)
        self.budget = Budget(self.limit, self.quantities, self.clock, self.agree)
        self.random = random.Random(1)
        self.measured: dict[str, list[int]] = {q.name: [] for q in self.quantities}
        self.extra: list[float] = []
        self.usual: list[float] = []
        self.waiting = self.watched = False

    def step(self) -> None:
        t = len(self.extra)
        due = self.budget.plan(t, [q for q in self.quantities if q.when(t)])
        usual = self.pace(t) * (1 + self.random.uniform(-self.noise, self.noise))
        extra = max((self.costs[q.name] for q in due), default=0.0)
        if self.random.random() < self.tail[0]:
            extra *= self.tail[1]
        extra += self.waiting * self.after + self.standing
        extra += self.once * sum(not self.measured[q.name] for q in due)
        extra += self.wake * (self.watched and not due and not self.waiting)
        self.watched = bool(due) or self.waiting
        self.waiting = any(q.needs_after for q in due)
        if t % self.pause[0] == 0:
            self.clock.now += self.pause[1]
        self.clock.now += 0.3 * usual
        if self.announced:
            self.budget.entered()
        self.clock.now += 0.7 * usual + extra
        self.budget.ended(seen=True)
        self.budget.paid(self.standing)
        for q in due:
            self.measured[q.name].append(t)
        self.extra.append(extra)
        self.usual.append(usual)

    def run(self, steps: int) -> Training:
        for _ in range(steps):
            self.step()
        return self

    def share(self, start: int = 0) -> float:
        """What really was spent since a step."""
        return sum(self.extra[start:]) / sum(self.usual[start:])

    def counts(self, start: int = 0) -> list[int]:
        """How often each quantity was measured, from cheap to dear."""
        found = {name: sum(t >= start for t in steps) for name, steps in self.measured.items()}
        return [found[name] for name in sorted(found, key=COSTS.__getitem__)]


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


# -- measuring -----------------------------------------------------------------------------------------------


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


# -- groups and intervals ------------------------------------------------------------------------------------


def test_kinds_of_work():
    kinds = [
        "loss grad_norm distance update_size parameters time",
        "alpha norm_test inner_test ortho_test cabs",
    ]
    kinds += ["grad_hist1d grad_hist2d", "hess_max_ev hess_trace tic_diag tic_trace"]
    for level, names in enumerate(kinds):
        assert [kind(make_quantity(n)) for n in names.split()] == [level] * len(names.split())


def test_the_cost_of_a_group_does_not_hang_on_one_measurement():
    (group,) = groups_of([Loss()])
    assert group.cost is None
    found = []
    for reference, cost in enumerate([2.0, 3.0, 50.0, 2.5, 2.0]):
        group.add(cost, reference)
        found.append((group.cost, group.limited(10**6)))
    costs, limits = zip(*found, strict=True)
    assert costs == (2.0, 3.0, 3.0, 2.75, 2.5)
    assert 5 * FIRST <= limits[0] < limits[1] < 1000 < limits[2] == 10**6


def test_small_costs_with_the_same_reference_are_one_measurement():
    (group,) = groups_of([Loss()])
    for cost in (0.1, 0.2, 0.0):
        group.add(cost, 5)
    assert list(group.costs) == pytest.approx([0.1])
    group.add(0.3, 6)
    assert list(group.costs) == pytest.approx([0.1, 0.3])


def test_groups_share_kind_and_schedule():
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, step: int) -> bool:
            return True

    own = NormTest(when=Unhashable(), label="own")
    groups = groups_of([NormTest(), Loss(), own, Alpha(), HessMaxEV(when=every(10))])
    assert [g.name for g in groups] == ["loss", "norm_test, alpha", "norm_test:own", "hess_max_ev"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1, 1000), st.floats(0.001, 1)), min_size=1, max_size=6),
    st.floats(0.001, 0.9),
)
def test_intervals_fit(groups: list[tuple[float, float]], allowed: float):
    costs, rates = [c for c, _ in groups], [r for _, r in groups]
    intervals = spread(costs, rates, allowed)
    most, spent, at_least = 0.0, 0.0, 0.0
    for cost, rate, k in zip(costs, rates, intervals, strict=True):
        extra, most = max(0.0, cost - most), max(most, cost)
        spent += extra * min(1 / k, rate)
        at_least += extra * rate
    assert spent <= allowed * (1 + 1e-9)
    assert all(b % a == 0 for a, b in pairwise(intervals))
    if at_least <= allowed / len(costs):
        assert set(intervals) == {1}


def test_one_group_uses_most_of_what_it_may():
    for cost in (0.06, 0.2, 1.0, 3.3, 40.0, 500.0):
        (k,) = spread([cost], [1.0], 0.05)
        assert 0.5 * 0.05 < cost / k <= 0.05
