"""What is shipped: the wheel holds the page, and serves it where there is no node and no torch."""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[1]
DIST = ROOT / "src" / "cockpit" / "web" / "dist"
# importable name of what the page's server needs, besides the standard library
NEEDED = ["numpy", "starlette", "uvicorn", "click", "h11", "anyio", "idna", "sniffio", "typing_extensions"]

pytestmark = [
    pytest.mark.skipif(not (DIST / "index.html").is_file(), reason="the page is not built: make web"),
    pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed"),
]


def built(target: str, folder: Path) -> Path:
    """Return the archive made by the build backend itself, which needs no network."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder],
        cwd=ROOT,
        check=True,
        timeout=120,
        capture_output=True,
    )
    (archive,) = folder.iterdir()
    return archive


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the wheel and what it needs to show runs, but without torch."""
    home = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=60)
    (site,) = home.glob("lib/python*/site-packages")
    for name in NEEDED:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            continue  # not every release of a server needs all of them
        origin = Path(found.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (site / source.name).symlink_to(source)
        binaries = source.with_name(f"{source.name}.libs")  # where a wheel keeps its shared libraries
        if binaries.is_dir():
            (site / binaries.name).symlink_to(binaries)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return home


@pytest.fixture
def address(installed: Path, tmp_path: Path) -> Iterator[str]:
    """Start `cockpit show` with a PATH on which nothing is; yield what it printed."""
    command = [installed / "bin" / "python", "-m", "cockpit", "show", tmp_path, "--port", "0", "--no-browser"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COCKPIT_", "PYTHON"))}
    environment["PATH"] = str(installed / "bin")
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.search(r"http://\S+", line)
        try:
            assert found, line + server.communicate(timeout=10)[1]
            yield found[0]
        finally:
            server.terminate()
            server.communicate(timeout=10)


def test_the_wheel_holds_the_page_and_its_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        page = archive.read("cockpit/web/dist/index.html").decode()
        licences = archive.read("cockpit/web/dist/licences.txt").decode()
    for reference in re.findall(r'(?:src|href)="\./([^"]+)"', page):
        assert f"cockpit/web/dist/{reference}" in names
    assert re.search(r"^svelte \d", licences, re.MULTILINE)
    assert re.search(r"^uplot \d", licences, re.MULTILINE)
    assert not [name for name in names if "node_modules" in name or name.endswith((".ts", ".svelte", ".map"))]


def test_the_page_is_small(wheel: Path) -> None:
    """What a browser fetches, gzipped: below 300 kB. The wheel: mostly the demo's images."""
    assets = [file for file in DIST.rglob("*") if file.suffix in {".html", ".js", ".css", ".svg"}]
    assert sum(len(gzip.compress(file.read_bytes())) for file in assets) < 300_000
    assert wheel.stat().st_size < 4_000_000


def test_the_source_archive_carries_the_built_page(tmp_path: Path) -> None:
    """So that installing from it needs no node."""
    with tarfile.open(built("sdist", tmp_path)) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    for name in [
        "src/cockpit/web/dist/index.html",
        "hatch_build.py",
        "web/build.py",
        "web/package-lock.json",
    ]:
        assert name in names
    assert not [name for name in names if "node_modules" in name]


def test_an_installed_wheel_serves_the_page_without_node_and_torch(installed: Path, address: str) -> None:
    no_torch = [installed / "bin" / "python", "-c", "import torch"]
    assert subprocess.run(no_torch, check=False, capture_output=True, timeout=60).returncode != 0
    url = urlsplit(address)
    token = url.query.partition("token=")[2]

    def fetch(path: str) -> tuple[int, bytes]:
        with closing(HTTPConnection(url.hostname or "", url.port, timeout=20)) as connection:
            connection.request("GET", path, headers={"X-Cockpit-Token": token})
            answer = connection.getresponse()
            return answer.status, answer.read()

    status, page = fetch("/")
    assert status == 200
    assert page == (DIST / "index.html").read_bytes()
    references = re.findall(r'(?:src|href)="\./([^"]+)"', page.decode())
    assert references
    for reference in references:
        assert fetch(f"/{reference}") == (200, (DIST / reference).read_bytes())
    status, runs = fetch("/api/runs")
    assert (status, json.loads(runs)) == (200, {"runs": []})


def test_extras_are_named_in_the_metadata(installed: Path) -> None:
    (site,) = installed.glob("lib/python*/site-packages")
    (found,) = importlib.metadata.distributions(name="cockpit-debugger", path=[str(site)])
    assert {"plot", "video", "notebook"} <= set(found.metadata.get_all("Provides-Extra") or [])
