"""Results as a compact table for a terminal: contestants down, problems across, ratios to the untracked step."""

from __future__ import annotations

from typing import Any

from benchmarks.contestants.step import UNTRACKED
from cockpit.bench.table import milliseconds, table, times


def ratio(row: dict[str, Any]) -> float | None:
    """Return the ratio of a row by the clock that counts, or nothing where it could not run."""
    spread = row.get("process") or row.get("wall")
    return float(spread["median"]) if spread else None


def base_ms(rows: list[dict[str, Any]]) -> float | None:
    """Return the milliseconds of the untracked step in this package's own process, or in the first that ran."""
    found = [row for row in rows if row["name"] == UNTRACKED and ratio(row) is not None]
    found.sort(key=lambda row: row["environment"] != "cockpit")
    return float(found[0]["process_ms"] or found[0]["wall_ms"]) if found else None


def summary(results: dict[str, Any]) -> str:
    """Return the table, and below it why what is missing is missing."""
    problems = {name: found for name, found in results["problems"].items() if "rows" in found}
    keys: dict[str, None] = {}
    cells: dict[tuple[str, str], str] = {}
    reasons: dict[str, list[str]] = {}
    for problem, found in problems.items():
        for row in found["rows"]:
            if row["name"] == UNTRACKED:
                continue
            key = f"{row['environment']}/{row['name']}" + (
                f" every {row['interval']}" if row["interval"] > 1 else ""
            )
            keys.setdefault(key)
            value = ratio(row)
            if value is None:
                reasons.setdefault(row["reason"], []).append(f"{problem} {key}")
            elif row.get("gaps"):
                reasons.setdefault(f"gap: {row['gaps'][0]}", []).append(f"{problem} {key}")
            memory = f" {times(row['peak_ratio'])[1:]}m" if row.get("peak_ratio") else ""
            mark = "*" if row.get("gaps") else ""
            cells[key, problem] = "–" if value is None else times(value) + mark + memory
    rows = [("ratio of time, of peak memory (m)", *problems)]
    bases = {name: base_ms(found["rows"]) for name, found in problems.items()}
    rows.append(("untracked, ms", *(milliseconds(ms) if ms else "–" for ms in bases.values())))
    rows += [(key, *(cells.get((key, problem), "") for problem in problems)) for key in keys]
    lines = [
        f"{results['machine']['device']}, torch {results['machine']['torch']}, {results['machine']['clock']}"
    ]
    lines += ["", table(rows), ""]
    for why, where in reasons.items():
        more = f" and {len(where) - 3} more" if len(where) > 3 else ""
        lines.append(f"{', '.join(where[:3])}{more}: {why}")
    skipped = [
        f"{name}: {found['skipped']}" for name, found in results["problems"].items() if "skipped" in found
    ]
    return "\n".join(lines + skipped)
