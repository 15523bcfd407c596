"""The command line of the benchmark of a user's model: measures, shows a table or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import Any, NoReturn

import torch

from cockpit.bench.model import Bill, bill, contestants
from cockpit.bench.rounds import Pace
from cockpit.bench.table import cost_cells, table, times
from cockpit.bench.watched import UNTRACKED
from cockpit.doctor.target import Target, find_target
from cockpit.errors import CockpitError
from cockpit.version import __version__


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message and end with status 2."""
        self.exit(2, f"cockpit bench: error: {message} (see: cockpit bench --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 0, or 2 after an error."""
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    torch.set_num_threads(options.threads)
    try:
        with redirect_stdout(sys.stderr):  # what the user's script prints is not our answer
            target = find_target(options.target)
            found = bill(
                target,
                _names(options.only),
                options.device,
                Pace(options.rounds, budget=options.seconds),
                options.interval,
                options.learning_rate,
                _progress(options.quiet),
            )
    except CockpitError as error:
        print(f"cockpit bench: error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(as_json(target, found, options), indent=2))
    else:
        _print(target, found, options)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="cockpit bench",
        description="Measure what watching costs on a model of yours, on this machine: time and memory of every "
        "configuration and of every quantity alone, against the untracked step. The loss is a stand-in, each "
        "example's mean square of the outputs; the optimiser is plain SGD.",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="script.py, script.py:NAME or module:NAME; NAME is a pair (model, example inputs) or a function that "
        "returns one; the script is imported, not run as a program",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="configurations and quantities to measure (default: all)"
    )
    parser.add_argument(
        "--interval", type=_count, default=1, metavar="N", help="track every N steps (default: 1)"
    )
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=gpu, help=f"cpu or cuda (default here: {gpu})")
    parser.add_argument(
        "--threads", type=_count, default=1, metavar="N", help="threads of torch (default: 1)"
    )
    parser.add_argument("--rounds", type=_count, default=7, metavar="N", help="rounds at most (default: 7)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="no new round after so long (default: 60)"
    )
    parser.add_argument(
        "--learning-rate", type=float, default=1e-3, metavar="X", help="of SGD (default: 0.001)"
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {value}")
    return value


def _names(only: Sequence[str] | None) -> list[str]:
    known = contestants()
    unknown = [name for name in only or () if name not in known]
    if unknown:
        raise CockpitError(f"there is no {unknown[0]!r} to measure; there are {', '.join(known)}")
    return [name for name in known if not only or name == UNTRACKED or name in only]


def _progress(quiet: bool) -> Callable[[str], None]:
    """Say what is being done: one line that is overwritten on a terminal, nothing but silence elsewhere."""
    if quiet or not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def as_json(target: Target, found: Bill, options: argparse.Namespace) -> dict[str, Any]:
    """Return everything that was measured as plain values."""
    base = found.memory.get(UNTRACKED)
    return {
        "target": target.name,
        "examples": found.examples,
        "device": _device(options.device),
        "threads": options.threads,
        "interval": options.interval,
        "torch": torch.__version__,
        "cockpit": __version__,
        "costs": {
            name: {
                **asdict(cost),
                "peak_bytes": found.memory.get(name),
                "peak_ratio": found.memory[name] / base if base and name in found.memory else None,
                "gaps": found.gaps.get(name, []),
            }
            for name, cost in found.outcome.costs.items()
        },
        "reasons": found.outcome.reasons,
    }


def _device(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def _print(target: Target, found: Bill, options: argparse.Namespace) -> None:
    if sys.stderr.isatty() and not options.quiet:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    clock = "wall time" if options.device.startswith("cuda") else "processor time"
    print(
        f"{target.name}: {found.examples} examples, {_device(options.device)}, {clock}, torch {torch.__version__}"
    )
    print(f"tracked every {options.interval} steps\n" if options.interval > 1 else "tracked at every step\n")
    rows = [("", "ms per step", "time", "quartiles", "peak memory")]
    base = found.memory.get(UNTRACKED)
    for name, cost in found.outcome.costs.items():
        peak = times(found.memory[name] / base) if base and name in found.memory else "–"
        rows.append((name + ("*" if name in found.gaps else ""), *cost_cells(cost), peak))
    print(table(rows))
    for name, gaps in found.gaps.items():
        print(f"\n* {name}: {gaps[0]}" + (f" (and {len(gaps) - 1} more)" if len(gaps) > 1 else ""))
    for name, why in found.outcome.reasons.items():
        print(f"\n{name} could not run: {why}")
