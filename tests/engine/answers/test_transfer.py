"""A step's numbers in one vector of floats and one of integers, and taken apart again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cockpit.engine.answers.transfer import Transfer, packed
from layer_check import normal

MIXED: list[Tensor] = [
    normal(3),
    torch.tensor(7, dtype=torch.int64),
    normal(2, 2, seed=1).float(),
    torch.tensor([[1, 2, 3]], dtype=torch.int32),
    torch.tensor(2.5, dtype=torch.bfloat16),
    torch.tensor([True, False]),
    torch.zeros(0),
]


def stacks(tensors: list[Tensor], sizes: list[int]) -> list[np.ndarray]:
    return Transfer(packed(tensors)).stacks(sizes)


def test_every_tensor_comes_back_in_order_with_its_shape() -> None:
    found = stacks(MIXED, [])
    assert [x.shape for x in found] == [tuple(t.shape) for t in MIXED]
    for x, t in zip(found, MIXED, strict=True):
        assert x.dtype == (np.float64 if t.is_floating_point() else np.int64)
        assert x.tolist() == t.to(torch.float64 if t.is_floating_point() else torch.int64).tolist()


def test_all_floats_are_one_vector_and_all_integers_another() -> None:
    pack = packed(MIXED)
    assert pack.floats is not None
    assert pack.integers is not None
    assert (pack.floats.shape, pack.floats.dtype) == ((3 + 4 + 1,), torch.float64)
    assert (pack.integers.shape, pack.integers.dtype) == ((1 + 3 + 2,), torch.int64)


@pytest.mark.parametrize(("tensors", "missing"), [([normal(2)], "integers"), ([torch.tensor(1)], "floats")])
def test_what_there_is_none_of_is_not_sent(tensors: list[Tensor], missing: str) -> None:
    pack = packed(tensors)
    assert getattr(pack, missing) is None
    assert len(Transfer(pack).stacks([])) == 1


def test_runs_of_equal_shapes_become_one_array_and_the_rest_follow_singly() -> None:
    a, b = [normal(4, seed=k) for k in range(3)], [torch.tensor([k, -k]) for k in range(2)]
    last = normal(5, seed=9)
    found = stacks([*a, *b, last], [3, 2])
    assert [x.shape for x in found] == [(3, 4), (2, 2), (5,)]
    assert np.array_equal(found[0], torch.stack(a).numpy())
    assert np.array_equal(found[1], torch.stack(b).numpy())
    assert np.array_equal(found[2], last.numpy())


def test_runs_of_floats_and_integers_may_take_turns() -> None:
    tensors = [torch.tensor(1.5), torch.tensor(1), torch.tensor(2.5), torch.tensor(2), torch.tensor(3)]
    found = stacks(tensors, [1, 1, 1, 2])
    assert [x.tolist() for x in found] == [[1.5], [1], [2.5], [2, 3]]


def test_a_run_of_one_keeps_its_axis() -> None:
    transfer = Transfer(packed([normal(4)]))
    assert transfer.arrived
    (found,) = transfer.stacks([1])
    assert found.shape == (1, 4)


def test_what_is_written_later_does_not_arrive() -> None:
    x = normal(3)
    before = x.tolist()
    transfer = Transfer(packed([x]))
    x.zero_()
    assert transfer.stacks([])[0].tolist() == before


def test_counts_above_the_reach_of_floats_stay_exact() -> None:
    (found,) = stacks([torch.tensor([2**53 + 1])], [])
    assert found.tolist() == [2**53 + 1]


def test_numbers_that_are_none_arrive_as_they_are() -> None:
    (found,) = stacks([torch.tensor([torch.nan, torch.inf, -torch.inf])], [])
    assert np.array_equal(found, [np.nan, np.inf, -np.inf], equal_nan=True)


@pytest.mark.parametrize("native", [True, False])
def test_both_vectors_joined_are_their_words(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr("cockpit.engine.answers.transfer.words", lambda tensors: None)
    tensors = [*MIXED, normal(4, 3, seed=3).T, normal(5, seed=4).float()[::2]]
    pack = packed(tensors)
    assert pack.floats is not None
    assert pack.integers is not None
    row = pack.joined()
    assert row.dtype == torch.int64
    assert torch.equal(row[: len(pack.floats)].view(torch.float64), pack.floats)
    assert torch.equal(row[len(pack.floats) :], pack.integers)
    flat = [t.double().flatten() for t in tensors if t.is_floating_point()]
    assert torch.equal(pack.floats, torch.cat(flat))
