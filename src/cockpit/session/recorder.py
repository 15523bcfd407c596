"""From readings to records: asks quantities for their values and writes them, with their statuses, to the run."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.engine.needs import individual_gradients
from cockpit.engine.ranks import Ranks
from cockpit.errors import CockpitError, Gap
from cockpit.quantities.quantity import Memory, Observation, Quantity, Reading
from cockpit.store.folder import run_folder
from cockpit.store.record import Event, Histogram, Record, Value
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from cockpit.version import __version__

COUPLED = "batch_coupled: BatchNorm in training mode couples the examples; these are row contributions"


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
        self._coverage: Mapping[str, tuple[str, str]] = {}
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

    def read(
        self,
        quantity: Quantity,
        o: Observation,
        memory: Memory,
        coverage: Mapping[str, tuple[str, str]],
        following: Observation | None = None,
    ) -> None:
        """Ask a quantity for its value of a step and write it; what it cannot say becomes a gap."""
        o = replace(o, memory=memory, following=following)
        rows = {n for n, (way, _) in coverage.items() if way == "row_contribution"}
        try:
            found = quantity.compute(o)
            reading = found if isinstance(found, Reading) else Reading(found)
            individual = any(individual_gradients(n) for n in quantity.request(memory, o.step))
            records = list(_records(quantity.name, o.step, reading, rows if individual else set()))
        except Gap as gap:
            records = [Record(o.step, quantity.name, float("nan"), status=str(gap))]
        except Exception as failure:
            text = f"failed: {type(failure).__name__}: {failure}"
            self.failure(o.step, quantity.name, text)
            records = [Record(o.step, quantity.name, float("nan"), status=text)]
        if (writer := self._ready()) is not None:
            writer.write(records)

    @contextmanager
    def guarded(self, step: int, name: str) -> Iterator[None]:
        """Turn what a quantity raises into a recorded failure."""
        try:
            yield
        except Exception as failure:
            self.failure(step, name, f"failed: {type(failure).__name__}: {failure}")

    def step(
        self,
        step: int,
        learning_rates: Sequence[float],
        notes: Sequence[tuple[str, str]],
        coverage: Mapping[str, tuple[str, str]],
    ) -> None:
        """Write what belongs to the step as a whole."""
        writer = self._ready()
        if writer is None:
            return
        rates = {f"group_{k}": lr for k, lr in enumerate(learning_rates)} if len(learning_rates) > 1 else {}
        writer.write(
            [Record(step, "learning_rate", learning_rates[0])]
            + [Record(step, "learning_rate", lr, scope) for scope, lr in rates.items()]
        )
        for kind, text in notes:
            self.event(step, kind, text)
        if coverage != self._coverage:
            self._coverage = dict(coverage)
            writer.set_meta({"coverage": {n: {"way": w, "reason": r} for n, (w, r) in coverage.items()}})

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
        if self._writer is not None:
            self._writer.set_meta({"assumption": text})

    def rewind(self, step: int) -> None:
        """Continue the run from a step; what was recorded at or beyond it is superseded.

        Nothing is taken away before the first new record comes: a checkpoint may yet be loaded.
        """
        self._rewind = step

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


def _records(name: str, step: int, reading: Reading, rows: set[str]) -> Iterator[Record]:
    """Turn a reading into records; ``rows`` are parameters of which only row contributions are known."""
    entries: list[tuple[str, str, object, str]] = []
    if reading.value is not None:
        status = COUPLED if rows and reading.status == "ok" else reading.status
        entries.append((name, "", reading.value, status))
    for scope, value in reading.by_parameter.items():
        entries.append((name, scope, value, COUPLED if scope in rows else "ok"))
    for key, found in reading.more.items():
        for scope, number in (found if isinstance(found, Mapping) else {"": found}).items():
            entries.append((f"{name}.{key}", scope, number, ""))
    plain = _plain([value for _, _, value, _ in entries])
    for (label, scope, _, status), stored in zip(entries, plain, strict=True):
        if status in ("ok", COUPLED) and isinstance(stored, float) and not isfinite(stored):
            status = "nonfinite: the value is NaN or infinite"
        yield Record(step, label, stored, scope, status or "ok")


def _plain(values: Sequence[object]) -> list[Value]:
    """Turn values into plain ones, all numbers on a device with one transfer."""
    tensors = [v for v in values if isinstance(v, Tensor) and not v.ndim]
    device = tensors[0].device if tensors else torch.device("cpu")
    numbers: Iterator[float] = iter(
        torch.stack([t.detach().double().to(device) for t in tensors]).tolist() if tensors else []
    )
    plain: list[Value] = []
    for value in values:
        if isinstance(value, Tensor):
            plain.append(value.detach().double().cpu().numpy() if value.ndim else next(numbers))
        else:
            plain.append(value if isinstance(value, Histogram) else float(value))  # type: ignore[arg-type]
    return plain


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
            {k: v for k, v in g.items() if k != "params" and isinstance(v, int | float | str | bool | None)}
            for o in optimizers
            for g in o.param_groups
        ],
        "config": config,
        "quantities": [q.describe() for q in quantities],
        "device": str(device) + (f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""),
        "ranks": 1 if ranks is None else ranks.size,
    }
