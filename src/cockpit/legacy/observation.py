"""What is known of a step, as cockpit's own quantities look at it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from cockpit.engine.answers.observed import Observed
from cockpit.engine.derived import Length
from cockpit.engine.needs import Known
from cockpit.engine.numbers.lengths import squared_lengths
from cockpit.engine.statistics import Direction, Projection
from cockpit.errors import Gap
from cockpit.legacy.context import Frame
from cockpit.legacy.extension import Chosen
from cockpit.legacy.quantities.measured import Measured
from cockpit.legacy.slopes import Held
from cockpit.legacy.utils.optim import ComputeStep
from cockpit.quantities.quantity import Observation, OptimizerView, Reading

HERE, THERE = Projection(Direction.UPDATE), Projection(Direction.LAST_UPDATE)
LATE = frozenset({HERE, Length(Known.UPDATES)})
"""What is known only when the optimizer has moved."""


def observation(frame: Frame, observed: Observed, chosen: Chosen) -> Observation:
    """Return the observation of a step whose backward pass is over."""
    return Observation(
        step=frame.step,
        examples=observed.examples,
        statistics=observed.table,
        optimizer=_view(frame.info.get("optimizer"), chosen),
        memory={},
        known=observed.known,
        eigenvalues=observed.eigenvalues,
        curvature_method=observed.methods,
        trace_variance=observed.variances,
        clock=time.time(),
    )


@dataclass(frozen=True, eq=False)
class Waiting:
    """A step whose update is not known yet."""

    observation: Observation
    quantities: list[Measured]
    held: Held

    def moved(self, parameters: Mapping[str, Tensor]) -> Observation:
        """Return the observation with the update and the slopes along it."""
        o = self.observation
        updates = {n: parameters[n].detach() - before for n, before in o[Known.PARAMETERS].items()}
        o.statistics.restore(HERE, self.held.slopes(updates))
        lengths = squared_lengths(list(updates.values()))
        o.statistics.restore(Length(Known.UPDATES), dict(zip(updates, lengths, strict=True)))
        return replace(o, known={**o.known, Known.UPDATES: updates})


def read(q: Measured, o: Observation, frame: Frame) -> None:
    """Ask a quantity for its value; what does not exist is left out. Gaps and estimates are said once."""
    remark = ""
    try:
        found = q.source.compute(o)
        reading = found if isinstance(found, Reading) else Reading(found)
        frame.readings[id(q)] = reading
        if reading.status == "estimated: hutchinson":
            remark = "is an estimate: extend(model) lets many models have the exact number"
    except Gap as gap:
        remark = f"has no value at step {o.step}: {gap}"
    except Exception as failure:
        remark = f"has no value at step {o.step}: {type(failure).__name__}: {failure}"
    kind = remark.partition(": ")[2]
    if remark and kind not in q.said:
        q.said.add(kind)
        warnings.warn(f"{type(q).__name__} {remark}", stacklevel=5)


def _view(optimizer: Any, chosen: Chosen) -> OptimizerView:
    """Return what quantities may know of the optimizer."""
    groups: list[dict[str, Any]] = getattr(optimizer, "param_groups", [])
    rate = {id(p): float(g.get("lr", float("nan"))) for g in groups for p in g["params"]}
    rates = {name: rate[id(p)] for name, p in chosen.named_parameters() if id(p) in rate}
    plain = ComputeStep.is_sgd_default_kwargs(optimizer)
    return OptimizerView(type(optimizer).__name__, rates, plain, tuple(rate.values()))
