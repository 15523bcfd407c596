from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from cockpit.engine import native
from cockpit.engine.gradients import individual
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.layers import conv
from cockpit.engine.native import Taps
from layer_check import check, filled, gradients_of, normal, trace

CONV: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, type[nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def axis(low: int, high: int, axes: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(low, high)] * axes)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_any_convolution(data: st.DataObject) -> None:
    axes = data.draw(st.sampled_from([1, 1, 2, 2, 3]))
    groups = data.draw(st.integers(1, 3))
    kernel, dilation = data.draw(axis(1, 3, axes)), data.draw(axis(1, 2, axes))
    mode = data.draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    padding: Any = data.draw(st.one_of(axis(0, 2, axes), st.sampled_from(["same", "valid"])))
    stride = (1,) * axes if padding == "same" else data.draw(axis(1, 3, axes))
    space = data.draw(axis(5, 7, axes))
    module = CONV[axes](
        groups * data.draw(st.integers(1, 2)),
        groups * data.draw(st.integers(1, 2)),
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        padding_mode=mode,
        bias=data.draw(st.booleans()),
    )
    check(filled(module), normal(3, module.in_channels, *space), n=3)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.data())
def test_any_transposed_convolution(data: st.DataObject) -> None:
    axes = data.draw(st.sampled_from([1, 1, 2, 2, 3]))
    groups = data.draw(st.integers(1, 3))
    kernel, stride, dilation = (data.draw(axis(1, 3, axes)) for _ in range(3))
    padding, more = data.draw(axis(0, 2, axes)), data.draw(axis(0, 2, axes))
    assume(all(m < max(s, d) for m, s, d in zip(more, stride, dilation, strict=True)))
    space = data.draw(axis(3, 5, axes))
    sizes = [
        (length - 1) * s - 2 * p + d * (k - 1) + m + 1
        for length, s, p, d, k, m in zip(space, stride, padding, dilation, kernel, more, strict=True)
    ]
    assume(all(size > 0 for size in sizes))
    module = TRANSPOSED[axes](
        groups * data.draw(st.integers(1, 2)),
        groups * data.draw(st.integers(1, 2)),
        kernel,
        stride=stride,
        padding=padding,
        output_padding=more,
        dilation=dilation,
        groups=groups,
        bias=data.draw(st.booleans()),
    )
    check(filled(module), normal(3, module.in_channels, *space), n=3)


def test_the_output_size_may_be_asked_for() -> None:
    module = filled(nn.ConvTranspose2d(2, 3, 3, stride=3))
    check(module, normal(3, 2, 4, 4), n=3, output_size=[14, 12])


@pytest.mark.parametrize("keep", [None, [2, 0]])
@pytest.mark.parametrize("transposed", [False, True])
def test_two_calls_of_different_sizes(keep: list[int] | None, transposed: bool) -> None:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    module = filled(kind(4, 6, 3, stride=2, padding=1, groups=2))
    check(module, normal(3, 4, 5, 6), n=3, again=(normal(3, 4, 7, 4, seed=1),), keep=keep)


@pytest.mark.parametrize("pick", [0, 1])
@pytest.mark.parametrize("transposed", [False, True])
def test_frames_folded_into_the_batch(pick: int, transposed: bool) -> None:
    kind = nn.ConvTranspose1d if transposed else nn.Conv1d
    check(filled(kind(2, 4, 3, stride=2, groups=2)), normal(6, 2, 9), n=3, pick=pick)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kinds", [CONV, TRANSPOSED])
def test_a_call_without_batch_axis(kinds: dict[int, type[nn.Module]], axes: int) -> None:
    check(filled(kinds[axes](2, 4, 2)), normal(2, *[4] * axes), n=1)


def test_the_input_may_be_named() -> None:
    check(filled(nn.Conv1d(2, 4, 3)), n=3, input=normal(3, 2, 6))


@pytest.mark.parametrize("shape", [(2, 8, 8), (16, 3, 3)])
def test_small_blocks_change_nothing(shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    # few channels and many pixels are squared in full, many channels and few pixels by inner products
    monkeypatch.setattr(individual, "BLOCK", 1200)
    monkeypatch.setattr(conv, "PATCHES", 1200)
    module = filled(nn.Conv2d(shape[0], 16, 3))
    check(module, normal(5, *shape), n=5)
    check(module, normal(5, *shape), n=5, again=(normal(5, *shape, seed=1),))


@pytest.mark.parametrize("compiled", [False, True], ids=["by torch", "by a kernel"])
def test_patches_are_never_formed_for_the_whole_batch(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "PATCHES", 3000)
    module = filled(nn.Conv2d(2, 3, 3))
    _, calls = trace(module, [((normal(8, 2, 10, 10),), {})], 8)
    (part,) = gradients_of(calls)["weight"].parts
    largest = 0
    if not compiled:
        monkeypatch.setattr(native, "patches", lambda *_: None)
    elif native.patches(normal(1, 1, 3, 3), *[Taps(1, 1, 1, 0, 0)] * 2) is None:
        pytest.skip("needs a C compiler")
    where, name = (native, "patches") if compiled else (F, "unfold")
    unfold = getattr(where, name)

    def watched(images: torch.Tensor, *args: Any) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, len(images))
        found: torch.Tensor = unfold(images, *args)
        return found

    monkeypatch.setattr(where, name, watched)
    part.dense(0, 8)
    assert largest == 2  # 64 places of 18 + 3 numbers are 1344 for each example
    largest = 0
    part.dot(module.weight.detach())
    part.total()
    assert largest == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(dtype: torch.dtype) -> None:
    module = filled(nn.Conv2d(2, 3, 3, padding=1))
    x = normal(4, 2, 6, 6)
    _, (call,) = trace(module, [((x,), {})], 4)
    narrow = type(call)(module, (x.to(dtype),), {}, (call.grad.to(dtype),), 4, call.layouts)
    wanted, found = gradients_of([call]), gradients_of([narrow])
    for name in wanted:
        assert isinstance(found[name], ExampleGradients)
        got = found[name].dense(0, 4)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), wanted[name].dense(0, 4), rtol=2e-2, atol=5e-2)
        dots = found[name].dot(torch.ones_like(wanted[name].parameter))
        assert dots.dtype == torch.float32
        assert found[name].total().dtype == torch.float32
