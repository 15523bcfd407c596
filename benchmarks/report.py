"""Writes tables and plots into the docs: everything between markers is generated from the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.environments import ORIGINALS, PRESETS, QUANTITIES, ROOT
from benchmarks.plots import interval_plot, quantity_plot
from benchmarks.summary import ratio
from benchmarks.tables import (
    configuration_table,
    find,
    interval_table,
    measured,
    peer_table,
    problem_table,
    quantity_table,
    reason_list,
    setting,
)

RESULTS = Path(__file__).parent / "results"
PAGE, README, ASSETS = "docs/benchmarks.md", "README.md", "docs/assets"
NOTHING = "Nothing has been measured yet."
BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write_report(root: Path = ROOT, results: Path = RESULTS) -> list[Path]:
    """Write what the results make of the docs; return the files that changed."""
    changed = []
    for name, text in report(root, results).items():
        path = root / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def report(root: Path = ROOT, results: Path = RESULTS) -> dict[str, str]:
    """Return the text of every generated file, by its path below the root."""
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))
    }
    files = {
        f"{ASSETS}/{name}": svg
        for machine, data in found.items()
        for name, svg in _plots(machine, data).items()
    }
    blocks = {"costs": _costs(found), "results": "\n\n".join(_section(*item) for item in found.items())}
    for name in (PAGE, README):
        text = (root / name).read_text(encoding="utf-8")
        files[name] = BLOCK.sub(lambda m: f"{m[1]}\n{blocks[m[2]] or NOTHING}\n\n{m[3]}", text)
    return files


def _costs(found: dict[str, Any]) -> str:
    """Return the table of configurations of every machine: what the README shows."""
    parts = [f"{configuration_table(data)}\n\n{setting(data)}" for data in found.values()]
    return "\n\n".join(parts)


def _section(machine: str, data: dict[str, Any]) -> str:
    """Return everything that was measured on a machine."""
    parts = [f"## {data['machine']['device']}", setting(data)]
    parts.append(f"Memory: {data['machine']['memory']}.")
    parts += [problem_table(data), "### Configurations", configuration_table(data)]
    parts += [f"![{name}](assets/{name})" for name in _plots(machine, data) if "intervals" in name]
    parts += ["### Intervals", interval_table(data), "### Single quantities", quantity_table(data)]
    parts += [f"![{name}](assets/{name})" for name in _plots(machine, data) if "quantities" in name]
    peers = peer_table(data)
    parts += ["### Other peers", peers] if peers else []
    reasons = reason_list(data)
    parts += ["### What could not run", reasons] if reasons else []
    return "\n\n".join(parts)


def _plots(machine: str, data: dict[str, Any]) -> dict[str, str]:
    """Return the plots of a machine: the paper's figures 6a and 6b, for every problem that has their numbers."""
    plots = {}
    intervals = data["options"]["intervals"]
    device = data["machine"]["device"]
    for problem, found in measured(data).items():
        rows = found["rows"]

        def value(environment: str, name: str, k: int = 1, rows: Any = rows) -> float | None:
            row = find(rows, environment, name, k)
            return None if row is None else ratio(row)

        curves = {
            (e, name): [value(e, name, k) for k in intervals]
            for e in ("cockpit", "original")
            for name in PRESETS
        }
        curves = {key: values for key, values in curves.items() if sum(v is not None for v in values) > 1}
        if curves:
            title = f"{problem}, {device}: time of a step, × untracked"
            plots[f"{machine}-{problem}-intervals.svg"] = interval_plot(title, intervals, curves)
        ours = {name: v for name in QUANTITIES if (v := value("cockpit", name)) is not None}
        pairs = zip(QUANTITIES, ORIGINALS, strict=True)
        theirs = {name: v for name, other in pairs if (v := value("original", other)) is not None}
        if len(ours) > 3:
            title = f"{problem}, {device}: every quantity alone, × untracked"
            plots[f"{machine}-{problem}-quantities.svg"] = quantity_plot(title, ours, theirs)
    return plots
