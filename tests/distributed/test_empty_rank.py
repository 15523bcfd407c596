"""What one rank has not seen, the others do not wait for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cockpit import Run


def test_a_rank_without_examples_is_a_gap_and_no_deadlock(tmp_path: Path):
    script = Path(__file__).with_name("empty_rank.py")
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=120)
    run = Run(tmp_path / "run")
    assert run.series("norm_test").steps.tolist() == [0, 2, 3]
    assert run.series("norm_test").status == ["ok"] * 3
    assert [(e.step, e.kind) for e in run.events()] == [(1, "unwatched_step")]
