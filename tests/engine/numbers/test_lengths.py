"""Squared lengths and distances, compiled and by torch: their definition, long sums in single precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.numbers import lengths
from cockpit.engine.numbers.lengths import squared_lengths
from layer_check import normal


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr(native, "lengths", lambda *_: None)
    elif not native.status().startswith("compiled"):
        pytest.skip(native.status())
    else:
        monkeypatch.setattr(lengths, "FEW", 0)


def vectors(dtype: torch.dtype) -> list[Tensor]:
    """Shorter and longer than a row, with and without a rest, one number, none; rows of its own that do, or not."""
    row = lengths.ROW
    sizes = [(3, 5), (row,), (2, row), (3 * row + 17,), (), (0,), (1,), (20, 30, 10), (300, 40), (2, 3 * row)]
    return [normal(*size, seed=k).to(dtype) for k, size in enumerate(sizes)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_squared_lengths(dtype: torch.dtype) -> None:
    given = vectors(dtype)
    found = squared_lengths(given)
    assert all(x.dtype == torch.float64 and x.shape == () for x in found)
    expected = [float(v.double().square().sum()) for v in given]
    assert [float(x) for x in found] == pytest.approx(expected, rel=1e-13 if dtype == torch.float64 else 3e-6)


def test_vectors_of_different_types() -> None:
    given = [normal(3).float(), normal(4), normal(5).to(torch.bfloat16)]
    found = [float(x) for x in squared_lengths(given)]
    assert found == pytest.approx([float(v.double().square().sum()) for v in given], rel=1e-6)


def test_long_sums_in_single_precision_lose_nothing() -> None:
    """2²² squares of 1 + 2⁻¹²: a running sum in float32 would be off by far more."""
    given = torch.full((2**22,), 1 + 2**-12)
    (found,) = squared_lengths([given])
    assert float(found) == pytest.approx(2**22 * (1 + 2**-12) ** 2, rel=1e-6)


@pytest.mark.parametrize("size", [5, lengths.ROW, 3 * lengths.ROW + 5])
@pytest.mark.parametrize("value", [1e25, 1e-25])
def test_squares_beyond_single_precision(value: float, size: int) -> None:
    (found,) = squared_lengths([torch.full((size,), value)])
    assert float(found) == pytest.approx(size * float(torch.tensor(value).double()) ** 2, rel=1e-5, abs=0)


def test_transposed_vectors() -> None:
    for dtype in (torch.float32, torch.float64):
        x = normal(70, 90).to(dtype).T
        assert float(squared_lengths([x])[0]) == pytest.approx(float(x.double().square().sum()), rel=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_are_none_show_and_touch_no_neighbour(bad: float, dtype: torch.dtype) -> None:
    given = [normal(lengths.ROW + 3).to(dtype) for _ in range(2)]
    given[0][1] = bad
    first, second = squared_lengths(given)
    assert not first.isfinite()
    assert second.isfinite()


@pytest.mark.parametrize("group", [2**24, 100, 1])
def test_distances_in_groups(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "GROUP", group)
    given, origins = vectors(torch.float64), [v + 1 for v in vectors(torch.float64)]
    found = [float(x) for x in squared_lengths(given, origins)]
    np.testing.assert_allclose(found, [v.numel() for v in given], rtol=1e-12)


def test_groups_hold_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "GROUP", 10)
    assert lengths.groups([4, 6, 1, 30, 2, 8]) == [(0, 2), (2, 3), (3, 4), (4, 6)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("piece", [16, lengths.ROW, 2 * lengths.ROW + 5])
def test_distances_on_a_cpu_are_taken_piece_by_piece(
    piece: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengths, "PIECE", piece)
    for size in ((5, 11), (11, 1000)):
        x, y = normal(*size).to(dtype), normal(*size, seed=1).to(dtype)
        (found,) = squared_lengths([x], [y])
        torch.testing.assert_close(found, (x - y).double().square().sum(), rtol=1e-6, atol=0)
        assert found.dtype == torch.float64


def test_distances_beyond_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "PIECE", lengths.ROW)
    x = torch.full((3 * lengths.ROW,), 1e25)
    (found,) = squared_lengths([x], [torch.zeros_like(x)])
    assert float(found) == pytest.approx(len(x) * float(x[0].double()) ** 2, rel=1e-5)


def test_no_vectors() -> None:
    assert squared_lengths([]) == []
    assert squared_lengths([], []) == []


@pytest.mark.parametrize("few", [0, 4])
def test_multiples(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "FEW", few)
    values = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}
    found = lengths.multiples(values, {"a": 2.0, "b": 0.5})
    assert {n: x.tolist() for n, x in found.items()} == {"a": [2.0, 4.0], "b": 1.5}
    assert lengths.multiples(values, {"a": 1.0, "b": 1.0}) == values, "nothing is copied"
    assert lengths.multiples({}, {}) == {}
