"""The command ``cockpit``: run a script under watch; list, show, plot, export and import runs; demo, doctor, benchmark.

Each verb is a few lines over a library call. Verbs that need torch run in a child process, so that the
command itself starts fast and reads runs on machines without a working torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

from cockpit.errors import CockpitError
from cockpit.render import plot_command
from cockpit.store.export import to_csv, to_jsonl, to_original, to_parquet
from cockpit.store.folder import logs_folder
from cockpit.store.original import import_original
from cockpit.store.run import Run, find_runs
from cockpit.version import __version__

CHILDREN = {
    "run": ("cockpit.launch", "run a training script as python would, and watch it"),
    "bench": ("cockpit.bench", "measure what watching costs on a model of yours, on this machine"),
    "demo": ("cockpit.demo", "train a small network under watch, to have a run to look at"),
    "doctor": ("cockpit.doctor", "check the environment and what can be measured in it"),
}
"""Verbs that are processes of their own: the package that is started, and what it does."""
TEXT_FORMATS = {"csv": to_csv, "jsonl": to_jsonl, "original": to_original}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors look like all others of this command."""

    def error(self, message: str) -> NoReturn:
        """Print one line and end with status 2."""
        self.exit(2, f"cockpit: error: {message} (see: {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 2 after an error, 130 after Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given and given[0] in CHILDREN:
            return _child(given[0], given[1:])
        options = _parser().parse_args(given)
        options.verb(options)
        if sys.stdout is not None:  # closed by whoever started us
            sys.stdout.flush()
    except BrokenPipeError:
        # whoever read our output has gone; what is left in the buffer must not complain at exit
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (CockpitError, OSError) as error:
        print(f"cockpit: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # --help, --version, wrong usage
        return int(end.code or 0)
    return 0


def _parser() -> Parser:
    parser = Parser(prog="cockpit", description="A debugger for the training of neural networks.")
    parser.add_argument("--version", action="version", version=f"cockpit {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=Parser)

    verb = _verb(verbs, "list", _list, "list the runs in a folder")
    verb.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="where to look, with all folders below (default: ./cockpit_logs)",
    )

    verb = _verb(verbs, "show", _show, "show runs on a page in the browser, live")
    verb.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="RUN|FOLDER",
        help="runs, or folders of runs with all folders below (default: ./cockpit_logs)",
    )
    verb.add_argument(
        "--port",
        type=int,
        metavar="N",
        help="the port; 0: any free one (default: the first free one from 6116 on)",
    )
    verb.add_argument("--host", metavar="ADDRESS", help="where to listen (default: this machine only)")
    verb.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name under which browsers may ask, such as that of a proxy (can be repeated)",
    )
    verb.add_argument("--no-browser", action="store_true", help="do not open a browser")
    verb.add_argument(
        "--terminal", action="store_true", help="follow one run here instead: the one named, or the newest"
    )
    verb.add_argument(
        "--every",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="with --terminal, between lines where nothing can be redrawn (default: 10)",
    )

    verb = _verb(verbs, "export", _export, "write a run in another format")
    verb.add_argument(
        "run",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="the run's folder, or the run.db in it; several for html",
    )
    verb.add_argument(
        "--format",
        choices=[*TEXT_FORMATS, "parquet", "html"],
        default="csv",
        help="csv: one row per value (default); jsonl: one JSON object per value; parquet: the same, binary; "
        "original: the JSON log of cockpit-for-pytorch 1.0; html: the page, interactive, in one file",
    )
    verb.add_argument(
        "--html", dest="format", action="store_const", const="html", help="the same as --format html"
    )
    verb.add_argument(
        "--moments", type=int, default=60, metavar="N", help="html: steps that can be looked at (default: 60)"
    )
    verb.add_argument(
        "--points",
        type=int,
        default=1000,
        metavar="N",
        help="html: points of a curve at most (default: 1000)",
    )
    verb.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to (default: standard output)")

    verb = _verb(verbs, "plot", _plot, "draw a run into a picture, or its course into an animation")
    plot_command.add_options(verb)

    verb = _verb(
        verbs, "import", _import, "make a run of a JSON log of the original Cockpit (cockpit-for-pytorch)"
    )
    verb.add_argument("log", type=Path, metavar="LOG.json", help="the log")
    verb.add_argument(
        "--run", metavar="NAME|FOLDER", help="name of the run, or its folder (default: a name like the log's)"
    )
    for name, (_, text) in CHILDREN.items():
        verbs.add_parser(name, help=text, add_help=False)
    return parser


def _verb(verbs: Any, name: str, call: Any, text: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    verb.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    verb.set_defaults(verb=call)
    return verb


def _child(name: str, arguments: list[str]) -> int:
    """Run the package of a verb with ``python -m`` and return its exit status."""
    command = [sys.executable, "-m", CHILDREN[name][0], *arguments]
    if name == "run" and os.name == "posix":
        # the script gets every signal itself, and its own end is that of the command
        os.execv(sys.executable, command)
    child = subprocess.Popen(command)
    try:
        status = child.wait()
    except KeyboardInterrupt:  # the child got the signal too and ends in its own way
        child.wait()
        return 130
    return status if status >= 0 else 128 - status


def _list(options: argparse.Namespace) -> None:
    folder = options.folder or logs_folder()
    if options.folder and not folder.is_dir():
        raise CockpitError(f"{folder} is not a folder.")
    runs = [_summary(path, folder) for path in find_runs(folder)]
    if options.json:
        print(json.dumps(runs, indent=2))
    elif runs:
        _print_table(runs)
    else:
        print(f"cockpit: no runs in {folder}", file=sys.stderr)


def _summary(path: Path, folder: Path) -> dict[str, Any]:
    """Return what ``list`` says about a run."""
    name = str(path.relative_to(folder)) if path != folder else path.absolute().name
    found: dict[str, Any] = {"name": name, "path": str(path)}
    try:
        run = Run(path)
        meta = run.meta
        steps, last = run.steps()
        found |= {
            "status": run.status,
            "started": _time(meta.get("started")),
            "steps": steps,
            "last_step": last,
        }
        return found | {"optimizer": _word(meta.get("optimizer")), "config": _word(meta.get("config"))}
    except CockpitError as error:
        return found | {"status": "unreadable", "error": str(error)}


def _word(value: Any) -> str | None:
    """Return a name for what may be described at length."""
    if isinstance(value, dict):
        value = value.get("name") or value.get("class")
    return None if value is None else str(value)


def _time(value: Any) -> str | None:
    """Return Unix time as local time with its zone."""
    known = isinstance(value, int | float)
    return datetime.fromtimestamp(value).astimezone().isoformat(timespec="seconds") if known else None


def _print_table(runs: list[dict[str, Any]]) -> None:
    heads = ["name", "started", "steps", "last_step", "status", "optimizer", "config"]
    rows = [[head.replace("_", " ") for head in heads]]
    for run in runs:
        cells = {**run, "started": (run.get("started") or "")[:16].replace("T", " ")}
        rows.append(["-" if cells.get(head) in (None, "") else str(cells[head]) for head in heads])
    widths = [max(len(row[k]) for row in rows) for k in range(len(heads))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _show(options: argparse.Namespace) -> None:
    if options.terminal:
        terminal = import_module("cockpit.render.follow")
        run = terminal.chosen(options.paths, logs_folder())
        terminal.follow(run, every=options.every, for_programs=options.json)
        return
    web = import_module("cockpit.web")  # only now: all other verbs start without a web server
    web.serve(
        options.paths,
        lambda serving: web.announce(serving, as_json=options.json, browser=not options.no_browser),
        host=options.host,
        port=options.port,
        allowed_hosts=options.allowed_host,
    )


def _export(options: argparse.Namespace) -> None:
    runs, target = [Run(path) for path in options.run], options.output
    if len(runs) > 1 and options.format != "html":
        raise CockpitError(f"{options.format} holds one run; several go into one page: --format html.")
    if target is None:
        if options.json:
            raise CockpitError(
                "--json says what was written to a file: name one with -o, or use --format jsonl."
            )
        if options.format == "parquet" or (options.format == "html" and sys.stdout.isatty()):
            raise CockpitError(f"{options.format} is nothing to read here: name a file with -o.")
        _write(options, runs, sys.stdout)
        return
    # a half written file is never left under the name asked for; devices and pipes are written directly
    part = target.with_name(target.name + ".part") if target.is_file() or not target.exists() else target
    try:
        if options.format == "parquet":
            count = to_parquet(runs[0], part)
        else:
            with part.open("w", encoding="utf-8", newline="") as file:
                count = _write(options, runs, file)
        if part != target:
            part.replace(target)
    finally:
        if part != target:
            part.unlink(missing_ok=True)
    unit = {"original": "steps", "html": "bytes"}.get(options.format, "records")
    names = ", ".join(str(run.path) for run in runs)
    _tell(options, {"run": names, "format": options.format, "file": str(target), unit: count})


def _write(options: argparse.Namespace, runs: list[Run], file: TextIO) -> int:
    """Write runs as text, and return how much of it: bytes of a page, else records or steps."""
    if options.format != "html":
        return TEXT_FORMATS[options.format](runs[0], file)
    page = import_module("cockpit.render.report").report(
        runs, moments=max(1, options.moments), points=max(2, options.points)
    )
    file.write(page)
    return len(page.encode())


def _plot(options: argparse.Namespace) -> None:
    if not options.list:
        _tell(options, plot_command.plot(options))
        return
    found = plot_command.list_instruments()
    if options.json:
        print(json.dumps(found, indent=2))
    for entry in () if options.json else found:
        print(f"{entry['name']:22} {entry['title']:32} {entry['question']}")


def _import(options: argparse.Namespace) -> None:
    log = options.log
    if not log.exists() and log.with_name(log.name + ".json").exists():
        log = log.with_name(
            log.name + ".json"
        )  # the original's own functions take the path without its ending
    folder, count = import_original(log, options.run)
    _tell(options, {"run": str(folder), "records": count})


def _tell(options: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Say what was done: to programs on standard output, to people on standard error."""
    if options.json:
        print(json.dumps(facts))
    else:
        print("cockpit: " + ", ".join(f"{key} {value}" for key, value in facts.items()), file=sys.stderr)
