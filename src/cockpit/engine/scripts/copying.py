"""Copying tensors to the fixed places that recordings read, in as few launches as there are kinds of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit.engine.native import copied
from cockpit.engine.scripts.script import Feed

LARGE = 2**20
"""Numbers in a tensor that is copied by itself: times one, which runs at twice the bandwidth of a GPU's copies."""

OTHER = "the tensors of the backward pass have other shapes than when it was recorded"

Kinds = tuple[torch.dtype, ...]


def size_of(tensors: Sequence[Tensor]) -> int:
    """Return how many bytes tensors occupy."""
    return sum(t.numel() * t.element_size() for t in tensors)


class Copier:
    """Copies the same tensors at every step, to the same places.

    Or, where there is a feed for a place, says where they lie: they must then live until they have been read. Such a
    place gives up its memory.
    """

    def __init__(self, places: Sequence[Tensor], feeds: Sequence[Feed | None] = ()) -> None:
        self._places = list(places)
        self._shapes = [t.shape for t in places]
        fed = [(k, feed) for k, feed in enumerate(feeds) if feed is not None]
        self._feeds = [(k, feed, places[k].dtype, places[k].stride()) for k, feed in fed]
        self._fed = {k for k, _ in fed}
        self._laid: dict[int, Tensor] = {}
        """What did not lie like its place, in its order."""
        for k in self._fed:
            places[k].untyped_storage().resize_(0)
        self._groups: dict[Kinds, tuple[list[int], list[tuple[list[int], list[Tensor]]]]] = {}
        """By the kinds of the tensors that come: which are large, and which small ones are copied together."""

    def copy(self, values: Sequence[Tensor]) -> None:
        """Copy tensors of the shapes of their places."""
        if [t.shape for t in values] != self._shapes:
            raise RuntimeError(OTHER)
        kinds = tuple([t.dtype for t in values])
        if kinds not in self._groups:
            self._groups[kinds] = self._grouped(values)
        for k, feed, dtype, stride in self._feeds:
            value = values[k]
            if value.dtype is not dtype or value.stride() != stride:
                value = torch.empty_strided(value.shape, stride, dtype=dtype).copy_(value)
                self._laid[k] = value
            feed(value.data_ptr())
        large, groups = self._groups[kinds]
        for k in large:
            torch.mul(values[k], 1, out=self._places[k])
        for members, places in groups:
            torch._foreach_copy_(places, [values[k] for k in members])

    def _grouped(self, values: Sequence[Tensor]) -> tuple[list[int], list[tuple[list[int], list[Tensor]]]]:
        pairs = [
            (k, pair) for k, pair in enumerate(zip(self._places, values, strict=True)) if k not in self._fed
        ]
        large = [k for k, pair in pairs if _is_large(*pair)]
        small: dict[Kinds, list[int]] = {}
        for k, (place, value) in pairs:
            if not _is_large(place, value):
                small.setdefault((place.dtype, value.dtype), []).append(k)
        return large, [(members, [self._places[k] for k in members]) for members in small.values()]


def copy_all(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors to places of their shapes, together."""
    if not copied(places, values):
        torch._foreach_copy_(list(places), list(values))


class Copies:
    """Copies to places that come and go: of large tensors at once, of small ones together."""

    def __init__(self) -> None:
        self._small: dict[Kinds, tuple[list[Tensor], list[Tensor]]] = {}

    def add(self, places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Take more of them."""
        if [t.shape for t in places] != [t.shape for t in values]:
            raise RuntimeError(OTHER)
        for place, value in zip(places, values, strict=True):
            if _is_large(place, value):
                torch.mul(value, 1, out=place)
                continue
            to, source = self._small.setdefault((place.dtype, value.dtype), ([], []))
            to.append(place)
            source.append(value)

    def end(self) -> None:
        """Copy what is left."""
        for to, source in self._small.values():
            torch._foreach_copy_(to, source)
        self._small.clear()


def _is_large(place: Tensor, value: Tensor) -> bool:
    return value.numel() > LARGE and value.dtype == place.dtype and value.is_floating_point()
