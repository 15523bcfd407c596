"""Animations: a run from its first step to its last, with axes that stay where they are, as GIF or MP4."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from cockpit.errors import CockpitError
from cockpit.instruments.chart import View
from cockpit.instruments.instrument import Source
from cockpit.instruments.screens import Screen
from cockpit.instruments.shelf import all_instruments
from cockpit.render.extent import pinned, shades
from cockpit.render.figure import Heading, Picture, compose, figure_size, settings
from cockpit.render.figure_contents import chosen, facts, instruments_of, run_name, screen_named
from cockpit.render.palette import DARK, LIGHT
from cockpit.render.status import chart_of

Frame = npt.NDArray[np.uint8]
"""[height, width, 3]: red, green, blue."""

COLOURS, APART = 256, 10
"""How many colours a GIF has, the same in all frames so that nothing flickers; and how much they differ at least."""

SAMPLE = 5000
"""So many steps of each quantity are looked at, to choose those of the frames."""

HOLD = 12
"""The last frame stays so many times as long."""


def animate(
    run: Source,
    path: str | os.PathLike[str],
    instruments: str | Iterable[str] | None = None,
    screen: str = "primary",
    view: View = View(),  # noqa: B008 - a frozen value
    frames: int = 60,
    fps: float = 12.0,
    loop: int = 0,
    size: tuple[float, float] | None = None,
    dpi: float = 80.0,
    dark: bool = False,
    title: str | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write a run as an animation, ``.gif`` or ``.mp4``; return the number of frames.

    Args:
        run: the run.
        path: the file.
        instruments: name or names; without, the whole screen is drawn.
        screen: the screen.
        view: the stretch of steps, the layer.
        frames: how many pictures, at steps that are evenly chosen.
        fps: pictures per second.
        loop: how often a GIF is repeated; 0: for ever.
        size: width and height in inches.
        dpi: dots per inch.
        dark: light colours on a dark ground.
        title: stands above a screen; default: the run's name.
        tell: called after each picture with (how many are done, how many there will be).
    """
    file = Path(path)
    if file.suffix.lower() not in (".gif", ".mp4"):
        raise CockpitError(f"{file.name}: an animation ends in .gif or .mp4.")
    program = _ffmpeg() if file.suffix.lower() == ".mp4" else ""
    names = chosen(instruments)
    shown = None if names else screen_named(screen)
    names = names or instruments_of(shown)
    steps = _moments(run, names, view, frames)
    draw = _artist(run, steps, names, shown, view, size, dpi, dark, title)

    def pictures() -> Iterator[Frame]:
        for k in range(len(steps)):
            yield draw(k)
            tell(k + 1, len(steps))

    part = file.with_name(file.name + ".part")
    try:
        if program:
            _write_mp4(part, pictures(), fps, program)
        else:
            _write_gif(part, draw(len(steps) - 1), pictures(), fps, loop)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return len(steps)


def _moments(run: Source, names: Iterable[str], view: View, count: int) -> list[int]:
    """Return the steps of the frames: evenly chosen of those at which the instruments have something to show."""
    read = {name for instrument in names for name in all_instruments()[instrument].reads} & set(run.names())
    series = [
        run.series(name, scope, points=SAMPLE) for name in sorted(read) for scope in run.scopes(name)[:1]
    ]
    first = -np.inf if view.first is None else view.first
    last = np.inf if view.last is None else view.last
    steps = sorted({step for one in series for step in one.steps.tolist() if first <= step <= last})
    if not steps:
        raise CockpitError("this run has no steps to show in that stretch.")
    chosen = np.unique(np.linspace(0, len(steps) - 1, max(1, count)).round().astype(int))
    return [steps[k] for k in chosen]


def _artist(
    run: Source,
    steps: list[int],
    names: list[str],
    shown: Screen | None,
    view: View,
    size: tuple[float, float] | None,
    dpi: float,
    dark: bool,
    title: str | None,
) -> Callable[[int], Frame]:
    """Return what draws a frame: the run as it was at one of the steps."""
    charts = {
        name: pinned([chart_of(run, name, replace(view, step=step, last=step)) for step in steps])
        for name in names
    }
    tones = {name: shades(found) for name, found in charts.items()}
    inches = size or figure_size(charts, shown)
    name = run_name(run) if title is None else title

    def draw(k: int) -> Frame:
        now = {instrument: [found[k]] for instrument, found in charts.items()}
        heading = Heading(name, facts(run, replace(view, step=steps[k])))
        into = Picture(figsize=inches, dpi=dpi)  # a new one is made faster than an old one is cleared
        canvas = FigureCanvasAgg(into)
        compose(into, now, shown, DARK if dark else LIGHT, heading, shades=tones)
        with settings():
            canvas.draw()  # type: ignore[no-untyped-call]
        picture: Frame = np.asarray(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]
        return picture[
            : picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2
        ].copy()  # films want even sizes

    return draw


def _write_gif(file: Path, last: Frame, pictures: Iterator[Frame], fps: float, loop: int) -> None:
    table = _colours(last)
    drawn = [
        Image.fromarray(picture).quantize(palette=table, dither=Image.Dither.NONE) for picture in pictures
    ]
    pause = round(1000 / fps)
    durations = [pause] * (len(drawn) - 1) + [pause * HOLD]
    more = {"append_images": drawn[1:], "duration": durations, "loop": loop, "disposal": 1}
    drawn[0].save(file, format="GIF", save_all=True, **more)


def _colours(picture: Frame) -> Image.Image:
    """Return the colours for all frames, from the last one, in which everything is drawn: white stays white."""
    flat, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    mixed = Image.fromarray(picture).quantize(COLOURS, Image.Quantize.MEDIANCUT).getpalette() or []
    wanted = np.concatenate([flat[np.argsort(-counts)[:COLOURS]], np.reshape(mixed, (-1, 3))]).astype(int)
    taken = wanted[:1]
    for colour in wanted:
        # Pillow looks for the nearest one only roughly, so none may have a double
        if len(taken) < COLOURS and np.abs(taken - colour).max(1).min() >= APART:
            taken = np.append(taken, colour[None], axis=0)
    table = Image.new("P", (1, 1))
    table.putpalette(taken.ravel().tolist())
    return table


def _write_mp4(file: Path, pictures: Iterator[Frame], fps: float, program: str) -> None:
    first = next(pictures)
    command = [program, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{first.shape[1]}x{first.shape[0]}", "-r", str(fps), "-i", "-", "-an"]
    command += ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4", str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as film:
        assert film.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and says below why
            for picture in _held(first, pictures):
                film.stdin.write(picture.tobytes())
        _, said = film.communicate()
    if film.returncode:
        raise CockpitError(f"ffmpeg could not write {file}: {said.decode(errors='replace').strip()}")


def _held(first: Frame, pictures: Iterator[Frame]) -> Iterator[Frame]:
    """Yield all frames, and the last one several times."""
    yield first
    for first in pictures:
        yield first
    for _ in range(HOLD - 1):
        yield first


def _ffmpeg() -> str:
    found = shutil.which("ffmpeg")
    if found is None and find_spec("imageio_ffmpeg") is not None:
        found = str(import_module("imageio_ffmpeg").get_ffmpeg_exe())
    if found is None:
        raise CockpitError(
            "an MP4 needs ffmpeg: the program, or pip install 'cockpit-debugger[video]'; a GIF (--gif) needs nothing."
        )
    return found
