"""A folder of runs, and the page that shows them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cockpit.testing.runs import fake_run
from cockpit.web.app import make_app
from cockpit.web.guard import Guard, Rules
from cockpit.web.library import Library
from cockpit.web.ticks import Ticks

TOKEN = "a-token-for-tests-only"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, not to be changed."""
    return fake_run(tmp_path_factory.mktemp("made") / "run", steps=120, parameters=6)


@pytest.fixture
def logs(made: Path, tmp_path: Path) -> Path:
    """A folder with two runs, one of them further down."""
    for name in ("first", "deep/second"):
        shutil.copytree(made, tmp_path / "logs" / name)
    return tmp_path / "logs"


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A front end, in short."""
    assets = tmp_path / "dist" / "assets"
    assets.mkdir(parents=True)
    (tmp_path / "dist" / "index.html").write_text('<!doctype html><script src="./assets/index-a1B2c3D4.js">')
    (assets / "index-a1B2c3D4.js").write_text("console.log(1)\n" * 200)
    return tmp_path / "dist"


@pytest.fixture
def guard(logs: Path, dist: Path) -> Guard:
    library = Library([logs])
    return Guard(make_app(library, Ticks(library.sequences), dist), Rules(TOKEN))


@pytest.fixture
def stranger(guard: Guard) -> Iterator[TestClient]:
    """A client on this machine that knows nothing."""
    with TestClient(guard, base_url="http://localhost:6116", follow_redirects=False) as client:
        yield client


@pytest.fixture
def client(stranger: TestClient) -> TestClient:
    """A client that knows the token."""
    stranger.headers["X-Cockpit-Token"] = TOKEN
    return stranger
