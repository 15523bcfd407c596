"""Points of one series of numbers, as they lie in the tables and as they are put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cockpit.store.codec import Floats, Ints


class Points(NamedTuple):
    """Steps, values, and the statuses that are not ok by position."""

    steps: Ints
    values: Floats
    status: Mapping[int, str]

    @staticmethod
    def join(parts: list[Points]) -> Points:
        """Put parts one after another, in the order given."""
        if len(parts) == 1:
            return parts[0]
        steps = np.concatenate([part.steps for part in parts])
        values = np.concatenate([part.values for part in parts])
        status, offset = {}, 0
        for part in parts:
            status.update({position + offset: text for position, text in part.status.items()})
            offset += len(part.steps)
        return Points(steps, values, status)

    def take(self, kept: Ints) -> Points:
        """Return the points at the positions given."""
        status = {}
        if self.status:
            found = np.flatnonzero(np.isin(kept, np.fromiter(self.status, dtype=np.int64)))
            status = {int(new): self.status[int(kept[new])] for new in found}
        return Points(self.steps[kept], self.values[kept], status)

    def since(self, step: int) -> Points:
        """Return the points from a step on; they must be sorted."""
        start = int(np.searchsorted(self.steps, step))
        status = {position - start: text for position, text in self.status.items() if position >= start}
        return Points(self.steps[start:], self.values[start:], status)

    def sorted(self) -> Points:
        """Return the points by ascending step; of several with one step, the last."""
        if len(self.steps) < 2 or bool((np.diff(self.steps) > 0).all()):
            return self
        order = np.argsort(self.steps, kind="stable")
        last = np.append(np.diff(self.steps[order]) != 0, True)
        return self.take(order[last])
