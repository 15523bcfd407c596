"""Plots of results as SVG, written by hand: they need no library and look the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from cockpit.bench.table import times

INK, GRID = "#5f6b7a", "#9aa5b1"
COLOURS = {"economy": "#2f7ebc", "business": "#e0872b", "full": "#4a9a5c"}
FONT = 'font-family="system-ui, sans-serif" font-size="12"'


class Picture:
    """Shapes on a rectangle."""

    def __init__(self, width: int, height: int) -> None:
        self._size = width, height
        self._parts: list[str] = []

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, dashed: bool = False, width: float = 2
    ) -> None:
        """Draw a line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dash}/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Draw a filled rectangle."""
        shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}"'
        self._parts.append(f'<rect {shape} rx="2" fill="{colour}"/>')

    def text(self, x: float, y: float, words: str, anchor: str = "start", colour: str = INK) -> None:
        """Write words."""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" {FONT}>{escape(words)}</text>'
        )

    def svg(self, title: str) -> str:
        """Return the picture."""
        width, height = self._size
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
        return "\n".join([head, f"<title>{escape(title)}</title>", *self._parts, "</svg>"]) + "\n"


def interval_plot(
    title: str, intervals: Sequence[int], curves: dict[tuple[str, str], list[float | None]]
) -> str:
    """Return ratios over intervals, both axes logarithmic; a curve is a configuration, dashed for the original."""
    known = [v for values in curves.values() for v in values if v is not None]
    top = max(2.0, *known) if known else 2.0
    picture = Picture(460, 300)
    left, right, upper, lower = 60.0, 440.0, 40.0, 250.0
    reach = math.log(top) or 1.0

    def x(k: int) -> float:
        return left + (right - left) * math.log(k) / math.log(max(intervals))

    def y(value: float) -> float:
        return lower - (lower - upper) * math.log(max(value, 1.0)) / reach

    picture.text(left, 20, title)
    for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if tick <= top * 1.05:
            picture.line([(left, y(tick)), (right, y(tick))], GRID, width=0.4)
            picture.text(left - 6, y(tick) + 4, f"×{tick}", "end")
    for k in intervals:
        picture.text(x(k), lower + 18, str(k), "middle")
    picture.text((left + right) / 2, lower + 38, "tracked every … steps", "middle")
    for (environment, name), values in curves.items():
        points = [(x(k), y(v)) for k, v in zip(intervals, values, strict=True) if v is not None]
        picture.line(points, COLOURS[name], dashed=environment == "original")
    for number, (name, colour) in enumerate(COLOURS.items()):
        picture.text(right, upper + 14 * number, name, "end", colour)
    if any(environment == "original" for environment, _ in curves):
        picture.text(right, upper + 42, "dashed: original", "end")
    return picture.svg(title)


def quantity_plot(title: str, ours: dict[str, float], theirs: dict[str, float]) -> str:
    """Return bars of ratios, one pair for each quantity, on a logarithmic axis that begins at ×1."""
    names = sorted(set(ours) | set(theirs), key=lambda name: ours.get(name, 0.0))
    top = max([2.0, *ours.values(), *theirs.values()])
    picture = Picture(560, 60 + 26 * len(names))
    left, right = 130.0, 490.0

    def width(value: float) -> float:
        return (right - left) * math.log(max(value, 1.0)) / math.log(top)

    picture.text(left, 20, title)
    if theirs:
        picture.text(right, 38, "ours above, original below", "end")
    for number, name in enumerate(names):
        y = 48.0 + 26 * number
        picture.text(left - 8, y + 14, name, "end")
        for value, colour, shift in ((ours.get(name), "#2f7ebc", 0.0), (theirs.get(name), "#b9c2cc", 10.0)):
            if value is not None:
                place = y + (shift if theirs else 5.0)
                picture.bar(left, place, width(value), 9, colour)
                picture.text(left + width(value) + 5, place + 9, times(value))
    return picture.svg(title)
