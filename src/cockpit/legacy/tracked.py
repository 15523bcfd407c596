"""Tracked: what the original's cockpit tracked, in memory, as instruments read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cockpit.errors import CockpitError
from cockpit.store.original import entries
from cockpit.store.record import Event, Record
from cockpit.store.series import Series, extremes


class Tracked:
    """Answers like a `Run`.

    Args:
        output: ``{step: {class of the quantity, or name of what was logged: value}}``.
        meta: what is known about the training as a whole.
    """

    def __init__(self, output: Mapping[int, Mapping[str, Any]], meta: Mapping[str, Any]) -> None:
        self.meta = dict(meta)
        self._events: list[Event] = []
        self._records: dict[tuple[str, str], list[Record]] = {}
        for step in sorted(output):
            for found in entries(step, dict(output[step])):
                if isinstance(found, Event):
                    self._events.append(found)
                else:
                    self._records.setdefault((found.name, found.scope), []).append(found)

    def names(self) -> list[str]:
        """Return the names of all quantities."""
        return list(dict.fromkeys(name for name, _ in self._records))

    def scopes(self, name: str) -> list[str]:
        """Return the scopes of a quantity, the model ("") first."""
        found = [scope for other, scope in self._records if other == name]
        if not found:
            raise CockpitError(f"nothing was tracked under {name!r}. There are: {', '.join(self.names())}.")
        return sorted(found, key=lambda scope: scope != "")

    def series(self, name: str, scope: str = "", since: int = 0, points: int | None = None) -> Series:
        """Return the values of a quantity."""
        if (name, scope) not in self._records:
            raise CockpitError(f"{name!r} has no scope {scope!r}. It has: {', '.join(self.scopes(name))}.")
        records = [record for record in self._records[name, scope] if record.step >= since]
        numbers = all(isinstance(record.value, float) for record in records)
        if points is not None and len(records) > points:
            values = (
                np.array([record.value for record in records]) if numbers else np.arange(len(records) + 0.0)
            )
            even = np.unique(np.linspace(0, len(records) - 1, points).round().astype(int))
            records = [records[k] for k in (extremes(values, points) if numbers else even)]
        found = [record.value for record in records]
        steps = np.array([record.step for record in records], dtype=np.int64)
        status: Sequence[str] = [record.status for record in records]
        return Series(name, scope, steps, np.array(found, dtype=np.float64) if numbers else found, status)

    def all_series(self, name: str, scopes: Sequence[str] | None = None, since: int = 0) -> list[Series]:
        """Return the values of a quantity for many scopes, for all there are if None."""
        return [
            self.series(name, scope, since) for scope in (self.scopes(name) if scopes is None else scopes)
        ]

    def events(self, kind: str | None = None) -> list[Event]:
        """Return what could not be read as a number."""
        return [event for event in self._events if kind in (None, event.kind)]

    def steps(self) -> tuple[int, int | None]:
        """Return (how many points the longest series has, the last step of all)."""
        longest = max(map(len, self._records.values()), default=0)
        return longest, max((records[-1].step for records in self._records.values()), default=None)
