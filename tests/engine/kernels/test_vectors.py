"""Products and combinations of long vectors: those of float64."""

from __future__ import annotations

import pytest
import torch

from cockpit.engine.kernels import vectors
from engine.kernels.factors import normal

SIZES = [vectors.LEAST, vectors.LEAST + 12345]
ROWS = [[1], [4, 1], [4, 1, 1], [3, 2, 1, 1], [9]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_products_are_those_of_float64(device: torch.device, rows: list[int], size: int) -> None:
    tensors = [normal(n, size, seed=k) for k, n in enumerate(rows)]
    assert vectors.takes(*tensors)
    whole = torch.cat(tensors).double()
    found = vectors.inner(tensors, tensors[-2:])
    expected = whole @ torch.cat(tensors[-2:]).double().T
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_combinations_are_those_of_float64(device: torch.device, rows: list[int], size: int) -> None:
    tensors = [normal(n, size, seed=k) for k, n in enumerate(rows)]
    weights = normal(3, sum(rows), dtype=torch.float64)
    found = vectors.combine(weights.cpu(), tensors)
    expected = weights @ torch.cat(tensors).double()
    torch.testing.assert_close(found, expected.float(), rtol=1e-6, atol=1e-9)


def test_rows_beyond_what_32_bits_count(device: torch.device) -> None:
    if device.type != "cuda" or torch.cuda.mem_get_info(device)[0] < 2**35:
        pytest.skip("needs a GPU with 32 GiB free")
    x = torch.ones(18, 2**27, device=device)
    x[17] = 2
    assert vectors.inner([x], [x])[17].tolist() == [2.0**28] * 17 + [2.0**29]
    assert bool((vectors.combine(torch.ones(1, 18), [x]) == 19).all())


def test_what_it_does_not_take(device: torch.device) -> None:
    x = normal(2, vectors.LEAST)
    assert not vectors.takes(x, x.double())
    assert not vectors.takes(x.bfloat16())
    assert not vectors.takes(x[:, 1:])
    assert not vectors.takes(normal(vectors.LEAST, 2).T)
    assert not vectors.takes(normal(33, 1).expand(33, vectors.LEAST).contiguous())
