"""Sums of all elements: every way against float64."""

from __future__ import annotations

import pytest
import torch

from cockpit.engine.numbers import sums
from cockpit.engine.numbers.sums import lengths, signed_sums, wide_sum
from layer_check import normal


def tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    """Shorter and longer than a row, with and without a rest, transposed, one number, none."""
    row = sums.ROW
    sizes = [(3, 5), (row,), (2, row), (3 * row + 17,), (), (0,), (1,)]
    return [*(normal(*size, seed=k).to(dtype) for k, size in enumerate(sizes)), normal(70, 90).to(dtype).T]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_in_every_way(dtype: torch.dtype) -> None:
    given = tensors(dtype)
    exact = torch.stack([x.double().sum() for x in given])
    absolute = torch.stack([x.double().abs().sum() for x in given])
    scale = 1e-13 if dtype == torch.float64 else 1e-6
    for found, expected in (
        (torch.stack([wide_sum(x) for x in given]), exact),
        (signed_sums(given), exact),
        (lengths(given), absolute),
    ):
        assert found.dtype == torch.float64
        assert bool(((found - expected).abs() <= scale * absolute).all())


def test_long_sums_in_single_precision_lose_nothing() -> None:
    x = torch.full((2**22,), 1 + 2**-12)
    for found in (wide_sum(x), signed_sums([x])[0]):
        assert float(found) == pytest.approx(2**22 * (1 + 2**-12), rel=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_none_show_and_touch_no_neighbour(bad: float) -> None:
    given = [normal(9) for _ in range(2)]
    given[0][1] = bad
    for first, second in (signed_sums(given), torch.stack([wide_sum(x) for x in given])):
        assert not first.isfinite()
        assert second.isfinite()
