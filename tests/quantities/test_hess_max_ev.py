"""The settings of the largest eigenvalue: followed with few products, or solved to a tolerance."""

from __future__ import annotations

import pytest

from cockpit import HessMaxEV
from cockpit.engine.curvature.tracking import TrackedEigenvalue
from cockpit.engine.needs import TopEigenvalue


@pytest.mark.parametrize(
    ("quantity", "need"),
    [
        (HessMaxEV(), TrackedEigenvalue(per_step=2)),
        (HessMaxEV(products=4), TrackedEigenvalue(per_step=4)),
        (HessMaxEV(1e-3), TopEigenvalue(1e-3, 200)),
        (HessMaxEV(1e-9, 500), TopEigenvalue(1e-9, 500)),
    ],
)
def test_a_tolerance_asks_for_a_converged_solve(quantity: HessMaxEV, need: TopEigenvalue) -> None:
    assert quantity.needs == (need,)
