from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine.layers.formula import formula_for
from layer_check import check, filled, normal


def ids(*shape: int, high: int = 7, seed: int = 0, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"sparse": True}, {"max_norm": 0.7}])
def test_embedding(options: dict[str, Any], dtype: torch.dtype) -> None:
    module = filled(nn.Embedding(7, 3, **options))
    check(module, ids(4, 5, dtype=dtype), n=4)
    if not options.get("max_norm"):  # its rescaling in place forbids a second call in one graph
        check(module, ids(4, 5, dtype=dtype), n=4, again=(ids(4, 2, seed=1, dtype=dtype),), keep=[1, 3])


@pytest.mark.parametrize(("shape", "pick"), [((4,), 0), ((4, 2, 3), 0), ((3, 4), 0), ((8,), 0), ((8, 3), 1)])
def test_examples_anywhere(shape: tuple[int, ...], pick: int) -> None:
    check(filled(nn.Embedding(7, 3)), ids(*shape), n=4, pick=pick)


def test_one_id_without_axes() -> None:
    check(filled(nn.Embedding(7, 3)), torch.tensor(4), n=1)


MODES = [
    {"mode": "sum"},
    {"mode": "mean"},
    {"mode": "max"},
    {"mode": "sum", "padding_idx": 2},
    {"mode": "mean", "padding_idx": 2},
    {"mode": "max", "padding_idx": 2},
    {"mode": "sum", "sparse": True},
    {"mode": "mean", "max_norm": 0.7},
]


@pytest.mark.parametrize("options", MODES)
def test_bags_of_one_size(options: dict[str, Any]) -> None:
    module = filled(nn.EmbeddingBag(7, 3, **options))
    check(module, ids(4, 5), n=4)
    check(module, ids(8, 5), n=4, pick=1, keep=[2])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("options", MODES)
def test_bags_of_many_sizes(options: dict[str, Any], last: bool) -> None:
    module = filled(nn.EmbeddingBag(7, 3, include_last_offset=last, **options))
    offsets = torch.tensor([0, 2, 2, 3, 11] if last else [0, 2, 2, 3])  # sizes 2, 0, 1, 8
    check(module, ids(11), offsets, n=4)
    check(module, ids(11).int(), offsets.int(), n=2)  # two bags for each example


@pytest.mark.parametrize("padding", [None, 2])
def test_weighted_bags(padding: int | None) -> None:
    module = filled(nn.EmbeddingBag(7, 3, mode="sum", padding_idx=padding))
    check(module, ids(4, 5), n=4, per_sample_weights=normal(4, 5))
    check(module, ids(11), torch.tensor([0, 2, 2, 7]), normal(11), n=4)


def test_the_first_of_equal_maxima_receives_the_gradient() -> None:
    module = filled(nn.EmbeddingBag(7, 3, mode="max"))
    with torch.no_grad():
        module.weight[3] = module.weight[5]
    check(module, torch.tensor([[5, 3], [3, 5]]), n=2)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_scaling_by_frequency_is_refused(kind: type[nn.Module]) -> None:
    module = kind(7, 3, scale_grad_by_freq=True)
    f = formula_for(module)
    assert f is not None
    assert "scale_grad_by_freq" in (f.refuses(module, (), {}) or "")
