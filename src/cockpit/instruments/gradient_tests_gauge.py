"""Gradient tests gauge: three measures of how noisy a batch's gradient is, in one picture."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.chart import Axis, Chart, Disc, Guide, Place, Plot, Tone, View, Zone
from cockpit.instruments.instrument import Instrument, Missing, Source
from cockpit.instruments.traces import STEPS, Trace, axis, trace

TESTS: tuple[tuple[str, str, float, Tone, Place], ...] = (
    ("norm_test", "norm test", 0.9, "first", "left"),
    ("inner_test", "inner product test", 0.9, "second", "below"),
    ("ortho_test", "orthogonality test", 5.84, "third", "top"),
)
"""Quantity, words, the threshold of Byrd et al. (2012) and Bollapragada et al. (2017), colour, place."""


class GradientTestsGauge(Instrument):
    """Spread of the individual gradients around their mean: in all (disc), along it and across it (strips).

    Reading it:
        Imagine the mean gradient as an arrow of length 1. The disc is the region in which a batch's gradient is to be
        expected; the horizontal strip is the part of the spread along the arrow, the vertical one the part across it.

        Small shapes: examples agree, the batch could be smaller. Large shapes: the gradient is mostly noise; a larger
        batch or a smaller learning rate averages it out. Beyond 0.9 (norm and inner product test) and 5.84
        (orthogonality test) the papers that proposed the tests would enlarge the batch.

        Noise grows during most trainings, as the gradient shrinks and the examples' differences do not. A value that
        is far too large from the beginning points to mislabelled or badly scaled data.
    """

    title = "Gradient Tests"
    question = "How noisy is the batch?"
    reads = ("norm_test", "inner_test", "ortho_test")
    group = "gradients"
    moment = True
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return the shapes at one moment, and each test over the steps around them."""
        tests = {name: trace(run, name, view) for name, *_ in TESTS}
        step = _common_step(tuple(tests.values()), view.step)
        norm, inner, ortho = (float(test.values[test.place(step)]) for test in tests.values())
        shown = [value for value in (norm, inner, ortho) if np.isfinite(value)]
        reach = max(2.0, 1.3 * max(shown, default=0.0))
        marks = [
            Zone("y", -inner, inner, "along", "second") if np.isfinite(inner) else None,
            Zone("x", -ortho, ortho, "across", "third") if np.isfinite(ortho) else None,
            Disc(norm, "norm test") if np.isfinite(norm) else None,
            Guide("x", 0.0, tone="faint"),
            Guide("y", 0.0, tone="faint"),
        ]
        main = Plot(
            tuple(mark for mark in marks if mark is not None),
            Axis("Across the gradient", "symlog", (-reach, reach), linear=0.1),
            Axis("Along the gradient", "symlog", (-reach, reach), linear=0.1),
            upright=True,
        )
        plots, readings = [main], []
        notes: list[str] = []
        for name, words, threshold, tone, place in TESTS:
            test = tests[name]
            line = test.line(words, view, tone)
            guide = Guide("y", threshold, f"{threshold:g}", "bad")
            plots.append(
                Plot(
                    (line, guide, *test.ticks()), STEPS, axis(words.capitalize(), line, log=True), place=place
                )
            )
            readings.append(test.reading(words, step))
            notes += test.notes(f"{words}: ")
        return self.made(tuple(plots), tuple(readings), tuple(notes), step=step, scope=view.scope)


def _common_step(tests: tuple[Trace, ...], step: int | None) -> int:
    """Return the last step at or before a moment that all three tests have."""
    first, second, third = (test.steps for test in tests)
    both = first if np.array_equal(first, second) else np.intersect1d(first, second)
    common = both if np.array_equal(both, third) else np.intersect1d(both, third)
    if not len(common):
        raise Missing(
            "The three gradient tests were never recorded at the same step: give them one schedule."
        )
    last = len(common) if step is None else int(np.searchsorted(common, step, side="right"))
    return int(common[max(0, last - 1)])
