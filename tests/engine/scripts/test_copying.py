"""Tensors reach their fixed places whatever their kinds, in few operations."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from cockpit.engine.scripts import copying
from cockpit.engine.scripts.copying import Copier, Copies, copy_all
from layer_check import normal

MIXED = [
    normal(3),
    normal(2, 2, seed=1).float(),
    torch.arange(4),
    normal(9, seed=2),
    normal(3, 2, seed=3).t(),
    normal(5, seed=4).bfloat16(),
]


def _by_copier(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    Copier(places).copy(values)


def _by_copies(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    copies = Copies()
    copies.add(places[:2], values[:2])
    copies.add(places[2:], values[2:])
    copies.end()


WAYS = pytest.mark.parametrize("copy", [_by_copier, _by_copies])
Way = Callable[[Sequence[Tensor], Sequence[Tensor]], None]


@WAYS
@pytest.mark.parametrize("large", [0, 4, 2**20])
@pytest.mark.parametrize("wider", [False, True])
def test_every_tensor_is_copied(copy: Way, large: int, wider: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "LARGE", large)
    places = [
        torch.zeros_like(t, dtype=torch.float64 if wider and t.is_floating_point() else None) for t in MIXED
    ]
    copy(places, MIXED)
    for place, value in zip(places, MIXED, strict=True):
        assert torch.equal(place, value.to(place.dtype))


@WAYS
def test_other_shapes_are_refused_before_anything_is_written(copy: Way) -> None:
    places = [torch.zeros(2), torch.zeros(3)]
    with pytest.raises(RuntimeError, match="other shapes than when it was recorded"):
        copy(places, [torch.ones(2), torch.ones(4)] if copy is _by_copier else [torch.ones(4), torch.ones(3)])
    assert not any(place.any() for place in places)


def test_a_tensor_less_is_refused() -> None:
    with pytest.raises(RuntimeError, match="other shapes"):
        Copier([torch.zeros(2), torch.zeros(2)]).copy([torch.ones(2)])


def test_kinds_may_change_from_step_to_step() -> None:
    places = [torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)]
    copier = Copier(places)
    for kinds in ((torch.float32, torch.float64), (torch.float64, torch.float32), (torch.float32,) * 2):
        values = [normal(3, seed=k).to(kind) for k, kind in enumerate(kinds)]
        copier.copy(values)
        assert all(torch.equal(place, value.double()) for place, value in zip(places, values, strict=True))


@pytest.mark.parametrize("lies", ["alike", "otherwise", "in another type"])
def test_what_is_fed_is_not_copied_where_it_lies_alike(lies: str) -> None:
    place, told = torch.zeros(3, 4), list[int]()
    copier = Copier([place, torch.zeros(2)], [told.append, None])
    assert place.untyped_storage().nbytes() == 0
    value = {
        "alike": normal(3, 4).float(),
        "otherwise": normal(4, 3).float().T,
        "in another type": normal(3, 4),
    }[lies]
    for _ in range(2):
        copier.copy([value, torch.ones(2)])
    assert (told[0] == value.data_ptr()) == (lies == "alike")
    read = torch.frombuffer((ctypes.c_float * 12).from_address(told[-1]), dtype=torch.float32).view(3, 4)
    assert torch.equal(read, value.float())


@pytest.mark.parametrize("kind", ["alike", "of another type", "strided"])
def test_tensors_are_copied_together(kind: str) -> None:
    values = [normal(3, 4), normal(5, seed=1)]
    places = [torch.zeros(3, 4, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)]
    if kind == "of another type":
        places[1] = places[1].float()
    if kind == "strided":
        places[0] = torch.zeros(4, 3, dtype=torch.float64).T
    copy_all(places, values)
    assert all(torch.equal(p, v.to(p.dtype)) for p, v in zip(places, values, strict=True))
