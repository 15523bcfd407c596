"""From readings to records: asks quantities for their values and writes them, with their statuses, to the run."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cockpit.engine.answers.ranks import Ranks
from cockpit.engine.needs import individual_gradients
from cockpit.errors import CockpitError, Gap
from cockpit.quantities.quantity import Memory, Observation, Quantity, Reading, Readings
from cockpit.session.columns import COUPLED, columns, columns_of_steps
from cockpit.session.guard import Guard
from cockpit.session.pending import Stretch
from cockpit.store.folder import run_folder
from cockpit.store.record import Column, Columns, Event, Record
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from cockpit.version import __version__


class Recorder:
    """Writes one run; on ranks other than the first it computes and stays silent."""

    def __init__(
        self,
        run: str | PathLike[str] | None,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        quantities: Sequence[Quantity],
        config: str,
        ranks: Ranks | None,
        step: int | None,
    ) -> None:
        self.folder: Path | None = None
        self.first = step or 0
        self._rewind: int | None = None
        self._writer: Writer | None = None
        self._quantities = tuple(quantities)
        self._names = {id(q): q.name for q in self._quantities}
        self._coverage: Mapping[str, tuple[str, str]] = {}  # what was stored
        self._covered: Mapping[str, tuple[str, str]] = {}  # what the marks below were made of
        self._coupled: Mapping[str, str] | None = None
        self._said: set[tuple[str, str]] = set()
        if ranks is not None and ranks.rank > 0:
            return
        if run is not None and not isinstance(run, str | PathLike):
            raise CockpitError(f"Cockpit(run=…): a name or a folder, not {type(run).__name__}")
        self.folder = run_folder(run, time.time())
        if (self.folder / "run.db").exists():
            _, last = Run(self.folder).steps()
            self.first = step if step is not None else (last + 1 if last is not None else 0)
            self._rewind = self.first
        self._writer = Writer(self.folder, _meta(model, optimizers, quantities, config, ranks))

    def read_stretch(
        self, quantity: Quantity, stretch: Stretch, memory: Memory, coverage: Mapping[str, tuple[str, str]]
    ) -> None:
        """Ask a quantity for its values at the steps of a stretch and write them.

        Where it needs the following step, at those of which that is known.
        """
        late = bool(quantity.needs_after)
        size = stretch.followed if late else len(stretch)
        if size > 1 and quantity.stretches:
            following = stretch.part_after(size) if late else None
            own = _given(stretch.part(size), memory, following)
            with suppress(Exception):  # whose it is, is seen when they are asked for one by one
                reading = quantity.compute(own)
                assert isinstance(reading, Readings)
                marks = self._marks_of(quantity, own.step, memory, coverage)
                found = columns_of_steps(stretch.numbers[:size], self._name(quantity), reading, marks)
                if (writer := self._ready()) is not None:
                    writer.write(found)
                return
        for k in range(size):
            following = stretch.after(k) if late else None
            self.read(quantity, stretch.one(k), memory, coverage, following)

    def read(
        self,
        quantity: Quantity,
        o: Observation,
        memory: Memory,
        coverage: Mapping[str, tuple[str, str]],
        following: Observation | None = None,
    ) -> None:
        """Ask a quantity for its value of a step and write it; what it cannot say becomes a gap.

        The step may be an earlier one than that of the latest `steps` or `event`. ``coverage`` is known again by its
        identity: a mapping that has been handed over is not changed any more.
        """
        own = _given(o, memory, following)
        step, name = o.step, self._name(quantity)
        found: list[Record | Column]
        try:
            value = quantity.compute(own)
            reading = value if isinstance(value, Reading) else Reading(value)
            found = columns(step, name, reading, self._marks_of(quantity, step, memory, coverage))
        except Gap as gap:
            found = [Column(step, name, float("nan"), str(gap))]
        except Exception as failure:
            text = f"failed: {type(failure).__name__}: {failure}"
            self.failure(step, name, text)
            found = [Column(step, name, float("nan"), text)]
        if (writer := self._ready()) is not None:
            writer.write(found)

    def _name(self, quantity: Quantity) -> str:
        return self._names.get(id(quantity)) or quantity.name

    def _marks_of(
        self, quantity: Quantity, step: int, memory: Memory, coverage: Mapping[str, tuple[str, str]]
    ) -> Mapping[str, str] | None:
        """Return the statuses of parameters of which a quantity knows row contributions only."""
        marks = self._marks(coverage)
        if marks is not None and not any(map(individual_gradients, quantity.request(memory, step))):
            return None
        return marks

    def guarded(self, step: int, name: str) -> Guard:
        """Turn what a quantity raises into a recorded failure."""
        return Guard(partial(self._failed, step), name)

    def _failed(self, step: int, name: str, failure: Exception) -> None:
        self.failure(step, name, f"failed: {type(failure).__name__}: {failure}")

    def steps(
        self,
        steps: Sequence[int],
        learning_rates: Sequence[Sequence[float]],
        notes: Sequence[Sequence[tuple[str, str]]],
        coverage: Mapping[str, tuple[str, str]],
    ) -> None:
        """Write what belongs to steps as a whole: their learning rates, and what is to be noted of each."""
        writer = self._ready()
        if writer is None:
            return
        rates: list[Record | Columns] = [
            Columns(tuple(steps), "learning_rate", [groups[0] for groups in learning_rates])
        ]
        for step, groups in zip(steps, learning_rates, strict=True):
            if len(groups) > 1:
                rates += [Record(step, "learning_rate", r, f"group_{k}") for k, r in enumerate(groups)]
        writer.write(rates)
        for step, noted in zip(steps, notes, strict=True):
            for kind, text in noted:
                self.event(step, kind, text)
        if coverage is not self._coverage:
            if coverage != self._coverage:
                words = {n: {"way": way, "reason": reason} for n, (way, reason) in coverage.items()}
                writer.set_meta({"coverage": words})
            self._coverage = coverage

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the user's own numbers."""
        records = []
        for name, value in metrics.items():
            try:
                records.append(Record(step, name, float(value)))
            except (TypeError, ValueError) as error:
                raise CockpitError(f"log({name}=…): a number, not {type(value).__name__}") from error
        if (writer := self._ready()) is not None:
            writer.write(records)

    def event(self, step: int, kind: str, text: str) -> None:
        """Write an event."""
        if (writer := self._ready()) is not None:
            writer.event(Event(step, kind, text))

    def failure(self, step: int, name: str, text: str) -> None:
        """Write a failure of our own, once for each text."""
        if (name, text) not in self._said:
            self._said.add((name, text))
            self.event(step, "gap", f"{name}: {text}" if name else text)

    def assume(self, text: str) -> None:
        """Store an assumption that the values rest on."""
        self.note({"assumption": text})

    def note(self, meta: Mapping[str, Any]) -> None:
        """Store something about the run as a whole."""
        if self._writer is not None:
            self._writer.set_meta(dict(meta))

    def when_quiet(self, call: Callable[[], None]) -> None:
        """Have something called, in another thread, whenever nothing was written for a while."""
        if self._writer is not None:
            self._writer.when_quiet(call)

    def rewind(self, step: int) -> None:
        """Continue the run from a step; what was recorded at or beyond it is superseded.

        Nothing is taken away before the first new record comes: a checkpoint may yet be loaded.
        """
        self._rewind = step

    def _marks(self, coverage: Mapping[str, tuple[str, str]]) -> Mapping[str, str] | None:
        """Return the statuses of parameters of which only row contributions are known, None where there are none."""
        if coverage is not self._covered:
            if coverage != self._covered:
                coupled = {n: COUPLED for n, (way, _) in coverage.items() if way == "row_contribution"}
                self._coupled = coupled or None
            self._covered = coverage
        return self._coupled

    def _ready(self) -> Writer | None:
        """Return the writer, rewound if that is due (None on ranks that do not write)."""
        writer, step = self._writer, self._rewind
        if writer is not None and step is not None:
            self._rewind = None
            writer.rewind(step)
            writer.event(Event(step, "resumed", f"the run is continued from step {step}"))
        return writer

    def close(self) -> None:
        """End the run."""
        if self._writer is not None:
            self._writer.set_meta({"ended": time.time()})
            self._writer.close()


def _given(o: Observation, memory: Memory, following: Observation | None) -> Observation:
    """Return an observation with two fields replaced; `dataclasses.replace` takes five times as long."""
    own = object.__new__(type(o))
    own.__dict__.update(o.__dict__, memory=memory, following=following)
    return own


def _meta(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    quantities: Sequence[Quantity],
    config: str,
    ranks: Ranks | None,
) -> dict[str, Any]:
    parameters = {
        n: {"shape": list(p.shape), "trainable": p.requires_grad} for n, p in model.named_parameters()
    }
    device = next(model.parameters()).device
    return {
        "started": time.time(),
        "ended": None,
        "versions": {"cockpit": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "model": type(model).__name__,
        "parameters": parameters,
        "optimizer": "+".join(type(o).__name__ for o in optimizers),
        "hyperparameters": [
            {k: v for k, v in g.items() if k != "params" and _is_plain(v)}
            for o in optimizers
            for g in o.param_groups
        ],
        "config": config,
        "quantities": [q.describe() for q in quantities],
        "device": str(device) + (f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""),
        "ranks": 1 if ranks is None else ranks.size,
    }


def _is_plain(setting: object) -> bool:
    """Say whether a setting of an optimiser is a number, a text, or some numbers, such as Adam's ``betas``."""
    if isinstance(setting, list | tuple):
        return all(isinstance(part, int | float) for part in setting)
    return isinstance(setting, int | float | str | bool | None)
