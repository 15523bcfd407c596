"""How a histogram's range follows the data: policies, their schedules, and when they take effect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cockpit import (
    Cockpit,
    GradAbsMax,
    GradHist1d,
    GradHist2d,
    GradQuantile,
    Histogram,
    NoAdaptation,
    ParamAbsMax,
)
from cockpit.errors import CockpitError
from cockpit.quantities.bins import Adaptation
from cockpit.schedule import at, every
from session.loops import Records, events, trained

SCALES = (1.0, 4.0, 0.5, 2.0)
X = torch.tensor([[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25]], dtype=torch.float64)


class Line(nn.Module):
    """wᵀx: the individual gradient of example n is x_n."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -0.75], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def run(folder: Path, *quantities: Any, scales: Sequence[float] = SCALES, rate: float = 0.0) -> Records:
    """One step for each scale; the gradients are those numbers times X."""

    def body(cockpit: Cockpit, model: nn.Module, _: torch.optim.Optimizer, t: int) -> None:
        cockpit.backward(model(scales[t] * X))

    return trained(
        folder,
        body,
        len(scales),
        Line(),
        lambda m: torch.optim.SGD(m.parameters(), lr=rate),
        list(quantities),
    )


def reach(found: Records, t: int, name: str = "grad_hist1d", axis: int | None = None) -> tuple[float, float]:
    """The range of a stored histogram."""
    histogram = found[t, name, ""][0]
    assert isinstance(histogram, Histogram)
    edges = histogram.edges if axis is None else histogram.edges[axis]
    assert isinstance(edges, np.ndarray)
    assert np.allclose(np.diff(edges), (edges[-1] - edges[0]) / (len(edges) - 1))
    return float(edges[0]), float(edges[-1])


def test_the_range_takes_effect_at_the_next_tracked_step(tmp_path: Path) -> None:
    found = run(tmp_path, GradHist1d(4, (-1.0, 1.0), GradAbsMax()))
    assert [reach(found, t) for t in range(4)] == [(-1, 1), (-3, 3), (-12, 12), (-1.5, 1.5)]
    first, second = found[0, "grad_hist1d", ""][0], found[1, "grad_hist1d", ""][0]
    assert (first.underflow, first.overflow, first.total) == (1, 1, 6)
    assert (second.underflow, second.overflow) == (2, 2), "counted within the old range"
    assert found[2, "grad_hist1d", ""][0].counts.sum() == 6


def test_edges_are_stored_with_every_histogram_of_every_parameter(tmp_path: Path) -> None:
    found = run(tmp_path, GradHist1d(4, adapt=GradAbsMax()))
    for t in range(4):
        whole, part = found[t, "grad_hist1d", ""][0], found[t, "grad_hist1d", "w"][0]
        np.testing.assert_array_equal(whole.edges, part.edges)


def test_untracked_steps_do_not_adapt(tmp_path: Path) -> None:
    found = run(tmp_path, GradHist1d(4, (-1.0, 1.0), GradAbsMax(), when=every(2)))
    assert [t for t, n, s in found if (n, s) == ("grad_hist1d", "")] == [0, 2]
    assert reach(found, 2) == (-3, 3)


def test_a_policy_has_its_own_schedule(tmp_path: Path) -> None:
    found = run(tmp_path, GradHist1d(4, (-1.0, 1.0), GradAbsMax(at(1))))
    assert [reach(found, t) for t in range(4)] == [(-1, 1), (-1, 1), (-12, 12), (-12, 12)]
    found = run(tmp_path / "n", GradHist1d(4, (-1.0, 1.0), GradAbsMax(3)))  # type: ignore[arg-type]
    assert [reach(found, t) for t in range(4)] == [(-1, 1), (-3, 3), (-3, 3), (-3, 3)]


def test_no_adaptation(tmp_path: Path) -> None:
    found = run(tmp_path, GradHist1d(4, adapt=NoAdaptation()), GradHist1d(4, label="none"))
    assert {reach(found, t, n) for t in range(4) for n in ("grad_hist1d", "grad_hist1d:none")} == {(-2, 2)}


def test_padding_and_smallest_width(tmp_path: Path) -> None:
    found = run(tmp_path / "padding", GradHist1d(4, adapt=GradAbsMax(padding=0.5)))
    assert reach(found, 1) == (-4.5, 4.5)
    found = run(
        tmp_path / "width",
        GradHist1d(4, adapt=GradAbsMax(min_size=0.2, padding=1.0)),
        scales=(0.0, 1e-9, 1.0),
    )
    assert reach(found, 1) == reach(found, 2) == pytest.approx((-0.2, 0.2))


def test_zero_gradients_do_not_close_the_range(tmp_path: Path) -> None:
    found = run(tmp_path, GradHist1d(4, adapt=GradAbsMax()), scales=(0.0, 0.0))
    assert reach(found, 1) == pytest.approx((-5e-7, 5e-7))
    assert found[1, "grad_hist1d", ""][0].counts.tolist() == [0, 0, 6, 0]


def test_widen_only(tmp_path: Path) -> None:
    found = run(tmp_path, GradHist1d(4, (-1.0, 5.0), GradAbsMax(widen_only=True)))
    assert [reach(found, t) for t in range(4)] == [(-1, 5), (-3, 5), (-12, 12), (-12, 12)]


def test_parameters(tmp_path: Path) -> None:
    """The parameters before the step count, also after they have moved."""
    found = run(tmp_path, GradHist1d(4, adapt=ParamAbsMax()), rate=1.0, scales=(1.0, 1.0, 1.0))
    w = np.array([0.5, -0.75])
    for t in range(2):
        m = np.abs(w).max()
        assert reach(found, t + 1) == pytest.approx((-m, m))
        w = w - X.numpy().mean(0)


@pytest.mark.parametrize(("share", "expected"), [(0.0, (-2, 3)), (0.2, (-1, 1)), (0.34, (-1e-3, 0.5))])
def test_quantiles_take_each_side_for_itself(
    tmp_path: Path, share: float, expected: tuple[float, float]
) -> None:
    """Sorted: −2, −1, ¼, ½, 1, 3; a range always holds zero."""
    found = run(tmp_path, GradHist1d(4, adapt=GradQuantile(share=share, min_size=2e-3)), scales=(1.0, 1.0))
    assert reach(found, 1) == pytest.approx(expected)


def test_outliers_do_not_widen_quantiles(tmp_path: Path) -> None:
    found = run(tmp_path, GradHist1d(4, adapt=GradQuantile(share=0.2)), scales=(1.0, 1.0))
    histogram = found[1, "grad_hist1d", ""][0]
    assert (histogram.underflow, histogram.overflow, histogram.total) == (1, 1, 6)


@pytest.mark.parametrize("policy", [GradAbsMax(), GradQuantile(share=0.0)], ids=["largest", "quantile"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_numbers_that_are_none_do_not_move_the_range(tmp_path: Path, policy: Adaptation, bad: float) -> None:
    def body(cockpit: Cockpit, model: nn.Module, _: torch.optim.Optimizer, t: int) -> None:
        x = X.clone()
        if t == 1:
            x[1, 1] = bad  # the largest
        cockpit.backward(model(x)[:, 0])
        if t == 1:
            model.zero_grad()

    model = nn.Linear(2, 1, bias=False).double()
    found = trained(tmp_path, body, 3, model, quantities=[GradHist1d(4, adapt=policy)])
    assert reach(found, 2) == ((-2, 2) if isinstance(policy, GradAbsMax) else (-2, 1))


def test_both_axes(tmp_path: Path) -> None:
    """Gradient first, parameter second, each with a policy and a schedule of its own."""
    found = run(
        tmp_path,
        GradHist2d((4, 3), ((-1.0, 1.0), (-2.0, 2.0)), (GradAbsMax(), ParamAbsMax(at(1), padding=1.0))),
    )
    assert [reach(found, t, "grad_hist2d", 0) for t in range(4)] == [(-1, 1), (-3, 3), (-12, 12), (-1.5, 1.5)]
    second = [reach(found, t, "grad_hist2d", 1) for t in range(4)]
    assert second == [(-2, 2), (-2, 2), (-1.5, 1.5), (-1.5, 1.5)]
    counts = found[2, "grad_hist2d", ""][0].counts
    assert counts.shape == (4, 3)
    assert counts.sum(0).tolist() == [3, 0, 3], "three examples for −0.75 and three for 0.5"


@pytest.mark.parametrize("axis", [0, 1])
def test_one_axis_only(tmp_path: Path, axis: int) -> None:
    policies = [None, None]
    policies[axis] = GradAbsMax()  # type: ignore[call-overload]
    found = run(tmp_path, GradHist2d((4, 3), ((-1.0, 1.0), (-2.0, 2.0)), tuple(policies)))  # type: ignore[arg-type]
    assert reach(found, 1, "grad_hist2d", axis) == (-3, 3)
    assert reach(found, 1, "grad_hist2d", 1 - axis) == ((-2, 2) if axis == 0 else (-1, 1))


def test_two_histograms_adapt_each_for_itself(tmp_path: Path) -> None:
    found = run(tmp_path, GradHist1d(4, adapt=GradAbsMax()), GradHist1d(4, adapt=ParamAbsMax(), label="p"))
    assert reach(found, 1) == (-3, 3)
    assert reach(found, 1, "grad_hist1d:p") == (-0.75, 0.75)


def test_without_histograms_of_parameters(tmp_path: Path) -> None:
    found = run(tmp_path, GradHist1d(4, by_parameter=False), GradHist2d((2, 2), by_parameter=False))
    assert {scope for _, name, scope in found if "hist" in name} == {""}


def test_in_single_precision_the_largest_lies_inside(tmp_path: Path) -> None:
    """The value that made the range falls into its last bin."""

    def body(cockpit: Cockpit, model: nn.Module, _: torch.optim.Optimizer, t: int) -> None:
        cockpit.backward(model(0.1 * X.float()))

    found = trained(tmp_path, body, 2, Line().float(), quantities=[GradHist1d(7, adapt=GradAbsMax())])
    histogram = found[1, "grad_hist1d", ""][0]
    assert histogram.counts.sum() == 6
    assert histogram.counts[-1] == 1
    assert histogram.edges[-1] == float(torch.tensor(0.1) * torch.tensor(3.0))


def test_schedules_of_policies_are_checked() -> None:
    assert GradAbsMax(5).when(10)  # type: ignore[arg-type]
    with pytest.raises(CockpitError):
        GradAbsMax("often")  # type: ignore[arg-type]


def test_a_policy_that_fails_is_a_gap(tmp_path: Path) -> None:
    """Its schedule or itself; training goes on."""
    found = run(tmp_path / "schedule", GradHist1d(4, adapt=GradAbsMax(lambda t: 1 // (t - 1))), "loss")  # type: ignore[arg-type]
    assert [t for t, n, s in found if n == "loss"] == [0, 1, 2, 3]
    assert (1, "gap") in events(tmp_path / "schedule")
