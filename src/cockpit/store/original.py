"""Import of the JSON logs that the original Cockpit (cockpit-for-pytorch 1.0) writes.

A log is ``{"<iteration>": {"<Class>": value, …, "train_loss": …}}``. Arrays are json_tricks objects
``{"__ndarray__": nested list, "dtype": …, "shape": …}``; keys may be missing at any step; NaN and Infinity
may stand as bare words. Parameters have no names there: their scopes are ``param_0``, ``param_1``, …
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cockpit.errors import CockpitError
from cockpit.store.database import FILE
from cockpit.store.folder import run_folder
from cockpit.store.record import Event, Histogram, Record
from cockpit.store.writer import Writer

NAMES = {
    "Loss": "loss",
    "Parameters": "parameters",
    "Time": "time",
    "GradNorm": "grad_norm",
    "Distance": "distance",
    "UpdateSize": "update_size",
    "Alpha": "alpha",
    "NormTest": "norm_test",
    "InnerTest": "inner_test",
    "OrthoTest": "ortho_test",
    "GradHist1d": "grad_hist1d",
    "GradHist2d": "grad_hist2d",
    "TICDiag": "tic_diag",
    "TICTrace": "tic_trace",
    "HessTrace": "hess_trace",
    "HessMaxEV": "hess_max_ev",
    "MeanGSNR": "mean_gsnr",
    "CABS": "cabs",
    "EarlyStopping": "early_stopping",
}
"""The original's class names, which are its keys, and our names."""

TOTALS: dict[str, Callable[[list[float]], float]] = {
    "grad_norm": lambda values: math.hypot(*values),
    "distance": lambda values: math.hypot(*values),
    "update_size": lambda values: math.hypot(*values),
    "hess_trace": sum,
}
"""Quantities that are lists with one number per tensor, and how the network's number follows from them."""


def import_original(
    log: Path, run: str | os.PathLike[str] | None = None, now: float | None = None
) -> tuple[Path, int]:
    """Write a log as a new run; return its folder and the number of records.

    Args:
        log: the JSON file.
        run: the run's name or folder, as everywhere; a name like the log's by default.
        now: the Unix time that a named run's folder tells.
    """
    steps = _read(log)
    folder = run_folder(log.stem if run is None else run, time.time() if now is None else now)
    if (folder / FILE).exists():
        raise CockpitError(f"{folder} already holds a run. Choose another name or folder for the import.")
    items = [record for step, found in steps.items() for record in entries(step, found)]
    records = [record for record in items if isinstance(record, Record)]
    tensors = {record.scope for record in records if re.fullmatch(r"param_\d+", record.scope)}
    meta = {
        "source": log.name,
        "source_format": "cockpit-for-pytorch JSON log",
        "parameters": {f"param_{k}": {} for k in range(len(tensors))},  # their shapes are not in the log
        **_from_path(log),
    }
    with Writer(folder, meta) as writer:
        for start in range(0, len(records), 5000):  # let the writer keep up: nothing may be dropped here
            writer.write(records[start : start + 5000])
            if not writer.flush(60.0):
                break
        for event in items:
            if isinstance(event, Event):
                writer.event(event)
    if writer.acknowledged < len(records):
        raise CockpitError(f"the run could not be written to {folder}: {len(records)} records were expected.")
    return folder, len(records)


def _read(log: Path) -> dict[int, dict[str, Any]]:
    """Return the entries of a log by step, in order."""
    try:
        found = json.loads(log.read_text(encoding="utf-8"), object_hook=_array)
        if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
            raise ValueError("its content is not {iteration: {name: value}}")
        return dict(sorted((int(step), entry) for step, entry in found.items()))
    except (ValueError, TypeError, RecursionError) as error:
        raise CockpitError(f"{log} is not a log of the original Cockpit: {error}.") from error


def _array(found: dict[str, Any]) -> Any:
    """Turn a json_tricks array into an array; leave other objects alone."""
    if not isinstance(found.get("__ndarray__"), list | int | float):
        return found
    values = np.array(found["__ndarray__"], dtype=np.dtype(str(found.get("dtype", "float64"))))
    return values.reshape(found.get("shape", values.shape))


def entries(step: int, found: dict[str, Any]) -> Iterator[Record | Event]:
    """Return what a log has at one step, ``{class or name: value}``, as records; what is no number, as events."""
    for key, value in found.items():
        name = NAMES.get(key, key)
        if name in TOTALS and isinstance(value, list | np.ndarray):
            tensors = np.asarray(value, dtype=np.float64).ravel().tolist()
            yield Record(step, name, TOTALS[name](tensors))
            for k, number in enumerate(tensors):
                yield Record(step, name, number, f"param_{k}")
        elif name == "parameters" and isinstance(value, list):
            for k, tensor in enumerate(value):
                yield Record(step, name, np.asarray(tensor, dtype=np.float64), f"param_{k}")
        elif isinstance(value, dict) and {"hist", "edges"} <= set(value):
            yield from _histograms(step, name, value)
        else:
            yield _single(step, name, value)


def _histograms(step: int, name: str, value: dict[str, Any]) -> Iterator[Record]:
    """Yield the histogram, and those of single tensors that are nested in it."""
    counts = np.rint(np.asarray(value["hist"])).astype(np.int64)  # 1.0 counts in float32
    edges = value["edges"]
    if counts.ndim == 2:
        first, second = (np.asarray(axis, dtype=np.float64) for axis in edges)
        yield Record(step, name, Histogram(counts, (first, second)))
    else:
        yield Record(step, name, Histogram(counts, np.asarray(edges, dtype=np.float64)))
    for key, nested in value.items():
        if re.fullmatch(r"param_\d+", key) and isinstance(nested, dict) and {"hist", "edges"} <= set(nested):
            for record in _histograms(step, name, nested):
                yield Record(step, name, record.value, key)


def _single(step: int, name: str, value: Any) -> Record | Event:
    """Return a number or an array as a record; anything else is kept as an event."""
    if value is None:
        return Record(step, name, math.nan, status="missing")
    if isinstance(value, int | float):
        # the integer -1 is what 1.0 writes when the parabola has no minimum, or nothing moved
        concave = name == "alpha" and type(value) is int and value == -1
        return Record(step, name, float(value), status="concave_or_zero" if concave else "ok")
    try:
        values = np.asarray(value)
        if values.dtype.kind in "biuf":
            return Record(step, name, values if values.ndim else float(values))
    except ValueError:  # a ragged list
        pass
    plain = value.tolist() if isinstance(value, np.ndarray) else value
    return Event(step, "log", f"{name} was logged with a value that is not a number", data={name: plain})


def _from_path(log: Path) -> dict[str, str]:
    """Return what DeepOBS says in its paths, ``<problem>/<Optimizer>/<settings>/…__log.json``."""
    parts = log.absolute().parts
    if len(parts) > 4 and log.stem.endswith("__log"):
        return {"optimizer": parts[-3], "problem": parts[-4]}
    return {}
