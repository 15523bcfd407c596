"""Runs that the tests of instruments share; they only read them."""

from __future__ import annotations

import pytest

from cockpit.store.run import Run
from cockpit.store.writer import Writer
from cockpit.testing.runs import fake_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A healthy run with every quantity."""
    return Run(fake_run(tmp_path_factory.mktemp("runs") / "healthy", steps=120))


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in which nothing is finite from step 36 on."""
    return Run(fake_run(tmp_path_factory.mktemp("runs") / "broken", steps=60, trouble="nan"))


@pytest.fixture(scope="session")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a parameter that gets no gradient."""
    return Run(fake_run(tmp_path_factory.mktemp("runs") / "dead", steps=40, trouble="dead_layer"))


@pytest.fixture(scope="session")
def gap(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of which steps 40 to 49 were not watched."""
    return Run(fake_run(tmp_path_factory.mktemp("runs") / "gap", steps=100, trouble="gap"))


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has just begun."""
    folder = tmp_path_factory.mktemp("runs") / "empty"
    with Writer(folder):
        pass
    return Run(folder)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run without any quantity: only what comes by itself, and what the loop logs."""
    return Run(fake_run(tmp_path_factory.mktemp("runs") / "bare", steps=10, parameters=2, quantities=()))


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of one step."""
    return Run(fake_run(tmp_path_factory.mktemp("runs") / "single", steps=1, parameters=3))
