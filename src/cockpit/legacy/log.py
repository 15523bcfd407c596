"""The original's JSON log: ``{"<iteration>": {"<Class>": value, …}}``, arrays in json_tricks' form."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_log(path: str | os.PathLike[str], output: Mapping[int, Mapping[str, Any]]) -> None:
    """Write a log to ``path`` plus ``.json``, all of it or nothing; folders are created.

    Steps are in numeric, names in alphabetical order. Entries that hold NaN or an infinite number are left
    out: the original cannot read them.
    """
    file = Path(os.fspath(path) + ".json")
    steps = {
        str(step): {name: _plain(value) for name, value in sorted(output[step].items()) if _finite(value)}
        for step in sorted(output)
    }
    text = json.dumps(steps, indent=4, allow_nan=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(suffix=".part", prefix=file.name, dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text + "\n")
        os.replace(part, file)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def read_log(path: str | os.PathLike[str]) -> dict[int, dict[str, Any]]:
    """Read the log at ``path`` plus ``.json``."""
    text = Path(os.fspath(path) + ".json").read_text(encoding="utf-8")
    return {int(step): entries for step, entries in json.loads(text, object_hook=_array).items()}


def _finite(value: Any) -> bool:
    match value:
        case dict():
            return all(map(_finite, value.values()))
        case list() | tuple():
            return all(map(_finite, value))
        case np.ndarray():
            return value.dtype.kind not in "fc" or bool(np.isfinite(value).all())
        case float():
            return math.isfinite(value)
    return True


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in sorted(value.items())}
        case list() | tuple():
            return [_plain(item) for item in value]
        case np.ndarray():
            found = {"__ndarray__": value.tolist(), "dtype": str(value.dtype), "shape": list(value.shape)}
            return found if value.ndim < 2 else {"Corder": True, **found}
        case np.generic():
            return value.item()
    return value


def _array(found: dict[str, Any]) -> Any:
    if "__ndarray__" not in found:
        return found
    return np.array(found["__ndarray__"], dtype=found["dtype"]).reshape(found["shape"])
