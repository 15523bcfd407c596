"""Run: reads a run, finished or growing, without torch and without disturbing the writer."""

from __future__ import annotations

import difflib
import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cockpit.errors import CockpitError
from cockpit.store.database import FILE, reading
from cockpit.store.life import Life, life
from cockpit.store.read import read_numbers
from cockpit.store.read_arrays import read_arrays
from cockpit.store.record import Event
from cockpit.store.series import Series, extremes, pandas
from cockpit.store.status import Texts

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Run", "Series", "find_runs"]


_STEPS = (("last_step", "chunk"), ("step", "step_row"), ("step", "array"), ("step", "block"))
"""Where the last steps of everything are."""


class Run:
    """One run, by its folder or its ``run.db``.

    Every call sees one consistent state of the file, so a run can be read while it is written. Nothing is
    kept between calls: asking again gives what is there now.
    """

    def __init__(self, path: str | os.PathLike[str]):
        given = Path(path)
        self.path = given.parent if given.name == FILE and not given.is_dir() else given
        self._file = self.path / FILE
        if not self._file.is_file():
            raise CockpitError(_no_run(given))
        with reading(self._file):
            pass

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the run as a notebook shows it: interactive, without a server."""
        # by name: whoever only reads runs needs nothing that draws
        text: str = import_module("cockpit.render.notebook").cell(self)
        return text

    def names(self) -> list[str]:
        """Return the names of all quantities, in the order of their first appearance."""
        with reading(self._file) as db:
            return _names(db)

    def scopes(self, name: str) -> list[str]:
        """Return the scopes of a quantity in the order of first appearance; the model ("") comes first."""
        with reading(self._file) as db:
            rows = db.execute(
                "SELECT scope FROM series WHERE name = ? ORDER BY scope != '', id", (name,)
            ).fetchall()
            if not rows:
                raise CockpitError(_unknown(db, name, None))
        return [scope for (scope,) in rows]

    def series(self, name: str, scope: str = "", since: int = 0, points: int | None = None) -> Series:
        """Return the values of a quantity.

        Args:
            name: the quantity, for example ``"grad_norm"``.
            scope: a parameter's name; empty for the model as a whole.
            since: only steps from here on.
            points: at most so many points (at least 2 for numbers): numbers keep the minimum and the maximum
                of every stretch, arrays and histograms are picked evenly.
        """
        with reading(self._file) as db:
            row = db.execute(
                "SELECT id, kind FROM series WHERE name = ? AND scope = ?", (name, scope)
            ).fetchone()
            if row is None:
                raise CockpitError(_unknown(db, name, scope))
            number, kind = row
            numbers = read_numbers(db, number, since)
            if kind == "array":
                steps, values, status = read_arrays(db, number, since, numbers, points)
                return Series(name, scope, steps, values, status)
        if points is not None:
            numbers = numbers.take(extremes(numbers.values, points))
        words = Texts(numbers.status, len(numbers.steps))
        return Series(name, scope, numbers.steps, numbers.values, words)

    @property
    def meta(self) -> dict[str, Any]:
        """What is known about the run as a whole."""
        with reading(self._file) as db:
            return {key: json.loads(value) for key, value in db.execute("SELECT key, value FROM meta")}

    def events(self, kind: str | None = None) -> list[Event]:
        """Return what happened, in order; all of it, or one kind."""
        with reading(self._file) as db:
            rows = db.execute(
                "SELECT step, kind, text, scope, data FROM event WHERE kind = ? OR ? IS NULL ORDER BY id",
                (kind, kind),
            ).fetchall()
        return [Event(step, word, text, scope, json.loads(data)) for step, word, text, scope, data in rows]

    @property
    def sequence(self) -> int:
        """A number that grows with every change: ask for it before asking for data again."""
        with reading(self._file) as db:
            return int(db.execute("SELECT sequence FROM state").fetchone()[0])

    @property
    def status(self) -> Life:
        """Whether the run is being written ("running"), was closed ("finished"), or its process died."""
        with reading(self._file) as db:
            return life(db)

    def steps(self) -> tuple[int, int | None]:
        """Return (how many points the longest series has, the last step of all)."""
        with reading(self._file) as db:
            longest = db.execute("SELECT series FROM chunk GROUP BY series ORDER BY sum(count) DESC LIMIT 1")
            found = longest.fetchone()
            numbers = len(read_numbers(db, found[0], -(2**63)).steps) if found else 0
            rows = db.execute("SELECT count(DISTINCT step) FROM step_row").fetchone()[0]
            arrays = db.execute(
                "SELECT max(n) FROM (SELECT count(*) AS n FROM array GROUP BY series "
                "UNION ALL SELECT count(*) FROM block GROUP BY layout)"
            ).fetchone()[0]
            ends = [
                db.execute(f"SELECT max({column}) FROM {table}").fetchone()[0] for column, table in _STEPS
            ]
        return max(numbers, rows, arrays or 0), max((end for end in ends if end is not None), default=None)

    def to_pandas(self) -> pd.DataFrame:
        """Return all numbers in long form: step, name, scope, value, status."""
        frames = [
            series.to_pandas().reset_index().assign(name=series.name, scope=series.scope)
            for series in self
            if isinstance(series.values, np.ndarray)
        ]
        columns = ["step", "name", "scope", "value", "status"]
        if not frames:
            empty: pd.DataFrame = pandas().DataFrame(columns=columns)
            return empty
        whole: pd.DataFrame = pandas().concat(frames, ignore_index=True)[columns]
        return whole

    def plot(
        self,
        instruments: str | Iterable[str] | None = None,
        *,
        step: int | None = None,
        first: int | None = None,
        last: int | None = None,
        scope: str = "",
        **options: Any,
    ) -> Any:
        """Return a `matplotlib.figure.Figure` of a whole screen, or of single instruments.

        Args:
            instruments: name or names, such as ``"alpha_gauge"``; without, the whole screen is drawn.
            step: the moment that histograms show; default: the newest.
            first: no step before this one.
            last: no step after this one.
            scope: a parameter, or a layer and all below it.
            options: ``screen``, ``size``, ``dark``, ``runs``, ``title``, ``log_steps``: see
                `cockpit.render.figure.figure`.
        """
        # by name: the store knows no renderer, and matplotlib is loaded by those who draw
        view = import_module("cockpit.instruments.chart").View(step, first, last, scope=scope)
        drawing = import_module("cockpit.render.plot_command").drawing("figure")
        return drawing.figure(self, instruments, view=view, **options)

    def show(self, **options: Any) -> Any:
        """Show the run: in a notebook below the cell, else on a page in the browser.

        Outside of notebooks, returns the server, which ends with the program or by its ``stop()``; ``options`` are
        those of `cockpit.web.serve_in_background`.
        """
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if hasattr(shell, "kernel"):
            import_module("IPython.display").display(self)
            return None
        web = import_module("cockpit.web")
        serving = web.serve_in_background([self.path], **options)
        web.announce(serving)
        return serving

    def __iter__(self) -> Iterator[Series]:
        """Go through all series."""
        for name in self.names():
            for scope in self.scopes(name):
                yield self.series(name, scope, since=-(2**63))


def find_runs(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the folders at or below a folder that hold a run, by name."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if FILE in files:
            found.append(Path(place))
    return sorted(found)


def _names(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM series GROUP BY name ORDER BY min(id)")]


def _unknown(db: sqlite3.Connection, name: str, scope: str | None) -> str:
    """Say what is missing, what comes near, and what there is."""
    names = _names(db)
    if name not in names:
        return f"no series {name!r}{_near(name, names)} This run has: {', '.join(names) or 'nothing yet'}."
    scopes = [text for (text,) in db.execute("SELECT scope FROM series WHERE name = ? ORDER BY id", (name,))]
    shown = ", ".join(repr(text) for text in scopes[:20]) + (", …" if len(scopes) > 20 else "")
    return f"{name!r} has no scope {scope!r}{_near(str(scope), scopes)} It has: {shown}."


def _near(word: str, words: list[str]) -> str:
    near = difflib.get_close_matches(word, words, n=3)
    return f"; did you mean {' or '.join(repr(other) for other in near)}?" if near else "."


def _no_run(path: Path) -> str:
    """Say why a path is no run, and which runs are near."""
    if not path.exists():
        return f"{path} does not exist."
    runs = find_runs(path) if path.is_dir() else []
    if runs:
        return f"{path} is not a run but holds {len(runs)}, for example {runs[-1]}."
    return f"{path} is not a run: it has no {FILE}." if path.is_dir() else f"{path} is not a run."
