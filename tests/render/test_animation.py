from __future__ import annotations

import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cockpit import Run
from cockpit.errors import CockpitError
from cockpit.instruments.chart import View
from cockpit.render import animation
from cockpit.render.animation import HOLD, animate
from cockpit.store.record import Record
from cockpit.store.writer import Writer

SMALL = {"instruments": ["trace_gauge", "histogram1d_gauge"], "size": (4.0, 1.5), "dpi": 30.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    with Writer(folder, {"optimizer": "SGD"}) as writer:
        writer.write([Record(step, "hess_trace", 5.0 + step) for step in range(0, 40, 2)])
    return Run(folder)


@pytest.fixture
def seen(
    monkeypatch: pytest.MonkeyPatch,
) -> list[dict[str, tuple[tuple[float, float], tuple[float, float], int]]]:
    """The axes of each frame: their limits, and how many points the longest line has."""
    found: list[dict[str, tuple[tuple[float, float], tuple[float, float], int]]] = []
    compose = animation.compose

    def watched(into: object, *arguments: object, **more: object) -> None:
        compose(into, *arguments, **more)  # type: ignore[arg-type]
        found.append(
            {
                axes.get_label(): (
                    axes.get_xlim(),
                    axes.get_ylim(),
                    max(len(np.asarray(line.get_xdata())) for line in axes.lines),
                )
                for axes in into.axes  # type: ignore[attr-defined]
            }
        )

    monkeypatch.setattr(animation, "compose", watched)
    return found


def test_gif(run: Run, tmp_path: Path, seen: list[dict[str, tuple[object, object, int]]]) -> None:
    file, told = tmp_path / "run.gif", []
    assert animate(run, file, **SMALL, frames=7, fps=10, tell=lambda *count: told.append(count)) == 7  # type: ignore[arg-type]
    assert file.read_bytes().startswith(b"GIF89a")
    assert told == [(k, 7) for k in range(1, 8)]
    with Image.open(file) as picture:
        assert picture.n_frames == 7  # type: ignore[attr-defined]
        assert picture.size == (120, 44)
        assert picture.info["loop"] == 0
        assert picture.info["duration"] == 100
        assert picture.convert("RGB").getpixel((1, 1)) == (255, 255, 255)
        picture.seek(6)
        assert picture.info["duration"] == 100 * HOLD
    axes = [frame["trace_gauge main"] for frame in seen[1:]]  # the very first one is for the colours
    assert len({(x, y) for x, y, _ in axes}) == 1  # axes stay where they are
    points = [count for *_, count in axes]
    assert points == sorted(points)
    assert points[-1] == 20
    assert [path.name for path in tmp_path.iterdir()] == ["run.gif"]


def test_no_more_frames_than_steps(run: Run, tmp_path: Path) -> None:
    assert animate(run, tmp_path / "run.gif", **SMALL, frames=100) == 20  # type: ignore[arg-type]


def test_a_stretch(
    run: Run, tmp_path: Path, seen: list[dict[str, tuple[tuple[float, float], object, int]]]
) -> None:
    assert animate(run, tmp_path / "run.gif", **SMALL, view=View(first=10, last=20)) == 6  # type: ignore[arg-type]
    assert all(
        low >= 10 and high <= 20 for (low, high), _, _ in (frame["trace_gauge main"] for frame in seen)
    )
    with pytest.raises(CockpitError, match="no steps"):
        animate(run, tmp_path / "none.gif", **SMALL, view=View(first=1000))  # type: ignore[arg-type]


def test_other_endings_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(CockpitError, match=r"ends in \.gif or \.mp4"):
        animate(run, tmp_path / "run.avi")


def test_a_film_needs_ffmpeg(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("cockpit.render.animation.find_spec", lambda name: None)
    with pytest.raises(CockpitError, match="an MP4 needs ffmpeg"):
        animate(run, tmp_path / "run.mp4")


def test_a_real_film(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the ffmpeg that a package brings along."""
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "run.mp4"
    assert animate(run, file, **SMALL, frames=3) == 3  # type: ignore[arg-type]
    assert file.read_bytes()[4:8] == b"ftyp"
    assert b"moov" in file.read_bytes()


def program(folder: Path, code: str) -> None:
    """Put a program called ffmpeg into a folder."""
    file = folder / "ffmpeg"
    file.write_text(f"#!{sys.executable}\nimport sys\n{code}")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_a_film_gets_every_frame(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(
        tmp_path,
        "open(sys.argv[-1], 'wb').write(sys.stdin.buffer.read()); print(sys.argv, file=open(__file__ + '.txt', 'w'))",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "run.mp4"
    assert animate(run, file, **SMALL, frames=3, fps=10) == 3  # type: ignore[arg-type]
    assert file.stat().st_size == (3 + HOLD - 1) * 120 * 44 * 3
    said = (tmp_path / "ffmpeg.txt").read_text()
    assert "'120x44'" in said
    assert "'libx264'" in said


def test_what_ffmpeg_complains_about_is_handed_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "sys.exit('Unknown encoder')")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CockpitError, match="Unknown encoder"):
        animate(run, tmp_path / "run.mp4", **SMALL, frames=3)  # type: ignore[arg-type]
    assert not list(tmp_path.glob("run*"))
