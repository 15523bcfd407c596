"""Euclidean norms of a vector that is split into parameters."""

import numpy as np

from cockpit.engine.statistics import Statistic
from cockpit.quantities.quantity import Observation, Reading
from cockpit.store.record import Numbers


def norms(o: Observation, squared_lengths: Statistic) -> Reading:
    """Return each parameter's norm and the root of their sum of squares."""
    names, squares = o.statistics.stacked(squared_lengths)
    return Reading(float(np.sqrt(squares.sum())), Numbers(names, np.sqrt(squares)))
