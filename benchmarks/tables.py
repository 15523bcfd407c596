"""Markdown tables of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.contestants.step import IDLE, UNTRACKED
from benchmarks.environments import ALL, ORIGINALS, PRESETS, QUANTITIES
from benchmarks.summary import base_ms, ratio
from cockpit.bench.table import milliseconds, times

Results = dict[str, Any]
Row = dict[str, Any]
TITLES = {"torch_func": "torch.func", "pyhessian": "PyHessian", "backpack": "BackPACK", "opacus": "Opacus"}


def measured(results: Results) -> dict[str, Any]:
    """Return the problems that were run."""
    return {name: found for name, found in results["problems"].items() if "rows" in found}


def find(rows: Sequence[Row], environment: str, name: str, interval: int = 1) -> Row | None:
    """Return the row of a contestant."""
    return next(
        (r for r in rows if (r["environment"], r["name"], r["interval"]) == (environment, name, interval)),
        None,
    )


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def setting(results: Results) -> str:
    """Say on which machine, when and with what it was measured."""
    m = results["machine"]
    versions = ", ".join(
        f"{name} {version}" for name, version in m.get("versions", {}).items() if name != "torch"
    )
    where = m["device"] if m["device"] != "CPU" else m["processor"]
    text = f"{where}, {m['clock']}; torch {m['torch']}, Python {m['python']}, cockpit {m['cockpit']} ({m['revision']})"
    return f"{text}{', ' + versions if versions else ''}; {m['date']}."


def problem_table(results: Results) -> str:
    """Return what the problems are, and the time of their untracked step."""
    rows = []
    for name, found in results["problems"].items():
        if "skipped" in found:
            rows.append([f"`{name}`", "", "", found["skipped"], ""])
            continue
        ms = base_ms(found["rows"])
        facts = [f"{found.get('weights', 0):,}", str(found.get("batch", "")), found.get("data", "")]
        rows.append([f"`{name}`", *facts, milliseconds(ms) if ms else "–"])
    return markdown(["problem", "weights", "batch", "data", "untracked step, ms"], rows)


def configuration_table(results: Results) -> str:
    """Return time and peak memory of the configurations, ours and the original's, at every step."""
    problems = measured(results)
    rows = []
    for environment, title in (("cockpit", ""), ("original", "original ")):
        for name in (IDLE, *PRESETS):
            cells = [
                _cell(find(found["rows"], environment, name), memory=True) for found in problems.values()
            ]
            if any(cells):
                rows.append([f"{title}{name}", *(cell or "–" for cell in cells)])
    return markdown(["time, peak memory", *(f"`{name}`" for name in problems)], rows)


def interval_table(results: Results) -> str:
    """Return the time of configurations by interval."""
    intervals = results["options"]["intervals"]
    rows = []
    for problem, found in measured(results).items():
        for environment, title in (("cockpit", ""), ("original", "original ")):
            for name in PRESETS:
                cells = [_interval_cell(find(found["rows"], environment, name, k)) for k in intervals]
                if any(cells):
                    rows.append([f"`{problem}` {title}{name}", *(cell or "–" for cell in cells)])
    return markdown(["tracked every", *(str(k) for k in intervals)], rows)


def quantity_table(results: Results) -> str:
    """Return the time and the peak memory of every quantity alone, with the original's time behind a slash."""
    problems = measured(results)
    rows = []
    for name, theirs in zip(QUANTITIES, ORIGINALS, strict=True):
        cells = []
        for found in problems.values():
            ours = _cell(find(found["rows"], "cockpit", name), memory=True)
            other = _cell(find(found["rows"], "original", theirs), memory=False)
            cells.append(f"{ours or '–'}{f' / {other}' if other else ''}")
        if any(cell != "–" for cell in cells):
            rows.append([f"`{name}`", *cells])
    return markdown(["ours: time, memory / original: time", *(f"`{name}`" for name in problems)], rows)


def peer_table(results: Results) -> str:
    """Return the other peers: what each does, and its time and memory."""
    problems = measured(results)
    rows = []
    for environment in ALL:
        if environment.name in ("cockpit", "original"):
            continue
        for name in environment.singles:
            cells = [
                _cell(find(found["rows"], environment.name, name), memory=True) for found in problems.values()
            ]
            if any(cells):
                title = TITLES.get(environment.name, environment.name)
                rows.append([f"{title} {name}", *(cell or "–" for cell in cells)])
    return markdown(["time, peak memory", *(f"`{name}`" for name in problems)], rows) if rows else ""


def reason_list(results: Results) -> str:
    """Return what could not run or left gaps, and why, each reason once."""
    reasons: dict[str, list[str]] = {}
    for problem, found in measured(results).items():
        for row in found["rows"]:
            why = row.get("reason") or (f"measured with gaps: {row['gaps'][0]}" if row.get("gaps") else "")
            if why and row["name"] != UNTRACKED and row["interval"] == 1:
                reasons.setdefault(why, []).append(f"{row['environment']} {row['name']} ({problem})")
    lines = []
    for why, where in reasons.items():
        more = f" and {len(where) - 4} more" if len(where) > 4 else ""
        lines.append(f"- {', '.join(where[:4])}{more}: `{why.replace('`', chr(39))}`")
    return "\n".join(lines)


def _cell(row: Row | None, memory: bool) -> str:
    """Return the ratios of a row; a star says that it left gaps, nothing that it was not run."""
    if row is None:
        return ""
    value = ratio(row)
    if value is None:
        return "cannot run"
    peak = f", {times(row['peak_ratio'])}" if memory and row.get("peak_ratio") else ""
    return times(value) + ("*" if row.get("gaps") else "") + peak


def _interval_cell(row: Row | None) -> str:
    composed = row is not None and str(row.get("how", "")).startswith("composed")
    return ("~" if composed else "") + _cell(row, memory=False)
