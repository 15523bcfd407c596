"""Points of one series of numbers, as they lie in the tables and as they are put together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cockpit.store.codec import Floats, Ints
from cockpit.store.status import Status


class Points(NamedTuple):
    """Steps, values and statuses."""

    steps: Ints
    values: Floats
    status: Status

    @staticmethod
    def join(parts: list[Points]) -> Points:
        """Put parts one after another, in the order given."""
        if len(parts) == 1:
            return parts[0]
        steps = np.concatenate([part.steps for part in parts])
        values = np.concatenate([part.values for part in parts])
        status = Status.join([(part.status, len(part.steps)) for part in parts])
        return Points(steps, values, status)

    def take(self, kept: Ints | slice) -> Points:
        """Return the points at the positions given."""
        return Points(self.steps[kept], self.values[kept], self.status.take(kept))

    def since(self, step: int) -> Points:
        """Return the points from a step on; they must be sorted."""
        start = int(np.searchsorted(self.steps, step))
        return Points(self.steps[start:], self.values[start:], self.status.take(slice(start, None)))

    def sorted(self) -> Points:
        """Return the points by ascending step; of several with one step, the last."""
        if len(self.steps) < 2 or bool((np.diff(self.steps) > 0).all()):
            return self
        order = np.argsort(self.steps, kind="stable")
        last = np.append(np.diff(self.steps[order]) != 0, True)
        return self.take(order[last])
