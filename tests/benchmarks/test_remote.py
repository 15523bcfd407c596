"""The driver's side of the pipe: answers come back, errors and deaths become reasons."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.remote import BEREFT, Remote
from cockpit.bench.clock import Times
from cockpit.bench.rounds import UnableError

FAKE = Path(__file__).with_name("fake_worker.py")


@pytest.fixture
def remote() -> Iterator[Remote]:
    worker = Remote([sys.executable, str(FAKE)], os.environ, FAKE.parent)
    yield worker
    worker.close()


def test_times_come_back(remote: Remote) -> None:
    assert remote.run("economy", 2, 4) == Times(4, pytest.approx(0.016), pytest.approx(0.008))


def test_an_error_is_raised_and_the_worker_goes_on(remote: Remote) -> None:
    with pytest.raises(UnableError, match="NotImplementedError: no such layer"):
        remote.ask("prepare", contestant="unsupported")
    assert remote.ask("prepare", contestant="economy") == {}
    assert remote.alive


def test_a_dead_worker_says_its_last_words(remote: Remote) -> None:
    with pytest.raises(UnableError, match="ended with status 3: out of memory"):
        remote.run("deadly", 1, 1)
    assert not remote.alive
    with pytest.raises(UnableError, match=f"^{BEREFT}: the worker ended with status 3"):
        remote.ask("prepare", contestant="economy")
