from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cockpit.legacy.log import read_log, write_log

GOLDEN = Path(__file__).parents[1] / "golden" / "mlp_25-sgd"


def test_the_original_s_file_is_written_again_letter_by_letter(tmp_path: Path) -> None:
    write_log(tmp_path / "again", read_log(GOLDEN))
    again, original = ((p.with_suffix(".json")).read_text() for p in (tmp_path / "again", GOLDEN))
    assert json.loads(again) == json.loads(original)
    assert again.splitlines() == original.splitlines()


def test_arrays_come_back(tmp_path: Path) -> None:
    output = {
        2: {"B": {"hist": np.arange(6).reshape(2, 3), "edges": (np.float32([0, 1]), np.float32([2, 3]))}},
        10: {"A": -1, "C": [0.5, 1.5]},
        1: {"A": np.float64(0.25)},
    }
    write_log(str(tmp_path / "log"), output)
    log = read_log(str(tmp_path / "log"))
    assert list(log) == [1, 2, 10]
    np.testing.assert_array_equal(log[2]["B"]["hist"], output[2]["B"]["hist"])
    assert log[2]["B"]["hist"].dtype == np.int64
    assert [edge.dtype for edge in log[2]["B"]["edges"]] == [np.float32] * 2
    assert log[10] == {"A": -1, "C": [0.5, 1.5]}
    assert isinstance(log[10]["A"], int)
    assert log[1] == {"A": 0.25}


def test_entries_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    bad = {
        "a": float("nan"),
        "b": [1.0, float("inf")],
        "c": {"d": np.float32([np.nan])},
        "e": np.float64("nan"),
    }
    write_log(tmp_path / "log", {0: {**bad, "f": 1.0}})
    assert read_log(tmp_path / "log") == {0: {"f": 1.0}}


def test_folders_are_made_and_a_bare_name_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "a" / "b" / "log", {0: {"x": 1}})
    assert read_log(tmp_path / "a" / "b" / "log") == {0: {"x": 1}}
    monkeypatch.chdir(tmp_path)
    write_log("here", {0: {"x": 2}})
    assert read_log(tmp_path / "here") == {0: {"x": 2}}


def test_a_failure_leaves_the_older_log_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "log", {0: {"x": 1}})
    with pytest.raises(TypeError):
        write_log(tmp_path / "log", {0: {"x": object()}})

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        write_log(tmp_path / "log", {0: {"x": 2}})
    assert [p.name for p in tmp_path.iterdir()] == ["log.json"]
    assert read_log(tmp_path / "log") == {0: {"x": 1}}
