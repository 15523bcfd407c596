"""Groups of quantities by what they cost, and intervals that fit."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit import Alpha, HessMaxEV, Loss, NormTest, every
from cockpit.registry import make_quantity
from cockpit.session.cost_groups import FIRST, groups_of, kind, spread


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
