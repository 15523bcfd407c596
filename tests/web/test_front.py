"""The files of the front end: what there is, how long it may be kept, and nothing else."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cockpit.web.app import make_app
from cockpit.web.guard import Guard, Rules
from cockpit.web.library import Library
from cockpit.web.ticks import Ticks


def test_the_page_is_never_kept(client: TestClient) -> None:
    for path in ("/", "/index.html"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_hashed_files_are_kept_for_ever(client: TestClient, dist: Path) -> None:
    answer = client.get("/assets/index-a1B2c3D4.js")
    assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.text == (dist / "assets/index-a1B2c3D4.js").read_text()
    (dist / "assets" / "plain.js").write_text("1")
    (dist / "licences.txt").write_text("mine")
    for name in ("assets/plain.js", "licences.txt"):
        assert client.get(f"/{name}").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/assets/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/%2e%2e%2fsecret.txt",
        "/..%5csecret.txt",
        "/assets/%2e%2e/%2e%2e/secret.txt",
        "//etc/passwd",
        "/etc/passwd",
        "/%2fetc%2fpasswd",
        "/index.html%00.js",
        "/%00",
        "/assets",
        "/assets/",
        "/assets/index-a1B2c3D4.js/",
        "/link.txt",
        "/program.py",
        "/.hidden",
        "/api",
        "/api/",
        "/api/nothing",
    ],
)
def test_nothing_else_is_there(client: TestClient, dist: Path, path: str) -> None:
    (dist.parent / "secret.txt").write_text("secret")
    (dist / "link.txt").symlink_to(dist.parent / "secret.txt")
    (dist / "program.py").write_text("secret")
    (dist / ".hidden").write_text("secret")
    answer = client.get(f"http://localhost:6116{path}")
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_before_it_is_built(logs: Path, dist: Path, tmp_path: Path) -> None:
    library = Library([logs])
    app = make_app(library, Ticks(library.sequences), tmp_path / "later")
    client = TestClient(Guard(app, Rules("token")), "http://localhost", headers={"X-Cockpit-Token": "token"})
    answer = client.get("/")
    assert answer.status_code == 503
    assert "<code>make web</code>" in answer.text
    assert len(client.get("/api/runs").json()["runs"]) == 2
    dist.rename(tmp_path / "later")  # built while the server runs
    assert client.get("/").status_code == 200


def test_who_cannot_unpack_gets_it_plain(client: TestClient) -> None:
    answer = client.get("/assets/index-a1B2c3D4.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in answer.headers
    assert len(gzip.compress(answer.content, 1)) < len(answer.content) / 10
