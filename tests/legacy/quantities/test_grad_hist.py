from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cockpit.legacy import quantities
from cockpit.legacy.context import get_individual_losses
from cockpit.legacy.quantities.bin_adaptation import GradAbsMax, NoAdaptation, ParamAbsMax
from cockpit.legacy.quantities.quantity import ByproductQuantity
from cockpit.legacy.utils.schedules import linear
from legacy.training import always, trained


class Elements(ByproductQuantity):
    """Individual gradients [N, D] and parameters [D]."""

    def create_graph(self, global_step: int) -> bool:
        return True

    def _compute(self, global_step: int, params: Any, batch_loss: Any) -> Any:
        rows = [
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, params, retain_graph=True)])
            for loss in get_individual_losses(global_step)
        ]
        return [torch.stack(rows), torch.cat([p.flatten() for p in params])]


def test_outliers_lie_in_the_outer_bins_of_their_parameter() -> None:
    limits = ((-0.1, 0.2), (-0.5, 0.4))
    two = quantities.GradHist2d(always, bins=(4, 3), range=limits, keep_individual=True)
    one = quantities.GradHist1d(always, bins=4, range=limits[0])
    output, _ = trained([two, one, Elements(always)], range(2))
    for row in output.values():
        gradients, theta = row["Elements"]
        theta = np.broadcast_to(theta, gradients.shape)
        assert (gradients < -0.1).any()
        assert (gradients > 0.2).any()
        clipped = [np.clip(x, *limit).ravel() for x, limit in zip((gradients, theta), limits, strict=True)]
        wanted, *edges = np.histogram2d(*clipped, bins=(4, 3), range=limits)
        found = row["GradHist2d"]
        np.testing.assert_array_equal(found["hist"], wanted)
        np.testing.assert_allclose(found["edges"][0], edges[0], rtol=1e-6)
        np.testing.assert_allclose(found["edges"][1], edges[1], rtol=1e-6)
        np.testing.assert_array_equal(row["GradHist1d"]["hist"], wanted.sum(1))
        assert found["param_groups"] == 4
        np.testing.assert_array_equal(sum(found[f"param_{k}"]["hist"] for k in range(4)), found["hist"])
    assert output[0]["GradHist1d"]["hist"].dtype == output[0]["GradHist1d"]["edges"].dtype == np.float32


def test_ranges_follow_the_data_from_the_next_histogram_on() -> None:
    one = quantities.GradHist1d(always, adapt=GradAbsMax(always, padding=0.5))
    two = quantities.GradHist2d(always, adapt=(GradAbsMax(always), ParamAbsMax(linear(2), min_size=9.0)))
    output, _ = trained([one, two, Elements(always)], range(4))
    assert output[0]["GradHist1d"]["edges"][-1] == 2
    for t in range(1, 4):
        gradients, _ = output[t - 1]["Elements"]
        largest = np.abs(gradients).max()
        np.testing.assert_allclose(output[t]["GradHist1d"]["edges"][[0, -1]], [-1.5 * largest, 1.5 * largest])
        np.testing.assert_allclose(output[t]["GradHist2d"]["edges"][0][[0, -1]], [-largest, largest])
        np.testing.assert_allclose(output[t]["GradHist2d"]["edges"][1][[0, -1]], [-4.5, 4.5])
    gradients, _ = output[3]["Elements"]
    np.testing.assert_allclose(one._range, [-1.5 * np.abs(gradients).max(), 1.5 * np.abs(gradients).max()])
    np.testing.assert_allclose(two._range[1], [-4.5, 4.5])


def test_a_range_may_be_adapted_between_two_histograms() -> None:
    hist = quantities.GradHist1d(linear(3), adapt=GradAbsMax(lambda t: t == 1))
    output, _ = trained([hist, Elements(always)], range(4))
    gradients, _ = output[1]["Elements"]
    assert [t for t in output if "GradHist1d" in output[t]] == [0, 3]
    assert output[3]["GradHist1d"]["edges"][-1] == pytest.approx(np.abs(gradients).max(), rel=1e-6)


def test_without_adaptation_a_range_stays() -> None:
    hist = quantities.GradHist1d(always, range=(-1, 3), adapt=NoAdaptation())
    output, _ = trained([hist], range(3))
    assert {tuple(row["GradHist1d"]["edges"][[0, -1]]) for row in output.values()} == {(-1, 3)}
    assert hist._range == (-1, 3)
