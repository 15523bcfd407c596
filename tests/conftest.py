"""What all tests share."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator

import pytest

from cockpit.engine.derivatives.attention import INSTALLATION


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> Iterator[None]:
    """Let children be interrupted: tests in the background of a shell ignore Ctrl-C, and children inherit that."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    """Have every run closed by the test that began it: a writer that goes on is in the way of others."""
    before, users = _writers(), INSTALLATION.users
    yield
    assert not _writers() - before, "a Cockpit or Writer was not closed"
    if users != INSTALLATION.users:
        gc.collect()  # an exception holds its frames, they hold it: legacy cockpits close when they are collected
    assert users == INSTALLATION.users, "an Engine was left that watches attention"


def _writers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "cockpit-writer"}
