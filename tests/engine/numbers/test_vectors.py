"""Products and combinations of long vectors: compiled and by torch, wide, from rows of several tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.numbers import vectors
from cockpit.engine.numbers.vectors import LONG, NARROW, SHORT, WIDE, Rows, combine, inner, rounding

WAYS = ["compiled", "torch"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in turn."""
    if request.param == "torch":
        for name in ("inner", "combine"):
            monkeypatch.setattr(native, name, lambda *_: None)
        monkeypatch.setattr(native, "serves", lambda *_: False)
    elif not native.status().startswith("compiled"):
        pytest.skip(native.status())
    return str(request.param)


def drawn(size: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    rows, others = (torch.randn(k, size, generator=generator, dtype=dtype) for k in (4, 2))
    return rows, others, torch.randn(3, 4, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("scale", [1.0, 1e25, 1e-25])
@pytest.mark.parametrize("size", [3, 1024, SHORT, SHORT + 1, LONG + 5])
def test_sums_over_coordinates_are_wide(size: int, scale: float, way: str) -> None:
    """Squares may leave the range of single precision; vectors are long enough for the narrow way, and not."""
    rows, others, weights = drawn(size)
    others = others * scale
    found = inner([rows], [others])
    assert found.dtype == torch.float64
    lengths = torch.outer(rows.double().norm(dim=1), others.double().norm(dim=1))
    error = (found - rows.double() @ others.double().T).abs() / lengths
    assert float(error.max()) < rounding(rows)
    square = inner([others], [others]).diagonal()
    torch.testing.assert_close(square, others.double().square().sum(1), rtol=1e-6, atol=0)
    combined = combine(weights, [rows])
    assert combined.dtype == torch.float32
    torch.testing.assert_close(combined.double(), weights @ rows.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [0, 1, 15, 17, 1023, 1025, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_may_be_those_of_several_tensors(size: int, dtype: torch.dtype, way: str) -> None:
    rows, others, weights = drawn(size, dtype)
    apart = [
        rows[:1],
        rows[1:3].T.contiguous().T,
        rows.repeat_interleave(2, 0)[6::2],
    ]  # with gaps of all kinds
    expected = rows.double() @ others.double().T
    torch.testing.assert_close(inner(apart, [others]), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(inner([others], apart), expected.T, rtol=1e-12, atol=1e-12)
    own = inner(apart, apart)
    torch.testing.assert_close(own, rows.double() @ rows.double().T, rtol=1e-12, atol=1e-12)
    combined = combine(weights, apart)
    assert combined.shape == (3, size)
    torch.testing.assert_close(combined, (weights @ rows.double()).to(dtype))


@pytest.mark.parametrize("size", [0, 1, 1023, SHORT, 2 * SHORT + 5, LONG + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_come_one_after_the_other(size: int, dtype: torch.dtype, way: str) -> None:
    """Fewer may come than were announced."""
    given, _, weights = drawn(size, dtype)
    exact, scale = given.double() @ given.double().T, max(size, 1)
    rows = Rows(given[:2], 5)
    for count in (3, 4):
        rows.append(given[count - 1])
        assert rows.count == count
        for fresh in (1, count):
            found = rows.inner(fresh)
            assert found.dtype == torch.float64
            expected = exact[:count, count - fresh : count]
            torch.testing.assert_close(found, expected, rtol=0, atol=scale * rounding(given))
        mixed = weights[:, :count]
        combined = rows.combine(mixed)
        assert combined.dtype == dtype
        expected = mixed @ given[:count].double()
        torch.testing.assert_close(combined.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("room", [0, vectors.ROOM])
def test_rows_that_are_too_many_numbers_are_not_kept_wide(
    room: int, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(vectors, "ROOM", room)
    given, _, _ = drawn(10)
    rows = Rows(given[:3], 1)
    rows.append(given[3])
    torch.testing.assert_close(rows.inner(4), given.double() @ given.double().T)
    assert (rows._room is None) == (way == "compiled" or room == 0)


def test_what_is_not_finite_stays_so(way: str) -> None:
    rows, others, weights = drawn(40)
    rows[1, 3], rows[2, 4] = torch.nan, torch.inf
    assert inner([rows], [others]).isfinite().all(1).tolist() == [True, False, False, True]
    assert not combine(weights, [rows])[:, 3:5].isfinite().any()
    coming = Rows(rows[:3], 1)
    coming.append(rows[3])
    assert coming.inner(4)[[0, 3]][:, [0, 3]].isfinite().all()
    assert not coming.inner(4)[1:3].isfinite().any()


def test_long_vectors_are_summed_less_exactly_where_nothing_is_compiled(way: str) -> None:
    assert rounding(torch.zeros(1, LONG)) == WIDE
    assert rounding(torch.zeros(1, LONG + 1)) == (WIDE if way == "compiled" else NARROW)
    assert vectors.LENGTHS[0] < 1 < vectors.LENGTHS[1]
