"""The command line of ``cockpit run``: our options, then the script and its own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from cockpit.launch.live import Live
from cockpit.launch.script import execute
from cockpit.launch.watching import Watching
from cockpit.presets import PRESETS
from cockpit.render.terminal import Terminal

VALUED = ("--config", "--run", "--every")
"""Options that are followed by a value."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message and end with status 2."""
        self.exit(2, f"cockpit run: error: {message} (see: cockpit run --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; what it raises is raised, so that the interpreter ends as it would without us."""
    own, script, rest, is_module = split(list(sys.argv[1:] if arguments is None else arguments))
    parser = _parser()
    options = parser.parse_args(own)
    if not script:
        parser.error("name a script, or a module with -m")
    if not is_module:
        try:
            open(script, "rb").close()
        except IsADirectoryError:
            pass
        except OSError as error:
            parser.error(f"can't open {script}: {error.strerror}")
    if os.environ.get("COCKPIT_DISABLED", "").lower() in ("", "0", "false"):
        _watch(options, script.rpartition(".")[2] if is_module else Path(os.path.abspath(script)).stem)
    execute(script, rest, is_module)
    return 0


def split(given: list[str]) -> tuple[list[str], str, list[str], bool]:
    """Return our options, the script, its arguments, and whether it is a module: what follows it is not ours."""
    k = 0
    while k < len(given) and given[k].startswith("-") and given[k] not in ("-m", "--"):
        k += 2 if given[k] in VALUED else 1
    own, rest = given[:k], given[k:]
    is_module = rest[:1] == ["-m"]
    if is_module or rest[:1] == ["--"]:
        rest = rest[1:]
    return own, rest[0] if rest else "", rest[1:], is_module


def _parser() -> Parser:
    parser = Parser(
        prog="cockpit run",
        usage="cockpit run [options] SCRIPT [ARGUMENT ...]\n       cockpit run [options] -m MODULE [ARGUMENT ...]",
        description="Run a training script as python would, and watch every model it trains.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", choices=PRESETS, help="which quantities (default: economy)")
    parser.add_argument(
        "--run", metavar="NAME|FOLDER", help="name of the run, or its folder (default: the script's name)"
    )
    parser.add_argument(
        "--every", type=_positive, metavar="N", help="measure at every N-th step (default: every step)"
    )
    parser.add_argument("--quiet", action="store_true", help="show no panel in the terminal")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {value}")
    return value


def _watch(options: argparse.Namespace, name: str) -> None:
    terminal, live = Terminal(sys.stderr), None
    if terminal.live and not options.quiet:
        live = Live(terminal)
        with suppress(ValueError):  # a stream that is closed
            live.stand_between()
    settings = {"config": options.config, "when": options.every}
    Watching(options.run or name, settings, live)
