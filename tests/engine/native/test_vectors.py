from __future__ import annotations

import pytest
import torch

from cockpit.engine.native import negated, square_sums, status

pytestmark = pytest.mark.skipif(not status().startswith("compiled"), reason=status())
FLOATS = [torch.float32, torch.float64]


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 31, 32, 33, 63, 64, 65, 200])
def test_a_number_is_negative_where_its_bit_is_set(size: int, dtype: torch.dtype) -> None:
    words = -(-size // 64)
    bits = torch.randint(-(2**63), 2**63 - 1, (words,), generator=torch.Generator().manual_seed(2))
    bits[0] |= -(2**63)  # also the bit of its own sign
    x = normal(size, dtype=dtype).abs()
    signs = [-1.0 if int(bits[i // 64]) >> i % 64 & 1 else 1.0 for i in range(size)]
    found = negated(x, bits)
    assert found is not None
    assert torch.equal(found, x * torch.tensor(signs, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "shape", [(3, 1), (1, 5), (7, 2, 3), (5, 1024), (4, 1025), (2, 3000), (6, 0), (0, 4)]
)
def test_squares_are_summed_over_the_first_axis(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = normal(*shape, dtype=dtype)
    found = square_sums(x)
    assert found is not None
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(), x.double().square().sum(0), rtol=2 * torch.finfo(dtype).eps, atol=0
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_none_spoils_its_column_alone(bad: float) -> None:
    x = normal(4, 1030, dtype=torch.float32)
    x[2, 1027] = bad
    found = square_sums(x)
    assert found is not None
    assert found[:1027].isfinite().all()
    assert not found[1027].isfinite()


def test_what_does_not_lie_side_by_side_is_left_to_torch() -> None:
    assert square_sums(normal(4, 6, dtype=torch.float32)[:, ::2]) is None
    assert square_sums(torch.ones(3, 4, dtype=torch.bfloat16)) is None
