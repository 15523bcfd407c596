"""Thinning a series: few points, and nothing extreme lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.store.series import extremes


@settings(deadline=None)
@given(
    values=st.lists(st.floats(width=16), max_size=60).map(lambda v: np.array(v, dtype=np.float64)),
    points=st.integers(2, 30),
)
def test_thinning_keeps_the_extremes_of_every_stretch(values: np.ndarray, points: int) -> None:
    kept = extremes(values, points)
    assert len(kept) <= points
    assert (np.diff(kept) > 0).all()
    if len(values) <= points:
        assert len(kept) == len(values)
    elif not np.isnan(values).all():
        finite = values[~np.isnan(values)]
        assert finite.min() in values[kept]
        if np.isnan(values).any():
            assert np.isnan(values[kept]).any()
        else:
            assert finite.max() in values[kept]


def test_every_stretch_is_represented() -> None:
    values = np.tile([0.0, 5.0, -5.0, 1.0], 20)
    kept = extremes(values, 20)
    assert len(kept) == 20
    assert values[kept].tolist() == [5.0, -5.0] * 10


def test_less_than_two_points_are_the_last_ones() -> None:
    assert extremes(np.arange(5.0), 1).tolist() == [4]
    assert extremes(np.arange(5.0), 0).tolist() == []
