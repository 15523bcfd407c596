"""Memory: what was read last, as long as it fits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any

LIMIT = 256 * 2**20
"""Bytes."""


class Memory:
    """Values by key, the least recently used of which make room for new ones; for many threads."""

    def __init__(self, limit: int = LIMIT):
        self._limit = limit
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()
        self.size = 0

    def get(self, key: Hashable) -> Any:
        """Return a value, or None."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Keep a value of so many bytes, in place of an older one; what is larger than all of it is not kept."""
        with self._lock:
            self.size -= self._held.pop(key, (None, 0))[1]
            if size > self._limit:
                return
            self._held[key] = (value, size)
            self.size += size
            while self.size > self._limit:
                self.size -= self._held.popitem(last=False)[1][1]
