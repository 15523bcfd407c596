"""The layers of a run as a tree, the conspicuous ones first: where to look when something is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cockpit.errors import CockpitError
from cockpit.instruments.chart import Floats
from cockpit.instruments.histograms import middle_share, moment
from cockpit.instruments.instrument import Missing, Source
from cockpit.instruments.layer_table import known_parameters
from cockpit.instruments.traces import number
from cockpit.store.codec import Ints

WINDOW = 20
"""A parameter is judged by so many values up to the moment."""

VANISHED = 1e-10
"""Gradients whose elements are smaller than that in the mean count as none."""

FAR = 3.5
"""A robust z-score beyond it is conspicuous: the usual bound for outliers by the median absolute deviation."""

OPENED = 24
"""Histograms of so many parameters are opened at most, of the most conspicuous ones: they are the costly part."""


@dataclass(frozen=True)
class Verdict:
    """How conspicuous something is, from 0 to 1, and why."""

    score: float = 0.0
    why: str = ""


@dataclass(frozen=True, eq=False)
class Recent:
    """A norm of all parameters: ``now``, and ``usual``, the median of the last values; NaN where there are none.

    ``broken``: some of the last values are not finite.
    """

    now: Floats
    usual: Floats
    broken: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def layer_tree(run: Source, step: int | None = None) -> list[dict[str, Any]]:
    """Return all layers and parameters, conspicuous ones first, then in the order of the model.

    Each is a dictionary: ``name`` (dotted path), ``parent`` ("" at the top), ``kind`` ("layer" or "parameter"),
    ``size`` (elements), ``score`` (0 to 1, how conspicuous at the moment), ``why`` (in words), ``grad_norm``, and
    ``update``, the root mean square change of an element in one step; both None where unknown. A layer is as
    conspicuous as the most conspicuous parameter in it.
    """
    known = known_parameters(run)
    names = list(known) or _scopes(run, "grad_norm")
    sizes = np.array([float(np.prod(known.get(name, {}).get("shape", []))) for name in names])
    norms, updates = (_recent(run, quantity, names, step) for quantity in ("grad_norm", "update_size"))
    kinds = np.array([name.rpartition(".")[2] for name in names])
    gradients = _outliers(norms, sizes, kinds, GRADIENTS)
    moves = _outliers(updates, sizes, kinds, UPDATES)
    verdicts = [max(pair, key=lambda one: one.score) for pair in zip(gradients, moves, strict=True)]
    verdicts = [
        Verdict(why="frozen") if known.get(name, {}).get("trainable") is False else verdict
        for name, verdict in zip(names, verdicts, strict=True)
    ]
    verdicts = _with_histograms(run, names, verdicts, step)
    rows = []
    for name, (kind, members) in _tree(names).items():
        worst = max(members, key=lambda k: verdicts[k].score)
        verdict = verdicts[worst]
        if kind == "layer":
            why = f"{names[worst]}: {verdict.why}" if verdict.score and verdict.why else ""
            verdict = Verdict(verdict.score, why)
        rows.append(
            {
                "name": name,
                "parent": name.rpartition(".")[0],
                "kind": kind,
                "size": int(sizes[members].sum()),
                "score": round(verdict.score, 3),
                "why": verdict.why,
                "grad_norm": _plain(np.sqrt((norms.now[members] ** 2).sum())),
                "update": _plain(np.sqrt((updates.now[members] ** 2).sum() / sizes[members].sum())),
            }
        )
    return sorted(rows, key=lambda row: -float(str(row["score"])))


def _scopes(run: Source, quantity: str) -> list[str]:
    return [scope for scope in run.scopes(quantity) if scope] if quantity in run.names() else []


def _recent(run: Source, quantity: str, names: list[str], step: int | None) -> Recent:
    """Read the last values of all parameters up to a moment."""
    now, usual = np.full(len(names), np.nan), np.full(len(names), np.nan)
    broken = np.zeros(len(names), np.bool_)
    there = set(_scopes(run, quantity))
    read = [k for k, name in enumerate(names) if name in there]
    since = _begin(run.series(quantity, names[read[0]]).steps, step) if read else 0
    found = run.all_series(quantity, [names[k] for k in read], since) if read else []
    for k, series in zip(read, found, strict=True):
        end = len(series) if step is None else int(np.searchsorted(series.steps, step, side="right"))
        values = np.asarray(series.values, dtype=np.float64)[:end][-WINDOW:]
        if not len(values):
            continue
        finite = values[np.isfinite(values)]
        now[k], broken[k] = values[-1], len(finite) < len(values)
        usual[k] = np.median(finite) if len(finite) else np.nan
    return Recent(now, usual, broken)


def _begin(steps: Ints, step: int | None) -> int:
    """Return where the last values up to a moment begin: those before need not be read."""
    end = len(steps) if step is None else int(np.searchsorted(steps, step, side="right"))
    return int(steps[max(0, end - WINDOW)]) if end else 0


@dataclass(frozen=True)
class Words:
    """How outliers of a norm are called: exactly zero, as good as zero, far from the others."""

    zero: str
    tiny: str
    far: str


GRADIENTS = Words("gets no gradient", "its gradient has vanished", "its gradient elements are")
UPDATES = Words("does not move", "hardly moves", "its changes are")


def _outliers(recent: Recent, sizes: Floats, kinds: Any, words: Words) -> list[Verdict]:
    """Judge parameters by their norm per element, among those of their kind: weights with weights."""
    with np.errstate(divide="ignore"):
        logs = np.log10(recent.usual / np.sqrt(np.maximum(1.0, sizes)))
    there = np.isfinite(logs)
    all_still = not (logs[there] > np.log10(VANISHED)).any()  # a learning rate of zero, for example
    ranges = {kind: _typical(logs[there & (kinds == kind)], logs[there]) for kind in set(kinds.tolist())}
    found = []
    for k, log in enumerate(logs.tolist()):
        if recent.broken[k]:
            found.append(Verdict(1.0, "not finite"))
        elif np.isnan(log) or all_still:
            found.append(Verdict())
        elif log < np.log10(VANISHED):
            found.append(Verdict(0.95, words.zero if log == -np.inf else words.tiny))
        else:
            found.append(_distance(log, *ranges[kinds[k]], words))
    return found


def _typical(alike: Floats, everyone: Floats) -> tuple[float, float]:
    """Return the median of logarithms and their usual distance from it, a fifth of a decade at least."""
    logs = alike if len(alike) >= 4 else everyone
    if len(logs) < 3:
        return float("nan"), float("nan")
    middle = float(np.median(logs))
    return middle, max(0.2, float(np.median(np.abs(logs - middle))) / 0.6745)


def _distance(log: float, middle: float, usual: float, words: Words) -> Verdict:
    """Judge a logarithm by its distance from the others."""
    z = abs(log - middle) / usual
    if not z > FAR:
        return Verdict()
    times = number(10 ** abs(log - middle), ".2g")
    return Verdict(
        min(0.9, 0.1 * z),
        f"{words.far} {times} times {'larger' if log > middle else 'smaller'} than usual here",
    )


def _with_histograms(
    run: Source, names: list[str], verdicts: list[Verdict], step: int | None
) -> list[Verdict]:
    """Add what histograms say: all elements of a parameter in the two middle bins, while others use more."""
    there = set(_scopes(run, "grad_hist1d"))
    order = sorted(range(len(names)), key=lambda k: -verdicts[k].score)
    opened = [k for k in order if names[k] in there][:OPENED]
    shares = {}
    for k in opened:
        try:
            histogram = moment(run, "grad_hist1d", names[k], step).value
        except (Missing, CockpitError):
            continue
        if histogram is not None and histogram.counts.any():
            shares[k] = (
                middle_share(histogram.counts) if not histogram.underflow + histogram.overflow else 0.0
            )
    narrow = [k for k, part in shares.items() if part == 1.0]
    if len(narrow) * 2 > len(shares):
        return verdicts  # the range is too wide for this network, which says nothing about layers
    found = list(verdicts)
    for k in narrow:
        why = "all its gradient elements lie in the two middle bins"
        found[k] = Verdict(max(0.5, found[k].score), "; ".join(filter(None, (found[k].why, why))))
    return found


def _tree(names: list[str]) -> dict[str, tuple[Literal["layer", "parameter"], list[int]]]:
    """Return layers and parameters in the order of the model, each with the parameters at or below it."""
    tree: dict[str, tuple[Literal["layer", "parameter"], list[int]]] = {}
    for k, name in enumerate(names):
        parts = name.split(".")
        for depth in range(1, len(parts)):
            tree.setdefault(".".join(parts[:depth]), ("layer", []))[1].append(k)
        tree[name] = ("parameter", [k])
    return tree


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
