"""What is to be said about a run as a whole, as plain dictionaries: a card in a list, and the page behind it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cockpit.instruments.screens import SCREENS
from cockpit.instruments.shelf import all_instruments
from cockpit.store.run import Run

EVENTS = 200
"""So many of the last events are told."""


def run_card(run: Run, id: str) -> dict[str, Any]:
    """Return what a list of runs shows of one."""
    meta = run.meta
    steps, last = run.steps()
    return {
        "id": id,
        "name": run.path.absolute().name,
        "status": run.status,
        "started": meta.get("started"),
        "ended": meta.get("ended"),
        "config": meta.get("config") or "",
        "model": meta.get("model") or "",
        "optimizer": meta.get("optimizer") or "",
        "device": meta.get("device") or "",
        "steps": steps,
        "last_step": last,
        "sequence": run.sequence,
        "hyperparameters": _hyperparameters(meta),
        "loss": _loss(run, last or 0),
        "overhead": _number(meta.get("overhead")),
        "broken": "",
    }


def run_page(run: Run, id: str) -> dict[str, Any]:
    """Return everything about a run but its charts."""
    meta = run.meta
    coverage = meta.get("coverage") or {}
    names = set(run.names())
    return run_card(run, id) | {
        "parameters": [
            {
                "name": name,
                "shape": parameter.get("shape", []),
                "way": coverage.get(name, {}).get(
                    "way", "" if parameter.get("trainable", True) else "frozen"
                ),
                "reason": coverage.get(name, {}).get("reason", ""),
            }
            for name, parameter in (meta.get("parameters") or {}).items()
        ],
        "quantities": [
            {"name": one.get("name", ""), "doc": one.get("doc", ""), "settings": one.get("settings", {})}
            for one in meta.get("quantities") or []
        ],
        "versions": meta.get("versions") or {},
        "events": [
            {"step": event.step, "kind": event.kind, "text": event.text, "scope": event.scope}
            for event in run.events()[-EVENTS:]
        ],
        "findings": [],
        "instruments": [
            {
                "name": name,
                "title": one.title,
                "question": one.question,
                "summary": one.summary,
                "reading": one.reading,
                "group": one.group,
                "moment": one.moment,
                "layered": one.layered,
                "available": _available(set(one.reads), set(one.optional), names),
            }
            for name, one in all_instruments().items()
        ],
        "screens": [
            {
                "name": screen.name,
                "title": screen.title,
                "rows": [
                    [
                        {"title": column.title, "instruments": list(column.instruments), "wide": column.wide}
                        for column in row
                    ]
                    for row in screen.rows
                ],
            }
            for screen in SCREENS
        ],
    }


def _available(reads: set[str], optional: set[str], names: set[str]) -> bool:
    """Whether what an instrument needs has been recorded."""
    return reads - optional <= names and bool(reads & names)


def _hyperparameters(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the optimiser's settings as one flat dictionary; those of later groups only where they differ."""
    groups: list[dict[str, Any]] = [
        group for group in meta.get("hyperparameters") or [] if isinstance(group, dict)
    ]
    flat: dict[str, Any] = {}
    for k, group in enumerate(groups):
        for key, value in group.items():
            if isinstance(value, int | float | str) and (not k or value != groups[0].get(key)):
                flat[key if not k else f"{key} (group {k})"] = value
    return {key: _number(value) if isinstance(value, float) else value for key, value in flat.items()}


def _loss(run: Run, last: int) -> float | None:
    """Return the newest loss, given the last step of all."""
    if "loss" not in run.names():
        return None
    recent = run.series("loss", since=max(0, last - 2000))
    series = recent if len(recent) else run.series("loss")
    return _number(series.values[-1]) if len(series) else None


def _number(value: object) -> float | None:
    """Return a finite number, None for anything else."""
    return float(value) if isinstance(value, int | float | np.floating) and np.isfinite(value) else None
