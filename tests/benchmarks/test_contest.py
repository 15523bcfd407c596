"""A contest over a worker that needs no torch: rows, intervals, composed costs, memory, gaps and reasons."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contest import Contest, Rules
from benchmarks.environments import Environment
from benchmarks.remote import Remote
from cockpit.bench.rounds import Pace

FAKE = Path(__file__).with_name("fake_worker.py")
WATCHER = Environment("watcher", configurations=("economy",), singles=("norms", "unsupported"), idle=True)
DEADLY = Environment("deadly", singles=("deadly", "norms"))


@pytest.fixture(scope="module")
def rows() -> Iterator[dict[tuple[str, str, int], dict[str, Any]]]:
    remotes = {
        e.name: Remote([sys.executable, str(FAKE)], os.environ, FAKE.parent) for e in (WATCHER, DEADLY)
    }
    rules = Rules(Pace(rounds=2, shortest=0.01), intervals=(4, 100), longest=0.05)
    chosen = [(e, [*e.configurations, *e.singles]) for e in (WATCHER, DEADLY)]
    *_, found = Contest(remotes, rules, lambda text: None).results(chosen)
    yield {(row["environment"], row["name"], row["interval"]): row for row in found}
    for remote in remotes.values():
        remote.close()


Rows = dict[tuple[str, str, int], dict[str, Any]]


def test_ratios(rows: Rows) -> None:
    assert rows["watcher", "economy", 1]["process"]["median"] == pytest.approx(3.0)
    assert rows["watcher", "norms", 1]["process"]["median"] == pytest.approx(2.0)
    assert rows["watcher", "economy", 1]["process_ms"] == pytest.approx(3.0)
    assert rows["watcher", "economy", 1]["wall_ms"] == pytest.approx(6.0)


def test_short_intervals_are_measured(rows: Rows) -> None:
    row = rows["watcher", "economy", 4]
    assert row["how"] == "measured"
    assert row["process"]["median"] == pytest.approx((3 + 3 * 1) / 4)


def test_long_intervals_are_composed(rows: Rows) -> None:
    row = rows["watcher", "economy", 100]
    assert row["how"] == "composed of interval 4 and idle steps"
    assert row["process"]["median"] == pytest.approx((3 + 99 * 1) / 100)


def test_singles_are_measured_at_every_step_only(rows: Rows) -> None:
    assert ("watcher", "norms", 4) not in rows


def test_memory(rows: Rows) -> None:
    assert rows["watcher", "economy", 1]["peak_bytes"] == 300
    assert rows["watcher", "economy", 1]["peak_ratio"] == pytest.approx(3.0)


def test_gaps_and_reasons(rows: Rows) -> None:
    assert rows["watcher", "norms", 1]["gaps"] == ["norms: no_outputs"]
    assert rows["watcher", "unsupported", 1]["reason"] == "NotImplementedError: no such layer"
    assert "status 3" in rows["deadly", "deadly", 1]["reason"]
    assert "status 3" in rows["deadly", "norms", 1]["reason"]
