"""The command line of the demo: trains, shows, sums up."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from cockpit.demo.panel import Panel
from cockpit.demo.summary import Finding, findings
from cockpit.demo.training import Moment, network, train, watched_quantities
from cockpit.errors import CockpitError
from cockpit.presets import PRESETS
from cockpit.render.panel import clock, percent
from cockpit.session import Cockpit
from cockpit.store.run import Run
from cockpit.web import Serving, serve_in_background
from cockpit.web.announcement import announce, has_desktop


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message and end with status 2."""
        self.exit(2, f"cockpit demo: error: {message} (see: cockpit demo --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0, 2 after an error, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # the tensors are small, and threads that wait for busy cores cost minutes
    try:
        return _demo(options)
    except CockpitError as error:
        print(f"cockpit demo: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser() -> Parser:
    parser = Parser(
        prog="cockpit demo",
        description="Train a small network on 3,000 images of clothes, watched by every instrument.",
    )
    parser.add_argument(
        "--steps", type=_positive, default=300, metavar="N", help="how many steps (default: 300)"
    )
    parser.add_argument(
        "--batch-size", type=_positive, default=64, metavar="N", help="images a step (default: 64)"
    )
    parser.add_argument("--config", choices=PRESETS, default="full", help="which instruments (default: full)")
    parser.add_argument("--run", default="demo", metavar="NAME|FOLDER", help="name of the run, or its folder")
    parser.add_argument(
        "--json", action="store_true", help="end with one JSON object on standard output, alone there"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument(
        "--show",
        action=argparse.BooleanOptionalAction,
        help="open the page and keep it until Ctrl-C (default: on a desktop, in a terminal)",
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {value}")
    return value


def _demo(options: argparse.Namespace) -> int:
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    quantities = watched_quantities(options.config, options.steps)
    cockpit = Cockpit(model, optimizer, quantities=quantities, run=options.run)
    stream = sys.stderr if options.json else sys.stdout
    if not options.quiet and stream is not None:  # closed: print would take the other one
        _print(_title(model, options), stream)
    page = _page(options, cockpit.run)
    panel, moments, start = Panel(stream, cockpit.run), [], time.monotonic()

    def show(moment: Moment) -> None:
        moments.append(moment)
        if not options.quiet:
            panel.show(moment)

    interrupted = False
    with cockpit:
        try:
            train(cockpit, model, optimizer, options.steps, options.batch_size, show)
        except KeyboardInterrupt:
            interrupted = True
    if not options.quiet:
        panel.close()
    report = _report(cockpit.run, moments, interrupted, time.monotonic() - start)
    if options.json:
        print(json.dumps(report, allow_nan=False))
    else:
        _print_report(report)
    if page is not None:
        _print("\nThe page stays there until Ctrl-C.", stream)
        with page, suppress(KeyboardInterrupt):
            page.wait()
    return 130 if interrupted else 0


def _page(options: argparse.Namespace, folder: Path | None) -> Serving | None:
    """Open the page beside the training, where somebody would see it."""
    if options.show is None and (options.json or options.quiet):
        return None
    seen = sys.stdout is not None and sys.stdout.isatty() and has_desktop()
    if folder is None or not (seen if options.show is None else options.show):
        return None
    page = serve_in_background([folder])
    announce(page, file=sys.stderr if options.json else None)
    return page


def _title(model: nn.Module, options: argparse.Namespace) -> str:
    size = sum(p.numel() for p in model.parameters())
    return (
        f"Training a network of {size:,} weights to tell ten kinds of clothes apart: {options.steps} steps "
        f"of {options.batch_size} images, configuration {options.config!r}. Ctrl-C ends it early."
    )


def _report(folder: Path | None, moments: list[Moment], interrupted: bool, seconds: float) -> dict[str, Any]:
    """Return what is known at the end; numbers that are not known are None."""
    found: list[Finding] = []
    problem = ""
    try:
        found = findings(Run(folder)) if folder is not None else []
    except CockpitError as error:
        problem = f"Nothing was recorded: {error}"
    last = moments[-1] if moments else None
    return {
        "run": str(folder),
        "steps": last.step if last else 0,
        "interrupted": interrupted,
        "seconds": round(seconds, 2),
        "first_loss": _number(moments[0].loss) if moments else None,
        "last_loss": _number(last.loss) if last else None,
        "accuracy": _number(last.accuracy) if last else None,
        "problem": problem or None,
        "findings": [{**vars(f), "value": _number(f.value)} for f in found],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _print_report(report: dict[str, Any]) -> None:
    ended = "Stopped after" if report["interrupted"] else "Trained"
    line = f"{ended} {report['steps']} steps in {clock(report['seconds'])}"
    if report["last_loss"] is not None:
        line += f": loss {report['first_loss'] or math.nan:.2f} at first, {report['last_loss']:.2f} at last"
    if report["accuracy"] is not None:
        line += f", {percent(report['accuracy'])} of the test images right"
    print()
    _print(line + ".")
    if report["problem"]:
        _print(report["problem"])
        return
    if report["findings"]:
        print("\nWhat the instruments say at the end:\n")
    for finding in report["findings"]:
        _print(f"{finding['instrument'] + ':':<17} {finding['sentence']}", indent=18)
    command = _command()
    print()
    _print(
        f"The run is in {report['run']}. To go on, look at it in the browser or here, write every number into a "
        "table, or see what can be measured in a model of yours:"
    )
    print()
    print(f"  {command} show {report['run']}")
    print(f"  {command} show --terminal {report['run']}")
    print(f"  {command} export {report['run']} -o run.csv")
    print(f"  {command} doctor train.py")


def _command() -> str:
    """Return how the command is called from here: its name, or its path if it is not on the search path."""
    beside = Path(sys.executable).with_name("cockpit")
    if shutil.which("cockpit") or not beside.exists():
        return "cockpit"
    return os.path.relpath(beside)


def _print(text: str, stream: Any = None, indent: int = 0) -> None:
    width = min(100, shutil.get_terminal_size().columns - 1)
    print(textwrap.fill(text, max(width, 40), subsequent_indent=" " * indent), file=stream)
