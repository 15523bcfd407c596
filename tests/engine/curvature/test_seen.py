"""What a few products tell of a matrix: by C and by NumPy alike, against the matrix itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.curvature import seen
from cockpit.engine.curvature.seen import Plain, Seen, look
from cockpit.errors import Gap

F64 = torch.float64
NOISE = 1e-9
"""Squared lengths down to this are believed, which leaves products of rows seven digits."""


def both(values: Tensor, products: int) -> list[Seen]:
    """Return the two ways, or the one that this machine has."""
    fast, plain = look(values, NOISE, products), Plain(values, NOISE)
    return [plain] if isinstance(fast, Plain) else [fast, plain]


def walk(ways: Sequence[Seen], matrix: Tensor, vectors: Tensor, products: int) -> list[list[Tensor]]:
    """Multiply as each way wants it; return its rows."""
    found = []
    for way in ways:
        rows, direction = list(vectors), vectors[-1]
        for left in reversed(range(products)):
            rows.append(matrix @ direction)
            stacked = torch.stack(rows)
            weights = way.add(stacked @ (stacked[-1:] if way.products else stacked).T, left > 0)
            if weights is None:
                break
            direction = (weights @ stacked)[0]
            assert float(direction.norm()) == pytest.approx(1, abs=1e-6)
        found.append(rows)
    return found


def symmetric(size: int, seed: int, power: float) -> Tensor:
    """Return a random matrix whose eigenvalues spread over more the larger the power."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(size, size, dtype=F64, generator=generator))[0]
    spectrum = torch.randn(size, dtype=F64, generator=generator)
    return (q * spectrum.sign() * spectrum.abs() ** power) @ q.T


@settings(deadline=None, max_examples=200)
@given(
    size=st.integers(1, 12),
    carried=st.integers(1, 4),
    products=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    change=st.sampled_from([0.0, 0.01, 0.3, 3.0]),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_both_ways_agree(
    size: int, carried: int, products: int, seed: int, change: float, scale: float
) -> None:
    old = scale * symmetric(size, seed, 2)
    new = old + change * scale * symmetric(size, seed + 1, 1)
    values, vectors = torch.linalg.eigh(old)
    values, vectors = values[-carried:].contiguous(), vectors.T[-carried:].contiguous()
    ways = both(values, products)
    rows = walk(ways, new, vectors, products)
    found = [(*way.value(), way.products) for way in ways]
    for value, residual, converged, spent in found[1:]:
        assert value == pytest.approx(found[0][0], rel=1e-5, abs=1e-6 * scale)
        assert residual == pytest.approx(found[0][1], rel=1e-4, abs=1e-5 * scale)
        assert (converged, spent) == found[0][2:]
    means = [way.averaged(carried) for way in ways]
    for each, (values, weights) in zip(rows, means, strict=True):
        torch.testing.assert_close(values, means[0][0], rtol=1e-5, atol=1e-6 * scale)
        kept = weights @ torch.stack(each)
        torch.testing.assert_close(kept @ kept.T, torch.eye(len(kept), dtype=F64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("products", [1, 2, 3])
def test_with_all_directions_multiplied_the_value_is_exact(products: int) -> None:
    matrix = symmetric(products, 3, 1)
    values, vectors = torch.linalg.eigh(symmetric(products, 4, 1))
    for way in both(values, products):
        walk([way], matrix, vectors.T.contiguous(), products)
        value, residual, _ = way.value()
        assert value == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]), rel=1e-10)
        assert residual < 1e-10


def test_products_that_are_not_finite_are_a_gap() -> None:
    for way in both(torch.ones(1, dtype=F64), 1):
        with pytest.raises(Gap, match=r"^nonfinite"):
            way.add(torch.full((2, 2), float("inf"), dtype=F64), False)


def test_more_rows_than_c_has_room_for_go_the_plain_way() -> None:
    assert isinstance(look(torch.ones(3, dtype=F64), NOISE, 1000), Plain)


def test_without_a_library_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "look", lambda *_: None)
    assert isinstance(seen.look(torch.ones(3, dtype=F64), NOISE, 2), Plain)
