"""Many parameters at once: a table of layers and steps, small enough to be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cockpit.instruments.chart import Floats, View
from cockpit.instruments.instrument import Missing, Source
from cockpit.store.codec import Ints

ROWS = 64
"""So many layers are drawn at most."""

FEW = 12
"""Layers are not put together to fewer than that; rather the most conspicuous ones are picked."""


@dataclass(frozen=True, eq=False)
class LayerTable:
    """A norm, ``values`` [layers, steps], NaN where there is none; ``notes`` say what was left out or put together."""

    names: tuple[str, ...]
    steps: Ints
    values: Floats
    notes: tuple[str, ...] = ()


def known_parameters(run: Source) -> dict[str, dict[str, Any]]:
    """Return what the run says about the model's parameters, by name, in their order."""
    known = run.meta.get("parameters")
    if not isinstance(known, dict):
        return {}
    return {name: facts if isinstance(facts, dict) else {} for name, facts in known.items()}


def parameters(run: Source, name: str, scope: str) -> list[str]:
    """Return the parameters at or below a scope for which there are values, in the order of the model."""
    there = [one for one in run.scopes(name) if one]
    order = {one: k for k, one in enumerate(known_parameters(run))}
    below = [one for one in there if not scope or one == scope or one.startswith(scope + ".")]
    if not below:
        what = f"of {scope!r}" if scope else "of single parameters"
        raise Missing(f'This run has no "{name}" {what}.')
    return sorted(below, key=lambda one: order.get(one, len(order)))


def layer_table(run: Source, name: str, view: View, per_element: bool = False) -> LayerTable:
    """Return a norm of parameters over the steps, those of one layer put together where there are too many rows.

    ``per_element``: divided by the root of the number of elements, so that large and small layers compare.
    """
    names = parameters(run, name, view.scope)
    steps, squares = _read(run, name, names, view)
    sizes = _sizes(run, names) if per_element else np.ones(len(names))
    groups, notes = _groups(names)
    values = np.full((len(groups), len(steps)), np.nan)
    for k, members in enumerate(groups.values()):
        values[k] = np.sqrt(squares[members].sum(0) / (sizes[members].sum() if per_element else 1.0))
    labels = tuple(groups)
    if len(labels) > ROWS:
        kept = np.sort(np.argsort(-_strangeness(values), kind="stable")[:ROWS])
        notes = (
            *notes,
            f"the {ROWS} most conspicuous of {len(labels)} rows; choose a layer to see all of it",
        )
        labels, values = tuple(labels[k] for k in kept), values[kept]
    return LayerTable(labels, steps, values, notes)


def columns(table: LayerTable, count: int) -> tuple[Floats, Floats]:
    """Return edges [columns + 1] and values [layers, columns]: the largest of a stretch; NaN if one is not finite."""
    steps = table.steps
    starts = np.unique(np.linspace(0, len(steps), min(count, len(steps)), endpoint=False).astype(np.int64))
    highest = np.maximum.reduceat(table.values, starts, axis=1)
    width = int(np.median(np.diff(steps))) if len(steps) > 1 else 1
    edges = np.append(steps[starts], steps[-1] + width).astype(np.float64)
    return edges, np.where(np.isfinite(highest), highest, np.nan)


def largest_of_each(run: Source, names: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return at most about ``ROWS`` parameters: all, or the largest one of each layer."""
    if len(names) <= ROWS:
        return names, ()
    groups, _ = _groups(names)
    sizes = _sizes(run, names)
    kept = [names[max(members, key=lambda k: float(sizes[k]))] for members in groups.values()]
    if len(kept) > ROWS:
        kept = [kept[int(k)] for k in np.linspace(0, len(kept) - 1, ROWS)]
    return kept, (
        f"{len(kept)} of {len(names)} parameters: the largest of each layer; choose a layer to see all",
    )


def _read(run: Source, name: str, names: list[str], view: View) -> tuple[Ints, Floats]:
    """Return the steps shown and the squared values [parameters, steps]."""
    found = run.all_series(name, names, view.first or 0)
    steps = found[0].steps
    if all(np.array_equal(one.steps, steps) for one in found):
        table = np.stack([np.asarray(one.values) for one in found])
    else:
        steps = np.unique(np.concatenate([one.steps for one in found]))
        table = np.full((len(names), len(steps)), np.nan)
        for row, one in zip(table, found, strict=True):
            row[np.searchsorted(steps, one.steps)] = np.asarray(one.values)
    end = len(steps) if view.last is None else int(np.searchsorted(steps, view.last, side="right"))
    if not end:
        raise Missing(f'There is no "{name}" between the steps shown.')
    return steps[:end], table[:, :end] ** 2


def _groups(names: list[str]) -> tuple[dict[str, list[int]], tuple[str, ...]]:
    """Put parameters together by the modules they are in, at the finest level with few enough rows."""
    levels = [{name: [k] for k, name in enumerate(names)}]
    for depth in range(max(name.count(".") for name in names), 0, -1):
        groups: dict[str, list[int]] = {}
        for k, name in enumerate(names):
            modules = name.split(".")[:-1] or [name]
            groups.setdefault(".".join(modules[:depth]), []).append(k)
        levels.append(groups)
    chosen = next((k for k, groups in enumerate(levels) if len(groups) <= ROWS), len(levels) - 1)
    if chosen and len(levels[chosen]) < FEW:
        chosen -= 1
    groups = levels[chosen]
    together = len(groups) < len(names)
    return groups, (f"{len(names)} parameters in {len(groups)} layers",) if together else ()


def _sizes(run: Source, names: list[str]) -> Floats:
    """Return how many elements parameters have; 1 where it is not known."""
    known = known_parameters(run)
    return np.array([float(np.prod(known.get(name, {}).get("shape", []))) for name in names])


def _strangeness(values: Floats) -> Floats:
    """Return how far rows lie from the others, by the medians of their logarithms; not finite is furthest."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(np.where(np.isfinite(values), values, np.inf))
    typical = np.median(logs, axis=1)
    off = np.abs(typical - np.median(typical[np.isfinite(typical)], keepdims=False))
    return np.where(np.isfinite(off) & np.isfinite(values).all(1), off, np.inf)
