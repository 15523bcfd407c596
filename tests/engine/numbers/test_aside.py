"""Tensors kept aside are what they were, whatever becomes of the originals, and copies where that is not possible."""

from __future__ import annotations

import io
import mmap
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cockpit.engine.numbers import aside as module
from cockpit.engine.numbers.aside import aside
from layer_check import normal

TENSORS = {
    "matrix": normal(5, 4),
    "turned": normal(3, 4, seed=1).T,
    "number": normal(),
    "nothing": torch.zeros(0, 3),
    "single": normal(7).float(),
    "half": normal(2, 3).bfloat16(),
    "whole": torch.arange(4),
}


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few numbers be too many for a copy."""
    monkeypatch.setattr(module, "SMALL", 0)


def is_mapped(tensor: Tensor) -> bool:
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [tuple(int(x, 16) for x in fields[0].split("-")) for fields in maps if "(deleted)" in fields]
    return any(start <= tensor.data_ptr() < stop for start, stop in ranges)


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="the system does not tell its maps"
)


@needs_proc
def test_they_are_what_they_were(large: None) -> None:
    originals = {name: tensor.clone() for name, tensor in TENSORS.items()}
    kept = aside(originals)
    for tensor in originals.values():
        tensor.zero_()
    assert list(kept) == list(TENSORS)
    for name, tensor in kept.items():
        assert tensor.dtype is TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name])
        assert is_mapped(tensor) == bool(tensor.numel())


def test_they_can_be_saved(large: None) -> None:
    file = io.BytesIO()
    torch.save(aside(TENSORS), file)
    file.seek(0)
    for name, tensor in torch.load(file).items():
        assert torch.equal(tensor, TENSORS[name])


def test_parameters_are_kept_as_numbers(large: None) -> None:
    parameter = torch.nn.Parameter(normal(3))
    kept = aside({"w": parameter})["w"]
    assert not kept.requires_grad
    assert torch.equal(kept, parameter)


@needs_proc
def test_few_numbers_are_copied() -> None:
    kept = aside(TENSORS)
    assert not any(is_mapped(tensor) for tensor in kept.values())
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in kept.items())


def no_room(path: Any) -> Any:
    return type("Usage", (), {"free": 1000})


def refused(*args: Any, **settings: Any) -> Any:
    raise OSError("no space left on device")


@needs_proc
@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (module.shutil, "disk_usage", no_room),
        (tempfile, "TemporaryFile", refused),
        (np, "memmap", refused),
        (mmap, "mmap", refused),
    ],
    ids=["no room", "no file", "no map", "no memory map"],
)
def test_what_cannot_be_mapped_is_copied(
    owner: Any, name: str, broken: Any, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    kept = aside(TENSORS)
    assert not any(is_mapped(tensor) for tensor in kept.values())
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in kept.items())
