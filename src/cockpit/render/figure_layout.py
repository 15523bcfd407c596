"""Where things stand in a figure: the columns of a screen, the panels in them; all in inches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cockpit.instruments.screens import Column, Screen

EDGE, GAP = 0.2, 0.14
"""Room around everything, and between panels."""

HEAD, COLUMN_HEAD = 0.5, 0.32
"""Room for the title of the figure, and for those of columns."""

COLUMN, PANEL = 5.2, 2.2
"""How wide a column and how high a panel is, if nothing else is asked for."""

ALONE, TALL = (6.4, 3.4), 4.4
"""The size of an instrument alone; and its height if it has several plots."""


@dataclass(frozen=True)
class Box:
    """A rectangle in inches, from the lower left corner of the figure."""

    x: float
    y: float
    width: float
    height: float

    def inside(self, left: float, bottom: float, right: float, top: float) -> Box:
        """Return the box without a margin; it never becomes smaller than a hair."""
        width, height = max(0.05, self.width - left - right), max(0.05, self.height - bottom - top)
        return Box(self.x + left, self.y + bottom, width, height)

    def on(self, width: float, height: float) -> tuple[float, float, float, float]:
        """Return the box as shares of a figure of some size."""
        return self.x / width, self.y / height, self.width / width, self.height / height


@dataclass(frozen=True)
class Layout:
    """The boxes of panels by instrument; and of columns, for a screen."""

    panels: tuple[tuple[str, Box], ...]
    columns: tuple[tuple[Column, Box], ...] = ()


def screen_size(screen: Screen, names: int = 0) -> tuple[float, float]:
    """Return width and height of a figure of a screen; ``names``: how many layers a panel lists at most."""
    high = PANEL + min(2.0, max(0, names - 12) * 0.06)
    height = sum(COLUMN_HEAD + count * (high + GAP) for count in map(_deepest, screen.rows))
    return 2 * EDGE + _columns(screen) * COLUMN, HEAD + EDGE + height + GAP * (len(screen.rows) - 1)


def screen_layout(screen: Screen, width: float, height: float) -> Layout:
    """Share a figure among the columns of a screen, and each column among its instruments."""
    count = _columns(screen)
    wide = (width - 2 * EDGE - (count - 1) * GAP) / count
    deep = sum(map(_deepest, screen.rows))
    fixed = HEAD + EDGE + len(screen.rows) * COLUMN_HEAD + deep * GAP + (len(screen.rows) - 1) * GAP
    high = (height - fixed) / deep
    columns, panels = [], []
    top = height - HEAD
    for row in screen.rows:
        tall = COLUMN_HEAD + _deepest(row) * (high + GAP)
        left = EDGE
        for column in row:
            box = Box(left, top - tall, column.wide * wide + (column.wide - 1) * GAP, tall)
            columns.append((column, box))
            panels += list(zip(column.instruments, _stacked(box, len(column.instruments)), strict=True))
            left += box.width + GAP
        top -= tall + GAP
    return Layout(tuple(panels), tuple(columns))


def grid_size(count: int, tall: bool) -> tuple[float, float]:
    """Return width and height of a figure of some instruments; ``tall``: one of them has several plots."""
    across, down = _grid(count)
    return across * (ALONE[0] if across == 1 else COLUMN), down * (TALL if tall else ALONE[1])


def grid_layout(names: Sequence[str], width: float, height: float) -> Layout:
    """Share a figure among instruments."""
    across, down = _grid(len(names))
    wide, high = width / across, height / down
    boxes = [Box(k % across * wide, height - (k // across + 1) * high, wide, high) for k in range(len(names))]
    return Layout(tuple(zip(names, (box.inside(0.06, 0.06, 0.06, 0.06) for box in boxes), strict=True)))


def _stacked(column: Box, count: int) -> list[Box]:
    """Return the boxes of panels below each other in a column."""
    inner = column.inside(GAP, GAP, GAP, COLUMN_HEAD)
    high = (inner.height - (count - 1) * GAP) / count
    return [replace(inner, y=inner.y + k * (high + GAP), height=high) for k in reversed(range(count))]


def _columns(screen: Screen) -> int:
    return max(sum(column.wide for column in row) for row in screen.rows)


def _deepest(row: Sequence[Column]) -> int:
    return max(len(column.instruments) for column in row)


def _grid(count: int) -> tuple[int, int]:
    """Return how many panels stand beside each other, and how many below."""
    across = 1 if count < 2 else 2 if count < 5 else 3
    return across, math.ceil(max(1, count) / across)
