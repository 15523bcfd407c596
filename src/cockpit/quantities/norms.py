"""Euclidean norms of a vector that is split into parameters."""

import numpy as np

from cockpit.engine.statistics import Statistic
from cockpit.quantities.quantity import Observation, Reading, reading


def norms(o: Observation, squared_lengths: Statistic) -> Reading:
    """Return each parameter's norm and the root of their sum of squares."""
    names, squares = o.statistics.stacked(squared_lengths)
    return reading(np.sqrt(squares.sum(-1)), names, np.sqrt(squares))
