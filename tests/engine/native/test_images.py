"""Patches by the kernel are those of torch, bit by bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from cockpit.engine.native import Taps, patches, status

pytestmark = pytest.mark.skipif(not status().startswith("compiled"), reason=status())

taps = st.builds(
    Taps, st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(-2, 3)
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 3),
    channels=st.integers(1, 3),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    y=taps,
    x=taps,
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_patches_of_any_image(
    n: int, channels: int, height: int, width: int, y: Taps, x: Taps, dtype: torch.dtype
) -> None:
    assume(y.places(height) > 0)
    assume(x.places(width) > 0)
    assume(height + y.behind > 0)
    assume(width + x.behind > 0)
    images = torch.arange(1.0, 1 + n * channels * height * width, dtype=dtype).view(
        n, channels, height, width
    )
    padded = F.pad(images, (x.before, x.behind, y.before, y.behind))
    expected = F.unfold(padded, (y.count, x.count), (y.dilation, x.dilation), 0, (y.stride, x.stride))
    found = patches(images, y, x)
    assert found is not None
    assert torch.equal(found, expected)


def test_what_the_kernel_does_not_know() -> None:
    one = Taps(1, 1, 1, 0, 0)
    assert patches(torch.ones(1, 1, 2, 2).half(), one, one) is None
    assert patches(torch.ones(1, 2, 2, 1).transpose(1, 3), one, one) is None
    assert patches(torch.ones(1, 1, 2, 2), Taps(3, 1, 1, 0, 0), one) is None, "larger than the image"
