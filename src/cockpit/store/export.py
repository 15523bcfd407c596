"""Export of a run: CSV, JSON lines, Parquet, and the original Cockpit's JSON log.

All go through the run series by series, so only one series is in memory at a time; except the original's
format, which is one JSON object ordered by step.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from cockpit.errors import CockpitError
from cockpit.store.original import NAMES, TOTALS
from cockpit.store.record import Histogram, Record, Value
from cockpit.store.run import Run
from cockpit.store.series import Series


def records(run: Run) -> Iterator[Record]:
    """Go through all records of a run, series by series."""
    for series in run:
        for step, value, status in zip(series.steps.tolist(), series.values, series.status, strict=True):
            yield Record(step, series.name, value, series.scope, status)


def plain(value: Value) -> Any:
    """Return a value as JSON can say it: NaN and infinities as the texts "NaN", "Infinity", "-Infinity"."""
    if isinstance(value, Histogram):
        axes = value.edges if isinstance(value.edges, tuple) else (value.edges,)
        edges = [_finite(axis.tolist()) for axis in axes]
        return {
            "counts": value.counts.tolist(),
            "edges": edges if len(edges) > 1 else edges[0],
            "underflow": value.underflow,
            "overflow": value.overflow,
            "nan": value.nan,
            "inf": value.inf,
        }
    return _finite(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, complex):
        return [_finite(value.real), _finite(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def to_csv(run: Run, file: TextIO) -> int:
    """Write step, name, scope, value, status; arrays and histograms as JSON. Return the number of records."""
    table = csv.writer(file)
    table.writerow(["step", "name", "scope", "value", "status"])
    count = 0
    for record in records(run):
        count += 1
        number = isinstance(record.value, float)
        value = repr(float(record.value)) if number else json.dumps(plain(record.value))  # type: ignore[arg-type]
        table.writerow([record.step, record.name, record.scope, value, record.status])
    return count


def to_jsonl(run: Run, file: TextIO) -> int:
    """Write one JSON object a line for every record; return their number."""
    count = 0
    for record in records(run):
        count += 1
        line = {
            "step": record.step,
            "name": record.name,
            "scope": record.scope,
            "value": plain(record.value),
            "status": record.status,
        }
        file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
    return count


def to_parquet(run: Run, path: Path) -> int:
    """Write step, name, scope, value (numbers), json (the rest), status; return the number of rows."""
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise CockpitError("Parquet needs pyarrow: pip install 'cockpit-debugger[parquet]'") from error
    text, number = arrow.string(), arrow.float64()
    kinds = [("step", arrow.int64()), ("name", text), ("scope", text), ("value", number), ("json", text)]
    schema = arrow.schema([*kinds, ("status", text)])
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for series in run:
            if not len(series):
                continue
            numbers, texts = _columns(series)
            size = len(series)
            name, scope = [series.name] * size, [series.scope] * size
            columns = [series.steps, name, scope, numbers, texts, series.status]
            pairs = zip(columns, schema, strict=True)
            arrays = [arrow.array(column, type=field.type) for column, field in pairs]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
            count += size
    return count


def _columns(series: Series) -> tuple[Any, list[str | None]]:
    """Return the numbers and the JSON texts of a series; each is null where the other has the value."""
    if isinstance(series.values, np.ndarray):
        return series.values, [None] * len(series)
    numbers = [value if isinstance(value, float) else None for value in series.values]
    texts = [None if isinstance(value, float) else json.dumps(plain(value)) for value in series.values]
    return numbers, texts


def to_original(run: Run, file: TextIO) -> int:
    """Write the original Cockpit's JSON log, readable by its plotter; return the number of steps.

    What that format cannot say is left out: values that are not finite, the values of single parameters where
    1.0 has only the network's, and counts outside the first axis of a two-dimensional histogram.
    """
    classes = {name: key for key, name in NAMES.items()}
    log: dict[int, dict[str, Any]] = {}
    for name in run.names():
        entries = _tensors(run, name) if name in TOTALS or name == "parameters" else _network(run, name)
        for step, entry in entries:
            log.setdefault(step, {})[classes.get(name, name)] = entry
    ordered = {str(step): dict(sorted(log[step].items())) for step in sorted(log)}
    json.dump(ordered, file, indent=4, allow_nan=False)
    file.write("\n")
    return len(ordered)


def _network(run: Run, name: str) -> Iterator[tuple[int, Any]]:
    """Yield (step, value) of what the original has for the network as a whole."""
    scopes = run.scopes(name)
    if "" not in scopes:
        return
    parts = _parameters(run, scopes) if name == "grad_hist2d" else []
    nested = {scope: _by_step(run.series(name, scope)) for scope in parts}
    for step, (value, status) in _by_step(run.series(name)).items():
        if isinstance(value, Histogram):
            entry = _histogram(value)
            for k, scope in enumerate(parts):
                part = nested[scope].get(step, (None, ""))[0]
                if isinstance(part, Histogram):
                    entry = {"param_groups": len(parts), **entry, f"param_{k}": _histogram(part)}
            yield step, entry
        elif name == "alpha" and status.startswith("concave"):
            yield step, -1  # how the original says that the parabola has no minimum
        elif isinstance(value, np.ndarray):
            if np.isfinite(value).all():
                yield step, _array(value)
        elif math.isfinite(value):
            yield step, value


def _tensors(run: Run, name: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield (step, list with one value per parameter); the total alone where parameters were not recorded."""
    scopes = run.scopes(name)
    parts = [_by_step(run.series(name, scope)) for scope in _parameters(run, scopes) or scopes]
    for step in parts[0]:
        values = [part[step][0] for part in parts if step in part]
        if len(values) == len(parts) and all(
            not isinstance(value, Histogram) and np.isfinite(value).all() for value in values
        ):
            yield step, [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


def _parameters(run: Run, scopes: list[str]) -> list[str]:
    """Return the scopes that are parameters, in the model's order where the run knows it."""
    known = run.meta.get("parameters")
    order = list(known) if isinstance(known, list | dict) else scopes
    return [scope for scope in order if scope in scopes and scope]


def _by_step(series: Series) -> dict[int, tuple[Value, str]]:
    pairs = zip(series.values, series.status, strict=True)
    return dict(zip(series.steps.tolist(), pairs, strict=True))


def _histogram(value: Histogram) -> dict[str, Any]:
    """Return a histogram as 1.0 stores it; it has no counts outside, they lie in its outer bins."""
    if isinstance(value.edges, tuple):
        return {
            "hist": _array(value.counts),
            "edges": [_array(axis.astype(np.float32)) for axis in value.edges],
        }
    counts = value.counts.copy()
    counts[0] += value.underflow
    counts[-1] += value.overflow
    return {"hist": _array(counts.astype(np.float32)), "edges": _array(value.edges.astype(np.float32))}


def _array(values: npt.NDArray[Any]) -> dict[str, Any]:
    """Return an array as json_tricks writes it."""
    found = {"__ndarray__": values.tolist(), "dtype": str(values.dtype), "shape": list(values.shape)}
    return found if values.ndim < 2 else {**found, "Corder": True}
