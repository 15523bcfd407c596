"""What is to be said about a run as a whole, as plain dictionaries: a card in a list, and the page behind it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cockpit.instruments.shelf import all_instruments, all_screens
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
        "started": _number(meta.get("started")),
        "ended": _number(meta.get("ended")),
        "config": _text(meta.get("config")),
        "model": _text(meta.get("model")),
        "optimizer": _text(meta.get("optimizer")),
        "device": _text(meta.get("device")),
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
    names = set(run.names())
    return run_card(run, id) | {
        "parameters": _parameters(meta),
        "quantities": [
            {
                "name": _text(one.get("name")),
                "doc": _text(one.get("doc")),
                "settings": _texts(one.get("settings")),
            }
            for one in _list(meta.get("quantities"))
            if isinstance(one, dict)
        ],
        "versions": _texts(meta.get("versions")),
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
            for screen in all_screens()
        ],
    }


def _available(reads: set[str], optional: set[str], names: set[str]) -> bool:
    """Whether what an instrument needs has been recorded."""
    return reads - optional <= names and bool(reads & names)


def _parameters(meta: dict[str, Any]) -> list[dict[str, Any]]:
    """Return name, shape and way of every parameter; a list of names, as in imported runs, has no more to say."""
    known, coverage = meta.get("parameters"), _dict(meta.get("coverage"))
    parameters = known if isinstance(known, dict) else dict.fromkeys(map(_text, _list(known)))
    found = []
    for name, facts in parameters.items():
        parameter, covered = _dict(facts), _dict(coverage.get(name))
        usual = "" if parameter.get("trainable", True) else "frozen"
        shape = [length for length in _list(parameter.get("shape")) if isinstance(length, int)]
        way, reason = _text(covered.get("way", usual)), _text(covered.get("reason"))
        found.append({"name": name, "shape": shape, "way": way, "reason": reason})
    return found


def _hyperparameters(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the optimiser's settings as one flat dictionary; those of later groups only where they differ."""
    groups = [group for group in _list(meta.get("hyperparameters")) if isinstance(group, dict)]
    flat: dict[str, Any] = {}
    for k, group in enumerate(groups):
        for key, value in group.items():
            plain = value if isinstance(value, int | float | str) else _several(value)
            if plain is not None and (not k or value != groups[0].get(key)):
                flat[key if not k else f"{key} (group {k})"] = plain
    return {key: _number(value) if isinstance(value, float) else value for key, value in flat.items()}


def _several(value: object) -> str | None:
    """Return some numbers, such as Adam's ``betas``, as a text."""
    numbers = [part for part in _list(value) if isinstance(part, int | float)]
    return ", ".join(map(str, numbers)) if numbers and numbers == value else None


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


def _text(value: object) -> str:
    """Return a text or a number as text; whatever else a damaged file may say is left out."""
    return str(value) if isinstance(value, str | int | float) else ""


def _texts(value: object) -> dict[str, str]:
    return {key: _text(part) for key, part in _dict(value).items()}


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
