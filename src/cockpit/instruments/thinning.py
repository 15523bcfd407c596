"""Which points of a long series a line keeps, and where a series has gaps."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.chart import Floats
from cockpit.store.codec import Ints
from cockpit.store.series import extremes


def kept(values: Floats, points: int) -> Ints:
    """Return the positions that a line keeps: extremes, both ends, and a gap where a whole stretch is not finite."""
    count = len(values)
    if count <= points:
        return np.arange(count)
    room, there = max(2, points - points // 8 - 2), np.isfinite(values)
    if there.all():
        return np.unique([0, *extremes(values, room), count - 1])
    finite = np.flatnonzero(there)
    if not len(finite):
        return np.array([0, count - 1])
    bounds = np.concatenate([[-1], finite, [count]])
    holes = np.flatnonzero(np.diff(bounds) > max(2, 2 * count // room))[: points // 8]
    ends = finite[[0, -1]]
    chosen = [finite[extremes(values[finite], room)], ends, bounds[holes] + 1]
    return np.unique(np.concatenate(chosen).clip(0, count - 1))


def unrecorded(steps: Ints) -> Ints:
    """Return the positions after which steps are missing: five times as many as anywhere near.

    The three distances on either side count, as some quantities are recorded at two steps in a row.
    """
    apart = np.diff(steps)
    if len(apart) < 7 or apart.max() <= 5 * apart.min():
        return np.empty(0, np.int64)
    padded = np.pad(apart, 3)
    near = np.max([padded[k : k + len(apart)] for k in (0, 1, 2, 4, 5, 6)], axis=0)
    found = np.flatnonzero(apart > 5 * near)
    found = found[(found > 2) & (found < len(apart) - 3)]
    return found
