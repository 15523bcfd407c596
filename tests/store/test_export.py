"""Exports: every record arrives in every format, with what is not finite and what is not a number."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from cockpit.errors import CockpitError
from cockpit.store.export import to_csv, to_jsonl, to_original, to_parquet
from cockpit.store.record import Histogram, Record
from cockpit.store.run import Run
from cockpit.store.writer import Writer

HIST = Histogram(np.array([1, 2]), np.array([0.0, 0.5, 1.0]), underflow=3, overflow=4, nan=5, inf=6)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    records = [
        Record(0, "loss", 0.1),
        Record(1, "loss", math.nan, status="failed: no, really"),
        Record(2, "loss", -math.inf),
        Record(0, "alpha", math.nan, status="concave"),
        Record(1, "alpha", 0.25),
        Record(0, "grad_norm", 5.0),
        Record(0, "grad_norm", 4.0, "b.weight"),
        Record(0, "grad_norm", 3.0, "a.weight"),
        Record(1, "grad_norm", math.nan, "a.weight"),
        Record(1, "grad_norm", 3.0, "b.weight"),
        Record(0, "grad_hist1d", HIST),
        Record(1, "grad_hist1d", math.nan, status="zero_gradient"),
        Record(0, "norm_test", 1.0, "a.weight"),
        Record(0, "parameters", np.array([[1.0, math.inf]]), "a.weight"),
    ]
    with Writer(tmp_path, {"parameters": {"a.weight": {}, "b.weight": {}}}) as writer:
        writer.write(records)
    return Run(tmp_path)


def test_csv(run: Run) -> None:
    text = io.StringIO()
    assert to_csv(run, text) == 14
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert rows[0] == {"step": "0", "name": "loss", "scope": "", "value": "0.1", "status": "ok"}
    assert [row["value"] for row in rows[1:3]] == ["nan", "-inf"]
    assert rows[1]["status"] == "failed: no, really"
    (hist,) = [row for row in rows if row["name"] == "grad_hist1d" and row["status"] == "ok"]
    assert json.loads(hist["value"])["counts"] == [1, 2]


def test_jsonl_is_strict_json(run: Run) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    text = io.StringIO()
    assert to_jsonl(run, text) == 14
    lines = [json.loads(line, parse_constant=refuse) for line in text.getvalue().splitlines()]
    values = {(line["name"], line["scope"], line["step"]): line["value"] for line in lines}
    assert values["loss", "", 1] == "NaN"
    assert values["loss", "", 2] == "-Infinity"
    assert values["parameters", "a.weight", 0] == [[1.0, "Infinity"]]
    assert values["grad_hist1d", "", 0] == {
        "counts": [1, 2],
        "edges": [0.0, 0.5, 1.0],
        "underflow": 3,
        "overflow": 4,
        "nan": 5,
        "inf": 6,
    }


def test_parquet(run: Run, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert to_parquet(run, tmp_path / "run.parquet") == 14
    rows = parquet.read_table(tmp_path / "run.parquet").to_pylist()
    assert rows[0] == {"step": 0, "name": "loss", "scope": "", "value": 0.1, "json": None, "status": "ok"}
    assert math.isnan(rows[1]["value"])
    hist = next(row for row in rows if row["name"] == "grad_hist1d")
    assert hist["value"] is None
    assert json.loads(hist["json"])["inf"] == 6


def test_parquet_without_pyarrow(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CockpitError, match="pip install"):
        to_parquet(run, tmp_path / "x")


def test_the_original_format(run: Run) -> None:
    text = io.StringIO()
    to_original(run, text)
    log = json.loads(text.getvalue())
    assert list(log) == ["0", "1"]  # at step 2 there is nothing finite
    assert list(log["0"]) == ["Alpha", "GradHist1d", "GradNorm", "Loss"]
    assert log["0"]["Alpha"] == -1
    assert log["0"]["GradNorm"] == [3.0, 4.0]  # in the model's order
    assert list(log["1"]) == ["Alpha"]
    hist = log["0"]["GradHist1d"]["hist"]
    assert (hist["__ndarray__"], hist["dtype"], hist["shape"]) == ([4.0, 6.0], "float32", [2])
