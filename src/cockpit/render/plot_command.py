"""The verb ``cockpit plot``: figures and animations as files. Matplotlib is loaded only when something is drawn."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from cockpit.errors import CockpitError
from cockpit.instruments.chart import View
from cockpit.instruments.screens import SCREENS
from cockpit.store.run import Run


def add_options(verb: argparse.ArgumentParser) -> None:
    """Add what ``cockpit plot`` takes."""
    verb.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="the run's folder, or the run.db in it"
    )
    verb.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="where to; png, svg or pdf by its ending (default: the run's name in the current folder, .png)",
    )
    verb.add_argument("--gif", type=Path, metavar="FILE", help="write the run as an animation instead")
    verb.add_argument("--mp4", type=Path, metavar="FILE", help="the same as a film; needs the program ffmpeg")
    verb.add_argument(
        "--instrument",
        action="append",
        default=[],
        metavar="NAME",
        help="draw this one alone (can be repeated; see --list)",
    )
    names = [screen.name for screen in SCREENS]
    verb.add_argument(
        "--screen", choices=names, default=names[0], help="which instruments (default: %(default)s)"
    )
    verb.add_argument("--scope", default="", metavar="NAME", help="a parameter, or a layer and all below it")
    verb.add_argument(
        "--step", type=int, metavar="N", help="the moment that histograms show (default: the newest)"
    )
    verb.add_argument("--first", type=int, metavar="N", help="no step before this one")
    verb.add_argument("--last", type=int, metavar="N", help="no step after this one")
    verb.add_argument("--log-steps", action="store_true", help="steps on a logarithmic axis")
    verb.add_argument(
        "--compare", nargs="+", type=Path, default=[], metavar="RUN", help="more runs, drawn above the first"
    )
    verb.add_argument("--dark", action="store_true", help="light colours on a dark ground")
    verb.add_argument("--title", metavar="TEXT", help="stands above a screen (default: the run's name)")
    verb.add_argument(
        "--size", type=_size, metavar="WIDTHxHEIGHT", help="in inches, such as 8x5 (default: what fits)"
    )
    verb.add_argument(
        "--dpi", type=_positive, metavar="N", help="dots per inch (default: 120; animations: 80)"
    )
    verb.add_argument(
        "--frames", type=int, default=60, metavar="N", help="pictures of an animation (default: 60)"
    )
    verb.add_argument(
        "--fps", type=_positive, default=12.0, metavar="N", help="and how many in a second (default: 12)"
    )
    verb.add_argument("--list", action="store_true", help="list the instruments, and draw nothing")


def list_instruments() -> list[dict[str, str]]:
    """Return name, title, question and group of every instrument."""
    shelf = import_module("cockpit.instruments.shelf")
    return [
        {"name": name, "title": found.title, "question": found.question, "group": found.group}
        for name, found in shelf.all_instruments().items()
    ]


def plot(options: argparse.Namespace) -> dict[str, Any]:
    """Draw what was asked for into a file; return what was done."""
    if options.run is None:
        raise CockpitError("which run? Name its folder (see: cockpit list).")
    run, others = Run(options.run), [Run(path) for path in options.compare]
    film = options.gif or options.mp4
    if sum(path is not None for path in (options.output, options.gif, options.mp4)) > 1:
        raise CockpitError("-o, --gif and --mp4 exclude each other: name one file.")
    if film and (others or options.step is not None):
        raise CockpitError("an animation shows one run, at all of its steps: no --compare, no --step.")
    for ending in ("gif", "mp4"):
        given = getattr(options, ending)
        if given is not None and given.suffix.lower() != f".{ending}":
            raise CockpitError(f"--{ending} writes a file that ends in .{ending}, not {given.name}.")
    view = View(options.step, options.first, options.last, scope=options.scope)
    shared = {
        "instruments": options.instrument or None,
        "screen": options.screen,
        "view": view,
        "size": options.size,
        "dark": options.dark,
        "title": options.title,
    }
    if film:
        animation = drawing("animation")
        more = {"dpi": options.dpi} if options.dpi else {}
        count = animation.animate(
            run, film, **shared, **more, frames=options.frames, fps=options.fps, tell=_progress()
        )
        return {"run": str(run.path), "file": str(film), "frames": count}
    target = options.output or Path(_default_name(run, options))
    figure = drawing("figure")
    drawn = figure.figure(run, **shared, runs=others, log_steps=options.log_steps)
    figure.save(drawn, target, options.dpi)
    return {"run": str(run.path), "file": str(target)}


def drawing(module: str) -> Any:
    """Return the module of this package that draws figures or animations."""
    try:
        return import_module(f"cockpit.render.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("matplotlib", "PIL"):
            raise
        raise CockpitError("figures need matplotlib: pip install 'cockpit-debugger[plot]'") from error


def _default_name(run: Run, options: argparse.Namespace) -> str:
    """Return the run's name, and what distinguishes this figure of it."""
    parts = [run.path.absolute().name, *options.instrument]
    if not options.instrument and options.screen != SCREENS[0].name:
        parts.append(options.screen)
    return "-".join(part.replace(os.sep, "_") for part in parts) + ".png"


def _progress() -> Any:
    """Return what counts frames on the terminal, where there is one."""
    stream = sys.stderr
    shown = stream.isatty() and os.environ.get("TERM") != "dumb"

    def tell(done: int, total: int) -> None:
        if shown:
            stream.write(f"\rcockpit: frame {done} of {total}" + ("\r\033[K" if done == total else ""))
            stream.flush()

    return tell


def _size(text: str) -> tuple[float, float]:
    width, _, height = text.lower().partition("x")
    return _positive(width), _positive(height)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number
