"""The schema is open: what docs/store.md says about the file is true."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cockpit.store.record import Event, Histogram, Record
from cockpit.store.writer import Writer

PAGE = Path(__file__).parents[2] / "docs" / "store.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run with numbers, a histogram, an array and an event."""
    hist = Histogram(np.array([1, 2, 3]), np.array([0.0, 1.0, 2.0, 3.0]), 4, 5, 6, 7)
    with Writer(tmp_path, {"config": "full"}) as writer:
        writer.write([Record(step, "loss", step / 4) for step in range(0, 40, 4)])
        writer.write(
            [Record(8, "grad_hist1d", hist), Record(9, "odd", np.arange(6, dtype=np.int32).reshape(2, 3))]
        )
        writer.event(Event(3, "gap", "why"))
    return tmp_path


def test_every_table_is_on_the_page(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "run.db")) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        assert db.execute("PRAGMA application_id").fetchone() == (0x434B5054,)
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)) == tables


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="no sqlite3 shell")
def test_the_queries_of_the_page_work_in_the_shell(folder: Path) -> None:
    queries = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    shell = ["sqlite3", "-readonly", str(folder / "run.db")]
    answers = [
        subprocess.run([*shell, query], capture_output=True, text=True, check=True).stdout
        for query in queries
    ]
    facts, chunks, hot, hists = (answer.splitlines() for answer in answers)
    assert 'config|"full"' in facts
    assert "loss|1|number" in facts
    assert "3|gap|why" in facts
    assert chunks == [f"{step}|{step / 4}" for step in range(0, 40, 4)]
    assert hot == []
    assert hists == ["8|[3]|4|5|6|7"]


def test_bytes_are_what_the_page_says(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "run.db")) as db:
        (data,) = db.execute("SELECT data FROM chunk").fetchone()
        dtype, shape, counts = db.execute(
            "SELECT dtype, shape, data FROM array WHERE kind = 'array'"
        ).fetchone()
        (edges,) = db.execute("SELECT data FROM edges").fetchone()
    assert np.frombuffer(data, ">f8").tolist() == list(range(10))
    assert np.frombuffer(edges, ">f8").tolist() == [0.0, 1.0, 2.0, 3.0]
    assert (dtype, json.loads(shape)) == (">i4", [2, 3])
    assert np.frombuffer(zlib.decompress(counts), dtype).tolist() == list(range(6))
