"""The command line of the doctor: looks, prints, and ends with 1 where something must be done."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import Any, NoReturn

from cockpit.doctor.check import Check
from cockpit.doctor.coverage import MEANING, Covered, Group, covered, groups
from cockpit.doctor.environment import environment
from cockpit.doctor.logs import logs
from cockpit.doctor.target import Target, find_target
from cockpit.errors import CockpitError

MARK = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message and end with status 2."""
        self.exit(2, f"cockpit doctor: error: {message} (see: cockpit doctor --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the doctor; return 0, 1 where there is a problem, 2 after an error."""
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        return _model(options) if options.target else _environment(options)
    except CockpitError as error:
        print(f"cockpit doctor: error: {error}", file=sys.stderr)
        return 2


def _parser() -> Parser:
    parser = Parser(
        prog="cockpit doctor",
        description="Look at the environment or, with TARGET, at how a model of yours is covered.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="script.py, script.py:NAME or module:NAME; NAME is a model or a function that returns one, or a "
        "pair (model, example inputs); the script is imported, not run as a program",
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    return parser


def _environment(options: argparse.Namespace) -> int:
    checks = [*environment(), *logs()]
    problems = sum(check.state == "problem" for check in checks)
    if options.json:
        print(json.dumps({"ok": not problems, "checks": [asdict(check) for check in checks]}, indent=2))
        return int(problems > 0)
    for check in checks:
        _print_check(check)
    warnings = sum(check.state == "warning" for check in checks)
    print(f"\n{_counted(problems, 'problem')}, {_counted(warnings, 'warning')}.")
    return int(problems > 0)


def _print_check(check: Check) -> None:
    _print(f"{MARK[check.state]:<8} {check.name + ':':<13} {check.found}", 23)
    if check.advice:
        _print(f"{'':<22} {check.advice}", 23)


def _model(options: argparse.Namespace) -> int:
    with redirect_stdout(sys.stderr):  # what the user's script prints is not our answer
        target = find_target(options.target)
        found = covered(target)
    parts = groups(target.model, found.ways)
    if options.json:
        print(json.dumps(_as_json(target, found, parts), indent=2))
    else:
        _print_model(target, found, parts)
    return 0


def _as_json(target: Target, found: Covered, parts: list[Group]) -> dict[str, Any]:
    return {
        "target": target.name,
        "model": type(target.model).__name__,
        "tried": found.tried,
        "how": found.how,
        "groups": [asdict(group) for group in parts],
        "coverage": {name: {"way": way, "reason": reason} for name, (way, reason) in found.ways.items()},
    }


def _print_model(target: Target, found: Covered, parts: list[Group]) -> None:
    weights = sum(group.weights for group in parts)
    size = f"{_counted(len(found.ways), 'parameter')}, {weights:,} weights"
    _print(f"{type(target.model).__name__} ({target.name}): {size}")
    _print(f"{found.how}.")
    for group in parts:
        print()
        share = f"{100 * group.weights / max(1, weights):.3g} % of the weights"
        _print(f"{group.way}: {_counted(group.parameters, 'parameter')}, {share}")
        _print(f"  {MEANING.get(group.way, '')}", 2)
        if group.reason:
            _print(f"  why: {group.reason}", 7)
        _print(f"  {', '.join(group.names)}", 2)


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _print(text: str, indent: int = 0) -> None:
    width = max(40, min(110, shutil.get_terminal_size().columns - 1))
    print(textwrap.fill(text, width, subsequent_indent=" " * indent, break_on_hyphens=False))
