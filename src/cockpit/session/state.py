"""Saving and restoring a session, so that a resumed run equals an uninterrupted one, log included.

Only tensors and plain values, so that ``torch.load(..., weights_only=True)`` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cockpit.engine.answers.table import Table
from cockpit.engine.engine import Engine
from cockpit.engine.needs import Known
from cockpit.engine.statistics import Statistic
from cockpit.quantities.quantity import Memory, Observation, OptimizerView, Quantity


def saved(
    step: int,
    started: bool,
    memory: Mapping[str, Memory],
    engine: Engine,
    waiting: Sequence[Quantity],
    previous: Observation | None,
) -> dict[str, Any]:
    """Return the state: the step, what quantities and engine remember, and the step that waits for its successor."""
    state: dict[str, Any] = {
        "step": step,
        "started": started,
        "memory": {name: dict(m) for name, m in memory.items()},
        "engine": engine.state(),
        "waiting": [q.name for q in waiting],
        "previous": None,
    }
    if previous is not None:
        needed = {n for q in waiting for n in q.needs}
        state["previous"] = {
            "step": previous.step,
            "examples": previous.examples,
            "clock": previous.clock,
            "known": {
                k.value: previous.known[k] for k in needed if isinstance(k, Known) and k in previous.known
            },
            "statistics": {
                repr(s): previous.statistics.by_parameter(s) for s in needed if isinstance(s, Statistic)
            },
        }
    return state


def restored(
    state: Mapping[str, Any],
    memory: dict[str, Memory],
    engine: Engine,
    quantities: Sequence[Quantity],
    view: OptimizerView,
) -> tuple[list[Quantity], Observation | None]:
    """Put the state back; return the quantities that wait and the observation they wait with."""
    for name, remembered in state["memory"].items():
        if name in memory:
            memory[name] = dict(remembered)
    engine.load_state(state["engine"])
    waiting = [q for q in quantities if q.name in state["waiting"]]
    before = state["previous"]
    if before is None:
        return [], None
    table = Table({n: p for n, p in engine.model.named_parameters() if p.requires_grad})
    for statistic in {n for q in waiting for n in q.needs if isinstance(n, Statistic)}:
        table.restore(statistic, before["statistics"].get(repr(statistic), {}))
    known = {Known(k): value for k, value in before["known"].items()}
    return waiting, Observation(
        before["step"], before["examples"], table, view, {}, known, clock=before["clock"]
    )
