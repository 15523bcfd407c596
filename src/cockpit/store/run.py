"""Run: reads a run, finished or growing, without torch and without disturbing the writer."""

from __future__ import annotations

import difflib
import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cockpit.errors import CockpitError
from cockpit.store.database import FILE, reading
from cockpit.store.length import last_step, longest
from cockpit.store.life import Life, life
from cockpit.store.points import Points
from cockpit.store.read import read_numbers
from cockpit.store.read_arrays import read_arrays
from cockpit.store.record import Event
from cockpit.store.series import Series, as_series, pandas

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Run", "Series", "find_runs"]


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
        return self._read(name, [scope], since, points)[0]

    def all_series(self, name: str, scopes: Sequence[str] | None = None, since: int = 0) -> list[Series]:
        """Return the values of a quantity for many scopes, read at once: hundreds take as long as a few one by one.

        Args:
            name: the quantity.
            scopes: names of parameters, "" for the model; all that `scopes` returns if None.
            since: only steps from here on.
        """
        return self._read(name, self.scopes(name) if scopes is None else scopes, since, None)

    def _read(self, name: str, scopes: Sequence[str], since: int, points: int | None) -> list[Series]:
        read = []
        with reading(self._file) as db:
            found = _found(db, name, scopes)
            everything = read_numbers(db, [number for number, _ in found], since)
            for scope, (number, kind), numbers in zip(scopes, found, everything, strict=True):
                if kind == "array":
                    read.append(Series(name, scope, *read_arrays(db, number, since, numbers, points)))
                else:
                    read.append(as_series(name, scope, numbers, points))
        return read

    def _points(self, name: str, since: Mapping[str, int]) -> dict[str, Points | None]:
        """Return the numbers of scopes, each from a step on; None for those that hold arrays."""
        with reading(self._file) as db:
            found = dict(zip(since, _found(db, name, tuple(since)), strict=True))
            numbers: dict[str, Points | None] = dict.fromkeys(since)
            for first in set(since.values()):
                group = [scope for scope in since if since[scope] == first and found[scope][1] != "array"]
                points = read_numbers(db, [found[scope][0] for scope in group], first)
                numbers.update(zip(group, points, strict=True))
        return numbers

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
            return life(db, self._file.stat().st_mtime)

    def steps(self) -> tuple[int, int | None]:
        """Return (how many points the longest series has, the last step of all)."""
        with reading(self._file) as db:
            return longest(db), last_step(db)

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


def _found(db: sqlite3.Connection, name: str, scopes: Sequence[str]) -> list[tuple[int, str]]:
    """Return the number and the kind of each series."""
    if any("\0" in scope for scope in scopes):  # which ends a string in SQLite's JSON
        rows = db.execute("SELECT scope, id, kind FROM series WHERE name = ?", (name,)).fetchall()
    else:
        rows = db.execute(
            "SELECT scope, id, kind FROM series WHERE name = ? AND scope IN (SELECT value FROM json_each(?))",
            (name, json.dumps(list(scopes))),
        ).fetchall()
    found = {scope: (number, kind) for scope, number, kind in rows}
    for scope in scopes:
        if scope not in found:
            raise CockpitError(_unknown(db, name, scope))
    return [found[scope] for scope in scopes]


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
