"""The command ``cockpit``: list, export and import runs; start the demo, the doctor and the benchmark.

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
from pathlib import Path
from typing import Any, NoReturn

from cockpit.errors import CockpitError
from cockpit.store.export import to_csv, to_jsonl, to_original, to_parquet
from cockpit.store.folder import logs_folder
from cockpit.store.original import import_original
from cockpit.store.run import Run, find_runs
from cockpit.version import __version__

CHILDREN = {
    "bench": "measure what watching costs on a model of yours, on this machine",
    "demo": "train a small network under watch, to have a run to look at",
    "doctor": "check the environment and what can be measured in it",
}
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
        sys.stdout.flush()
    except BrokenPipeError:
        # whoever read our output has gone; what is left in the buffer must not complain at exit
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

    verb = _verb(verbs, "export", _export, "write a run in another format")
    verb.add_argument("run", type=Path, metavar="RUN", help="the run's folder, or the run.db in it")
    verb.add_argument(
        "--format",
        choices=[*TEXT_FORMATS, "parquet"],
        default="csv",
        help="csv: one row per value (default); jsonl: one JSON object per value; parquet: the same, binary; "
        "original: the JSON log of cockpit-for-pytorch 1.0",
    )
    verb.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to (default: standard output)")

    verb = _verb(
        verbs, "import", _import, "make a run of a JSON log of the original Cockpit (cockpit-for-pytorch)"
    )
    verb.add_argument("log", type=Path, metavar="LOG.json", help="the log")
    verb.add_argument(
        "--run", metavar="NAME|FOLDER", help="name of the run, or its folder (default: a name like the log's)"
    )
    for name, text in CHILDREN.items():
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
    """Run ``python -m cockpit.<name>`` and return its exit status."""
    child = subprocess.Popen([sys.executable, "-m", f"cockpit.{name}", *arguments])
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


def _export(options: argparse.Namespace) -> None:
    run, target = Run(options.run), options.output
    if target is None:
        if options.json:
            raise CockpitError(
                "--json says what was written to a file: name one with -o, or use --format jsonl."
            )
        if options.format == "parquet":
            raise CockpitError("parquet is not text: name a file with -o.")
        TEXT_FORMATS[options.format](run, sys.stdout)
        return
    # a half written file is never left under the name asked for; devices and pipes are written directly
    part = target.with_name(target.name + ".part") if target.is_file() or not target.exists() else target
    try:
        if options.format == "parquet":
            count = to_parquet(run, part)
        else:
            with part.open("w", encoding="utf-8", newline="") as file:
                count = TEXT_FORMATS[options.format](run, file)
        if part != target:
            part.replace(target)
    finally:
        if part != target:
            part.unlink(missing_ok=True)
    unit = "steps" if options.format == "original" else "records"
    _tell(options, {"run": str(run.path), "format": options.format, "file": str(target), unit: count})


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
