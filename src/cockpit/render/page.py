"""Charts as JSON, for the page and the report: the marks' fields under their names, and their ``kind``."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import numpy as np

from cockpit.instruments.chart import Chart, Mark

DIGITS = 7
"""Significant digits of numbers on the page: more than a screen can show, half as long as exact ones."""


def chart_json(chart: Chart) -> dict[str, Any]:
    """Return a chart as objects that `json.dumps` takes: arrays are lists, numbers that are not finite are null."""
    plain = _plain(chart)
    assert isinstance(plain, dict)
    return plain


def json_text(value: object) -> str:
    """Return JSON in short; numbers that are not finite, for which it has no word, are null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:  # rare: a hyper-parameter that is infinite, for example
        return json.dumps(_finite(value), separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        found = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        if isinstance(value, get_args(Mark)):
            found["kind"] = type(value).__name__.lower()
        return found
    if isinstance(value, np.ndarray):
        return _numbers(value)
    if isinstance(value, float):
        return _numbers(np.asarray([value]))[0]
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value


def _numbers(array: np.ndarray[Any, Any]) -> list[Any]:
    if array.ndim > 1:
        return [_numbers(row) for row in array]
    finite = np.isfinite(array)
    whole = finite & (array == np.rint(array)) & (np.abs(array) < 2.0**53)
    if whole.all():
        return list(array.astype(np.int64).tolist())
    return [
        int(value) if integral else float(f"{value:.{DIGITS}g}") if there else None
        for value, there, integral in zip(array.tolist(), finite.tolist(), whole.tolist(), strict=True)
    ]
