"""Hyper-parameter gauge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cockpit.instruments.chart import Axis, Chart, Line, Plot, Reading, Tone, View
from cockpit.instruments.instrument import Instrument, Source
from cockpit.instruments.traces import STEPS, number, trace

TONES: tuple[Tone, ...] = ("first", "second", "third", "fourth")
SHOWN = 4
"""So many parameter groups get a line of their own."""


class HyperparameterGauge(Instrument):
    """Learning rate over the steps, and the optimiser's other settings.

    Reading it:
        Check that the schedule is the one you meant: warm-up, decay, restarts at the right steps. A constant line where
        a schedule was intended means that the scheduler is not being called.

        When another instrument jumps, look here first: a change of the learning rate explains changes of step size and
        alpha at the same step.
    """

    title = "Hyperparameters"
    question = "Which settings was it trained with?"
    reads = ("learning_rate",)
    group = "hyper-parameters"

    def draw(self, run: Source, view: View) -> Chart:
        """Return one line for each group of parameters."""
        rate = trace(run, "learning_rate", replace(view, scope=""))
        groups = [scope for scope in run.scopes("learning_rate") if scope][:SHOWN]
        lines: list[Line] = [] if groups else [rate.line("learning rate", view, smooth=False)]
        for scope, tone in zip(groups, TONES, strict=False):
            one = trace(run, "learning_rate", replace(view, scope=scope))
            lines.append(one.line(scope.replace("_", " "), view, tone, smooth=False))
        last = rate.reading("learning rate", view.step)
        readings = (last, *_settings(run.meta))
        plot = Plot(tuple(lines), STEPS, Axis("Learning rate"))
        return self.made((plot,), readings, rate.notes())


def _settings(meta: dict[str, Any]) -> tuple[Reading, ...]:
    """Return the numbers other than zero among the settings of the optimiser's first group, without its rate."""
    first: dict[str, Any] = (meta.get("hyperparameters") or [{}])[0]
    numbers = {
        key: float(value)
        for key, value in first.items()
        if key not in ("lr", "initial_lr") and isinstance(value, int | float) and value and value is not True
    }
    return tuple(Reading(key.replace("_", " "), value, number(value)) for key, value in numbers.items())
