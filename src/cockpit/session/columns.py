"""From a reading to what is stored: one column for each name, statuses in place, everything in plain memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cockpit.quantities.quantity import Further, Reading, Readings
from cockpit.store.record import NONFINITE, Column, Columns, Histogram, Histograms, Numbers, Record

COUPLED = "batch_coupled: BatchNorm in training mode couples the examples; these are row contributions"

READY = (float, Numbers, Histograms, Histogram, type(None))
"""What needs no conversion."""


def columns(step: int, name: str, reading: Reading, marks: Mapping[str, str] | None) -> list[Record | Column]:
    """Return a reading as it is stored.

    Args:
        step: the step it belongs to.
        name: of the quantity.
        reading: what the quantity returned.
        marks: the statuses of parameters of which only row contributions are known; None where there are none.
    """
    value, parts, more, status = reading.value, reading.by_parameter, reading.more, reading.status
    if more or type(value) not in READY or (type(parts) not in READY and parts):
        value, parts, more = _plain(value, parts, more)
    if status == "ok" and marks is not None:
        status = COUPLED
    if type(value) is float and (status == "ok" or status == COUPLED) and not isfinite(value):
        status = NONFINITE
    found: list[Record | Column]
    if type(parts) is Numbers or type(parts) is Histograms:
        found = [Column(step, name, value, status, parts, marks)]  # type: ignore[arg-type]
    else:
        found = [Column(step, name, value, status)]  # type: ignore[arg-type]
        if parts:
            found += _parts(step, name, parts, marks, checked=True)
    for key, further in more.items():
        if isinstance(further, Mapping):
            found += _parts(step, f"{name}.{key}", further, None, checked=False)
        else:
            found.append(Column(step, f"{name}.{key}", further))  # type: ignore[arg-type]
    return found


def columns_of_steps(
    steps: tuple[int, ...], name: str, reading: Readings, marks: Mapping[str, str] | None
) -> list[Columns]:
    """Return the readings of a stretch of steps as they are stored; see `columns`."""
    values, status = reading.value, reading.status
    said = [status] * len(steps) if isinstance(status, str) else list(status)
    if marks is not None:
        said = [COUPLED if one == "ok" else one for one in said]
    if isinstance(values, np.ndarray):
        finite, values = np.isfinite(values), values.tolist()
        if not finite.all():
            said = [
                NONFINITE if not good and one in ("ok", COUPLED) else one
                for one, good in zip(said, finite.tolist(), strict=True)
            ]
    statuses: Sequence[str] | None = None if all(one == "ok" for one in said) else said
    found = [Columns(steps, name, values, statuses, reading.by_parameter, marks)]
    for key, given in reading.more.items():
        further = given if isinstance(given, Further) else Further(given)
        parts = None if further.each is None else (further.names, further.each)
        found.append(Columns(steps, f"{name}.{key}", further.value.tolist(), parts=parts))
    return found


def _parts(
    step: int, name: str, parts: Mapping[str, Any], marks: Mapping[str, str] | None, checked: bool
) -> Iterator[Record | Column]:
    """Put the numbers of a mapping into one column; what else is in it stays by itself."""
    if isinstance(parts, Numbers | Histograms):
        yield Column(step, name, parts=parts, marks=marks, checked=checked)
        return
    numbers = {scope: value for scope, value in parts.items() if isinstance(value, float)}
    if numbers:
        together = Numbers(tuple(numbers), list(numbers.values()))
        yield Column(step, name, parts=together, marks=marks, checked=checked)
    for scope, value in parts.items():
        if scope not in numbers:
            yield Record(step, name, value, scope, (marks or {}).get(scope, "ok"))


def _plain(*values: Any) -> tuple[Any, ...]:
    """Turn numbers, also those in mappings, into floats and tensors into arrays; all numbers with one transfer."""
    tensors = [leaf for leaf in _leaves(values) if isinstance(leaf, Tensor) and not leaf.ndim]
    device = tensors[0].device if tensors else torch.device("cpu")
    numbers: Iterator[float] = iter(
        torch.stack([t.detach().double().to(device) for t in tensors]).tolist() if tensors else []
    )

    return tuple([_plain_one(value, numbers) for value in values])


def _plain_one(value: Any, numbers: Iterator[float]) -> Any:
    """Return a value in plain memory; ``numbers`` are those of tensors of one number, in order."""
    # (Not a closure: one that calls itself is garbage that only Python's collector frees, at every step.)
    if type(value) in READY:
        return value
    if isinstance(value, Mapping):
        return {key: _plain_one(part, numbers) for key, part in value.items()}
    if isinstance(value, Tensor):
        return value.detach().double().cpu().numpy() if value.ndim else next(numbers)
    return float(value)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, Mapping) and type(value) not in READY:
            yield from _leaves(value.values())
        else:
            yield value
