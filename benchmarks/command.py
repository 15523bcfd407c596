"""The command line: measure (default) or report."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.contest import Rules
from benchmarks.machine import file_name
from benchmarks.problems import PROBLEMS
from benchmarks.problems.problem import Scale
from benchmarks.report import RESULTS, write_report
from benchmarks.run import QUICK, Plan, run
from benchmarks.summary import summary
from cockpit.bench.rounds import Pace


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["report"]:
        for path in write_report():
            print(path)
        return 0
    options = _parser().parse_args(given)
    unknown = [name for name in options.problems or () if name not in PROBLEMS]
    if unknown:
        print(
            f"benchmarks: error: no problem {unknown[0]!r}; there are {', '.join(PROBLEMS)}", file=sys.stderr
        )
        return 2
    out = options.out or RESULTS / f"{file_name(options.device)}.json"
    results = run(_plan(options), out, _progress())
    print(f"\r\033[K{summary(results)}\n\n{out}" if sys.stderr.isatty() else f"{summary(results)}\n\n{out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the cost of watching beside that of its peers. `python -m benchmarks report` writes the "
        "results into the docs.",
    )
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    data = os.environ.get("COCKPIT_DATA")
    add = parser.add_argument
    add("--problems", nargs="+", metavar="NAME", help=f"of {', '.join(PROBLEMS)} (default: all)")
    add(
        "--contestants",
        nargs="+",
        default=(),
        metavar="PATTERN",
        help="cockpit, cockpit/economy, */full … (all)",
    )
    add(
        "--quick",
        action="store_true",
        help=f"twenty minutes: {', '.join(QUICK)}; fewer rounds and intervals",
    )
    add("--device", default=gpu, help=f"cpu or cuda (default here: {gpu})")
    add("--out", type=Path, metavar="FILE", help="results (default: benchmarks/results/<device>.json)")
    add(
        "--data",
        type=Path,
        default=Path(data) if data else None,
        metavar="DIR",
        help="real data (COCKPIT_DATA)",
    )
    add(
        "--intervals",
        nargs="*",
        type=int,
        metavar="N",
        help="beside 1 (4 16 64 256, quick: 16)",
    )
    add("--longest", type=float, default=2.0, metavar="S", help="intervals of more seconds are composed (2)")
    add("--rounds", type=int, metavar="N", help="rounds at most (7, quick: 3)")
    add("--budget", type=float, metavar="S", help="seconds a problem, then no new round (120, quick: 8)")
    add("--patience", type=float, default=60.0, metavar="S", help="leave out what is slower in one step (60)")
    add("--batch", type=int, default=0, metavar="N", help="batch size other than the definition's")
    add("--image", type=int, default=0, metavar="N", help="pixels a side, for residual networks")
    add("--length", type=int, default=0, metavar="N", help="tokens, for language models")
    add("--heavy", action="store_true", help="run on a CPU what is too slow for it")
    add("--no-install", action="store_true", help="do not install peers")
    add("--no-memory", action="store_true", help="do not measure memory")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    rounds = options.rounds or (3 if options.quick else 7)
    budget = options.budget or (8.0 if options.quick else 120.0)
    usual = (16,) if options.quick else (4, 16, 64, 256)
    intervals = tuple(k for k in (usual if options.intervals is None else options.intervals) if k > 1)
    return Plan(
        problems=options.problems or (QUICK if options.quick else tuple(PROBLEMS)),
        contestants=options.contestants,
        device=options.device,
        rules=Rules(
            Pace(rounds, budget=budget, patience=options.patience),
            intervals,
            options.longest,
            not options.no_memory,
        ),
        scale=Scale(options.batch, options.image, options.length),
        data=options.data,
        install=not options.no_install,
        heavy=options.heavy,
    )


def _progress() -> Callable[[str], None]:
    """Say what is being done: a line that is overwritten on a terminal; elsewhere lines, of the stages only."""
    start = time.monotonic()

    def say(text: str) -> None:
        line = f"{time.monotonic() - start:5.0f} s  {text}"
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        elif "warming up" not in text and "memory of" not in text:
            print(line, file=sys.stderr, flush=True)

    return say
