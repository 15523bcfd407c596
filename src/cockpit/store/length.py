"""How long a run is: how many points its longest series has, and its last step."""

from __future__ import annotations

import json
import sqlite3
from itertools import pairwise

from cockpit.store.read import read_numbers

LOOKED_AT = 50
"""So many series are looked at most: where steps were written twice, every one has to be read."""

_ENDS = (("last_step", "chunk"), ("step", "step_row"), ("step", "array"), ("step", "block"))
"""Where the last steps of everything are."""

_BOUNDS = """
SELECT series, sum(count) AS most FROM (
  SELECT series, count FROM chunk
  UNION ALL
  SELECT member.value, rows FROM (SELECT layout, count(*) AS rows FROM step_row GROUP BY layout)
  JOIN layout ON layout.id = layout JOIN json_each(layout.series) AS member
) GROUP BY series ORDER BY most DESC
"""
"""Every series of numbers with the points that were written for it: as many as it has, or more."""

_ARRAYS = """
SELECT max(n) FROM (
  SELECT count(DISTINCT step) AS n FROM array GROUP BY series
  UNION ALL
  SELECT count(DISTINCT step) FROM block GROUP BY layout
)
"""


def longest(db: sqlite3.Connection) -> int:
    """Return how many points the longest series has; of several written for one step the last counts alone.

    Whether numbers are in step rows or in chunks makes no difference.
    """
    best = 0
    for series, most in db.execute(_BOUNDS).fetchmany(LOOKED_AT):
        if most <= best:
            break
        best = max(
            best, most if _is_ordered(db, series) else len(read_numbers(db, [series], -(2**63))[0].steps)
        )
    arrays = db.execute(_ARRAYS).fetchone()[0]
    return max(best, arrays or 0)


def last_step(db: sqlite3.Connection) -> int | None:
    """Return the last step of all; None where there is none."""
    ends = [db.execute(f"SELECT max({column}) FROM {table}").fetchone()[0] for column, table in _ENDS]
    return max((end for end in ends if end is not None), default=None)


def _is_ordered(db: sqlite3.Connection, series: int) -> bool:
    """Say whether no step of a series was written twice, as far as that can be seen without reading it."""
    spans = db.execute(
        "SELECT first_step, last_step FROM chunk WHERE series = ? ORDER BY id", (series,)
    ).fetchall()
    layouts = db.execute("SELECT id, series FROM layout WHERE id IN (SELECT layout FROM step_row)").fetchall()
    holding = [layout for layout, text in layouts if series in json.loads(text)]
    rows = db.execute(
        "SELECT step, step FROM step_row WHERE layout IN (SELECT value FROM json_each(?)) ORDER BY step",
        (json.dumps(holding),),
    ).fetchall()
    spans += rows
    return all(before[1] < after[0] for before, after in pairwise(spans))
