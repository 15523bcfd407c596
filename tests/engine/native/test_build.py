from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cockpit.engine.native import build, histogram, vectors
from cockpit.engine.native.library import library as loaded
from cockpit.engine.native.library import status
from cockpit.engine.numbers.binning import Grid

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")
FAKE = """
import pathlib, sys, time
here = pathlib.Path(__file__).parent
if "--version" in sys.argv:
    print("fake 1")
elif (here / "broken").exists():
    sys.exit("histogram.c:1: error: no such luck")
else:
    with (here / "compiled").open("a") as log:
        log.write("x")
    out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
    half = (here / "library.so").read_bytes()
    out.write_bytes(half[:1000])
    time.sleep(0.1)
    out.write_bytes(half)
"""
LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("build", sys.argv[1])
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
print(build.load().counted_float is not None)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library compiled in an empty folder, as on a new machine."""
    folder = tmp_path_factory.mktemp("new")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COCKPIT_CACHE", str(folder))
        patch.delenv("CC", raising=False)
        patch.delenv("COCKPIT_NATIVE", raising=False)
        return Path(str(build.load()._name))


@pytest.fixture
def fake(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a quick compiler, which is $CC, and an empty cache."""
    (tmp_path / "cc.py").write_text(FAKE)
    shutil.copy(library, tmp_path / "library.so")
    monkeypatch.setenv("CC", shlex.join([sys.executable, str(tmp_path / "cc.py")]))
    monkeypatch.setenv("COCKPIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COCKPIT_NATIVE", raising=False)
    return tmp_path


@needs_compiler
def test_it_is_compiled_once_and_nothing_else_is_left(fake: Path) -> None:
    first, second = build.load(), build.load()
    assert first._name == second._name
    assert (fake / "compiled").read_text() == "x"
    assert [p.name for p in (fake / "cache").iterdir()] == [Path(first._name).name]


@needs_compiler
def test_two_processes_at_once(fake: Path) -> None:
    command = [sys.executable, "-c", LOAD, str(build.__file__)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [p.communicate(timeout=30) for p in both] == [("True\n", ""), ("True\n", "")]
    assert len(list((fake / "cache").iterdir())) == 1


@needs_compiler
@pytest.mark.parametrize("change", ["compiler", "processor", "flags"])
def test_another_machine_has_another_library(
    fake: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first = build.load()._name
    if change == "compiler":
        (fake / "cc.py").write_text(FAKE.replace("fake 1", "fake 2"))
    elif change == "processor":
        monkeypatch.setattr(build, "_processor", lambda: "another")
    else:
        monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    assert build.load()._name != first


def test_the_processor_is_known_by_what_it_can_do() -> None:
    if Path("/proc/cpuinfo").exists():
        assert any(word in build._processor() for word in ("flags", "Features", "isa"))


@needs_compiler
def test_a_compiler_that_fails_is_quoted(fake: Path) -> None:
    (fake / "broken").touch()
    with pytest.raises(build.UnavailableError, match="no such luck"):
        build.load()
    assert list((fake / "cache").iterdir()) == []


@needs_compiler
def test_a_cache_that_cannot_be_written(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake / "file").touch()
    monkeypatch.setenv("COCKPIT_CACHE", str(fake / "file" / "cache"))
    with pytest.raises(build.UnavailableError, match="no usable cache folder"):
        build.load()


@needs_compiler
def test_a_damaged_library_is_passed_over(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = fake / "home" / "cockpit" / "native" / Path(build.load()._name).name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"not a library")
    monkeypatch.delenv("COCKPIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(fake / "home"))
    monkeypatch.setattr(build.tempfile, "tempdir", str(fake))
    assert Path(build.load()._name).parent.parent == fake


@needs_compiler
def test_the_usual_folder(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COCKPIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(fake / "home"))
    assert Path(build.load()._name).parent == fake / "home" / "cockpit" / "native"


@needs_compiler
def test_a_temporary_folder_that_others_can_write_is_not_trusted(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake / "file").touch()
    monkeypatch.delenv("COCKPIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(fake / "file" / "home"))
    monkeypatch.setattr(build.tempfile, "tempdir", str(fake))
    shared = Path(build.load()._name).parent
    shared.chmod(0o777)
    with pytest.raises(build.UnavailableError, match="no usable cache folder"):
        build.load()


@pytest.mark.parametrize(
    ("name", "value"),
    [("CC", "there-is-no-such-compiler"), ("CC", "'"), ("COCKPIT_NATIVE", "0"), ("CC", "false")],
)
def test_without_a_library_nothing_is_counted_and_nothing_is_raised(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.delenv("COCKPIT_NATIVE", raising=False)
    monkeypatch.setenv(name, value)
    loaded.cache_clear()
    try:
        said = status()
        assert said.startswith("by torch (")
        assert value in said or name in said or "quotation" in said
        assert histogram.count(torch.zeros(1, 1), Grid(2, -1.0, 1.0)) is None
        assert histogram.count_outer(torch.zeros(1, 1), torch.zeros(1, 1), Grid(2, -1.0, 1.0)) is None
        assert histogram.places(torch.zeros(1), Grid(2, -1.0, 1.0)) is None
        assert vectors.inner([torch.zeros(1, 1)], [torch.zeros(1, 1)]) is None
        assert vectors.combine(torch.zeros(1, 1), [torch.zeros(1, 1)]) is None
    finally:
        loaded.cache_clear()


def test_every_source_is_part_of_the_key() -> None:
    here = Path(build.__file__).parent
    assert {p.name for p in here.iterdir() if p.suffix in (".c", ".h")} == set(build.SOURCES)
