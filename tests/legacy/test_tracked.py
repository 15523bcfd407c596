from __future__ import annotations

import math

import numpy as np
import pytest

from cockpit.errors import CockpitError
from cockpit.instruments.instrument import Source
from cockpit.legacy.tracked import Tracked
from cockpit.store.record import Histogram

OUTPUT = {
    5: {"Loss": 2.0, "GradNorm": [3.0, 4.0], "Alpha": -1, "odd": "text"},
    0: {"Loss": 1.0, "GradHist1d": {"hist": np.array([1, 2]), "edges": np.array([0.0, 1.0, 2.0])}},
}


@pytest.fixture
def tracked() -> Tracked:
    return Tracked(OUTPUT, {"optimizer": "SGD"})


def test_it_answers_like_a_run(tracked: Tracked) -> None:
    source: Source = tracked
    assert source.names() == ["loss", "grad_hist1d", "grad_norm", "alpha"]
    assert source.meta == {"optimizer": "SGD"}
    assert source.scopes("grad_norm") == ["", "param_0", "param_1"]
    loss = source.series("loss")
    assert (loss.steps.tolist(), np.asarray(loss.values).tolist()) == ([0, 5], [1.0, 2.0])
    assert np.asarray(source.series("grad_norm").values).tolist() == [5.0]
    (histogram,) = source.series("grad_hist1d").values
    assert isinstance(histogram, Histogram)
    assert list(source.series("alpha").status) == ["concave_or_zero"]
    assert tracked.steps() == (2, 5)


def test_what_is_no_number_is_an_event(tracked: Tracked) -> None:
    (event,) = tracked.events()
    assert event.step == 5
    assert tracked.events("other") == []


def test_since_and_points() -> None:
    long = Tracked({step: {"Loss": float(step % 7), "Parameters": [np.zeros(2)]} for step in range(100)}, {})
    assert long.series("loss", since=40).steps[0] == 40
    thin = long.series("loss", points=10)
    assert len(thin) <= 10
    assert np.asarray(thin.values).max() == 6.0
    assert len(long.series("parameters", "param_0", points=10)) == 10


def test_unknown_names(tracked: Tracked) -> None:
    with pytest.raises(CockpitError, match="nothing was tracked under 'x'"):
        tracked.scopes("x")
    with pytest.raises(CockpitError, match="'loss' has no scope 'y'"):
        tracked.series("loss", "y")
    assert Tracked({}, {}).steps() == (0, None)
    assert math.isnan(float(np.asarray(Tracked({0: {"Loss": math.nan}}, {}).series("loss").values)[0]))
