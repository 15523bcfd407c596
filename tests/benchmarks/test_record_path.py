"""What recording costs is measured on the real recorder, writer and reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import record_path


@pytest.mark.parametrize("bins", [0, 5])
def test_both_threads_are_timed(bins: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_path, "BLOCK", 3)
    found = record_path.measured(quantities=2, parameters=3, bins=bins, steps=12, pause=0.0)
    assert set(found) == {"training_us", "training_paused_us", "writing_us"}
    assert all(value > 0 for value in found.values())


def test_a_long_run_is_read_back(tmp_path: Path) -> None:
    written = record_path.long_run(tmp_path / "run", 1001)
    assert written["file_mb"] > 0
    read = record_path.reading_times(tmp_path / "run", processes=1)
    assert all(milliseconds > 0 for milliseconds in read.values())
