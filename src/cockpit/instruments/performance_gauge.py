"""Performance gauge: loss and accuracies."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from cockpit.instruments.chart import Axis, Chart, Mark, Plot, Reading, Ticks, Tone, View
from cockpit.instruments.curves import merged
from cockpit.instruments.instrument import Instrument, Missing, Source
from cockpit.instruments.traces import GROUPS, STEPS, Trace, axis, share, trace

LOSSES = re.compile("(?:[a-z]+_)?loss")
ACCURACIES = re.compile("(?:[a-z]+_)?acc(?:uracy)?")
"""Names of series that belong here, whatever the training loop calls them."""

LOSS_TONES: tuple[Tone, ...] = ("first", "neutral", "fourth", "bad")
ACCURACY_TONES: tuple[Tone, ...] = ("second", "third", "good", "faint")
WORDS = {
    "train": "training",
    "valid": "validation",
    "val": "validation",
    "eval": "evaluation",
    "acc": "accuracy",
}


class PerformanceGauge(Instrument):
    """Loss of each mini-batch, with the losses and accuracies that the training loop logged.

    Reading it:
        The loss should fall, fast at first and then slowly; the smoothed line counts, single batches scatter. The gap
        between training and validation accuracy shows how much is learnt by heart.

        A loss that is flat from the start, one that jumps up and stays, one that is not a number (marks at the foot):
        training does not work. This panel cannot say why; the others can.

        Accuracies and other losses appear when the loop logs them: ``cockpit.log(valid_accuracy=…)``. What is called
        train, valid or test, or any other word, with ``_loss``, ``_accuracy`` or ``_acc`` is drawn.
    """

    title = "Performance"
    question = "How well does it do?"
    reads = (
        "loss",
        *(f"{of}_{what}" for what in ("loss", "accuracy") for of in ("train", "valid", "test")),
    )
    optional = reads
    group = "performance"

    def draw(self, run: Source, view: View) -> Chart:
        """Return losses on the left axis, accuracies on the right one, and what happened."""
        marks: list[Mark] = []
        readings: list[Reading] = []
        notes: list[str] = []
        losses = _found(run, LOSSES, LOSS_TONES, view)
        lines = [
            one.line(words, view, tone, smooth=one.name == "loss", dots=one.name != "loss")
            for one, words, tone in losses
        ]
        marks += lines
        for one, words, _ in losses:
            readings.append(one.reading(words, view.step))
            notes += one.notes(f"{words}: ")
        accuracies = _found(run, ACCURACIES, ACCURACY_TONES, view)
        for one, words, tone in accuracies:
            marks.append(one.line(words, view, tone, right=True, smooth=False, dots=True))
            value = float(one.values[one.place(view.step)])
            readings.append(Reading(words, value, share(value)))
        if not marks:
            raise Missing("There is neither a loss nor an accuracy between the steps shown.")
        marks += merged(tick for one, *_ in losses for tick in one.ticks())
        marks += _events(run, view)
        right = Axis("Accuracy", range=(0.0, 1.0)) if accuracies else None
        plot = Plot(tuple(marks), STEPS, axis("Loss", *lines) if lines else Axis("Loss"), right)
        return self.made((plot,), tuple(readings), tuple(notes))


def _found(
    run: Source, pattern: re.Pattern[str], tones: tuple[Tone, ...], view: View
) -> list[tuple[Trace, str, Tone]]:
    """Return the series of such a name that have values between the steps shown, what to call them, and colours."""
    names = [name for name in run.names() if pattern.fullmatch(name)]
    names.sort(key=lambda name: (name != "loss", not name.startswith("train"), name))
    found = []
    for name in names:
        try:
            found.append((trace(run, name, replace(view, scope="")), name))
        except Missing:  # not between these steps, or only of parameters
            continue
    return [(one, _called(name), tone) for (one, name), tone in zip(found, tones, strict=False)]


def _called(name: str) -> str:
    """Return ``validation accuracy`` for ``val_acc``."""
    return (
        "mini-batch loss" if name == "loss" else " ".join(WORDS.get(part, part) for part in name.split("_"))
    )


def _events(run: Source, view: View) -> tuple[Ticks, ...]:
    """Return what happened between the steps shown: resumed, skipped, failed."""
    first, last = view.first or 0, float("inf") if view.last is None else view.last
    shown = [event for event in run.events() if first <= event.step <= last][-GROUPS:]
    if not shown:
        return ()
    texts = tuple(f"step {event.step}, {event.kind}: {event.text}" for event in shown)
    return (Ticks("events", np.array([event.step for event in shown], np.float64), texts, "neutral"),)
