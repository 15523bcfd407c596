from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine.layers.formula import FORMULAS, Call, Layout, Replay, arguments, formula_for, leading
from layer_check import normal


def test_the_examples_of_a_folded_axis_are_told_apart() -> None:
    x = torch.tensor([[10.0, 11], [20, 21], [30, 31], [40, 41]])
    assert Layout(0).split(x, 2, 1).tolist() == [[[10, 11], [20, 21]], [[30, 31], [40, 41]]]
    assert Layout(0, minor=True).split(x, 2, 1).tolist() == [[[10, 11], [30, 31]], [[20, 21], [40, 41]]]
    assert Layout(1).split(x, 2, 0).tolist() == [[10, 20, 30, 40], [11, 21, 31, 41]]
    assert Layout(0).split(x, 4, 1).shape == (4, 1, 2)
    assert Layout(0).split(x[0], 1, 1).shape == (1, 1, 2)


@pytest.mark.parametrize("layout", [Layout(0), Layout(0, True), Layout(1), Layout(1, True), Layout(2)])
def test_expanded_values_meet_their_examples(layout: Layout) -> None:
    x = normal(6, 6, 3)
    values = torch.tensor([2.0, 3, 5], dtype=torch.float64)
    scaled = layout.split(x * layout.expand(values, x), 3, 0)
    torch.testing.assert_close(scaled, layout.split(x, 3, 0) * values[:, None])


def test_candidates_put_exact_sizes_first() -> None:
    find = leading(1)
    assert find(nn.Identity(), (torch.empty(4, 8, 4),), 4) == [
        (Layout(0),),
        (Layout(1),),
        (Layout(1, minor=True),),
    ]
    assert find(nn.Identity(), (torch.empty(7, 4),), 4) == []
    assert find(nn.Identity(), (torch.empty(4),), 4) == []
    assert find(nn.Identity(), (torch.empty(7, 4),), 1) == [(Layout(),)]


def test_the_folder_is_the_list() -> None:
    expected = {
        *(nn.Linear, nn.Bilinear, nn.PReLU, nn.Embedding, nn.EmbeddingBag, nn.MultiheadAttention),
        *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        *(nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
        *(nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell),
    }
    assert expected <= set(FORMULAS)


class Named(nn.Linear):
    """A subclass that only has another name."""


class Doubled(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_a_subclass_is_served_unless_it_computes_something_else() -> None:
    assert formula_for(Named(2, 3)) is FORMULAS[nn.Linear]
    assert formula_for(Doubled(2, 3)) is None
    assert formula_for(nn.ReLU()) is None


def test_arguments_by_name_with_defaults() -> None:
    module = nn.MultiheadAttention(4, 2)
    x, y = torch.zeros(1), torch.ones(1)
    given = arguments(module, (x, y), {"value": y, "is_causal": True})
    assert given["query"] is x
    assert given["value"] is y
    assert given["is_causal"] is True
    assert given["need_weights"] is True
    assert given["attn_mask"] is None


def test_replay_restores_randomness_and_autocast_and_leaves_both_alone() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        replay = Replay.now(torch.device("cpu"))
    first = torch.rand(3)
    after = torch.get_rng_state()
    call = Call(nn.Identity(), (), {}, (), 1, (Layout(),), replay=replay)
    assert call.replay is not None
    for _ in range(2):
        with call.replay():
            assert torch.is_autocast_enabled("cpu")
            assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), after)
    assert not torch.is_autocast_enabled("cpu")
