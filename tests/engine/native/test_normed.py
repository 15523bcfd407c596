"""What examples add to the gradients of batch normalisation: the same by the C kernel as by torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from cockpit.engine.native import scale_and_shift, status

SHAPES = ((3, 2, 5, 7), (4, 19, 4, 4), (2, 3, 300), (2, 33, 300, 2), (6, 20), (2, 3, 2, 3, 4), (1, 1, 17))


@pytest.mark.skipif(not status().startswith("compiled"), reason="no compiler")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_are_those_of_torch(dtype: torch.dtype, shape: tuple[int, ...], last: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x, delta = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    x = (100 + x).to(dtype)  # a mean that is large beside the deviation
    delta = delta.to(dtype)
    if last and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    elif last:
        delta = delta.transpose(0, -1).contiguous().transpose(0, -1)
    found = scale_and_shift(x, delta, 1e-5)
    assert found is not None
    normalised = F.batch_norm(x.double(), None, None, training=True, eps=1e-5)
    space = tuple(range(2, x.ndim))
    sums = [normalised * delta.double(), delta.double()]
    expected = [s.sum(space) if space else s for s in sums]
    for ours, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(
            ours.double(), truth, rtol=0, atol=1e-10 if dtype == torch.float64 else 1e-3
        )


def test_what_is_not_served() -> None:
    assert scale_and_shift(torch.ones(2, 3, dtype=torch.float16), torch.ones(2, 3), 1e-5) is None
    assert scale_and_shift(torch.ones(0, 3), torch.ones(0, 3), 1e-5) is None
