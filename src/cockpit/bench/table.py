"""Prints costs as a table."""

from __future__ import annotations

from collections.abc import Sequence

from cockpit.bench.rounds import Cost


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows in columns: the first to the left, the others to the right.

    >>> print(table([("a", "1"), ("bcd", "10.5")]))
    a       1
    bcd  10.5
    """
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def times(value: float) -> str:
    """Return a ratio with three significant digits.

    >>> times(1.0449), times(27.31), times(1234.5)
    ('×1.04', '×27.3', '×1230')
    """
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"×{value:.{digits}f}" if value < 1000 else f"×{float(f'{value:.3g}'):.0f}"


def milliseconds(value: float) -> str:
    """Return milliseconds with three significant digits.

    >>> milliseconds(0.0712), milliseconds(3.456), milliseconds(123.4)
    ('0.0712', '3.46', '123')
    """
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def cost_cells(cost: Cost) -> tuple[str, str, str]:
    """Return milliseconds, ratio and quartiles by the clock that counts."""
    ratio = cost.ratio
    return milliseconds(cost.ms), times(ratio.median), f"{ratio.low:.2f}–{ratio.high:.2f}"
