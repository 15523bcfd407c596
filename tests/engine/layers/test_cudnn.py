"""Weights that show a dropout mask, on a stand-in for cuDNN's kernel; with the kernel itself see `test_on_gpu`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine.layers import cudnn
from cockpit.engine.layers.cudnn import MODES, NEXT, CudnnMask

T, N, D, H, P = 6, 3, 4, 5, 0.25
LAYERS: dict[int, Any] = {
    MODES["LSTM"]: nn.LSTM,
    MODES["GRU"]: nn.GRU,
    MODES["RNN_TANH"]: nn.RNN,
    MODES["RNN_RELU"]: lambda *a: nn.RNN(*a, nonlinearity="relu"),
}


class Kernel:
    """Two layers with a mask between them, drawn from random states that each call advances."""

    def __init__(self) -> None:
        self.states = torch.zeros(1, dtype=torch.int64)
        self.mask: Tensor | None = None

    @torch.no_grad()
    def __call__(self, x: Tensor, weights: list[Tensor], *rest: Any) -> tuple[Tensor]:
        _, _, _, _, mode, hidden, _, _, _, dropout, _, _, _, states = rest
        random = torch.Generator().manual_seed(int(states))
        states += 1
        self.mask = (torch.rand(*x.shape[:2], hidden, generator=random) >= dropout).to(x) / (1 - dropout)
        for layer, width in enumerate((x.shape[2], hidden)):
            module = LAYERS[mode](width, hidden).to(x)
            for p, w in zip(module.parameters(), weights[4 * layer : 4 * layer + 4], strict=True):
                p.copy_(w)
            x = module(x)[0]
            x = x * self.mask if not layer else x
        return (x,)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    found = Kernel()
    monkeypatch.setattr(torch, "_cudnn_rnn", found)
    monkeypatch.setattr(torch, "_cudnn_rnn_flatten_weight", lambda weights, *_: torch.empty(0).to(weights[0]))
    monkeypatch.setattr(cudnn, "_STATES", {})
    node = SimpleNamespace(_saved_dropout_state=found.states, _saved_input=torch.empty(0))
    monkeypatch.setattr(cudnn, "_node", lambda output: node)
    return found


MODULES = {
    "lstm": lambda **more: nn.LSTM(D, H, num_layers=2, dropout=P, **more),
    "gru": lambda **more: nn.GRU(D, H, num_layers=2, dropout=P, **more),
    "tanh": lambda **more: nn.RNN(D, H, num_layers=2, dropout=P, **more),
    "relu": lambda **more: nn.RNN(D, H, num_layers=2, dropout=P, nonlinearity="relu", **more),
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("which", MODULES)
def test_the_mask_of_a_call_is_shown(which: str, first: bool, kernel: Kernel) -> None:
    module, watcher = MODULES[which](batch_first=first), CudnnMask()
    output = torch.empty(N, T, H) if first else torch.empty(T, N, H)
    assert watcher.before(module) is None
    assert watcher.after(module, None, [output]) == NEXT
    for _ in range(2):
        before = watcher.before(module)
        weights = [torch.randn(p.shape) for p in module.parameters()]
        kernel(
            torch.randn(T, N, D),
            weights,
            *[None] * 4,
            MODES[module.mode],
            H,
            0,
            2,
            first,
            P,
            *[0] * 3,
            kernel.states,
        )
        drawn, states = kernel.mask, int(kernel.states)
        found = watcher.after(module, before, [output])
        assert isinstance(found, list)
        torch.testing.assert_close(found[0], drawn)
        assert int(kernel.states) == states, "nobody's random numbers but ours were drawn"
    assert watcher.after(module.eval(), None, [output]) == []
    assert len(watcher._weights) == 1
    watcher.forget(module)
    assert len(watcher._weights) == 0


def test_states_that_were_made_anew_are_known_from_the_next_call_on(kernel: Kernel) -> None:
    module, watcher, output = MODULES["lstm"](), CudnnMask(), torch.empty(T, N, H)
    watcher.after(module, None, [output])
    before = watcher.before(module)
    cudnn._STATES[torch.device("cpu")] = torch.zeros(1, dtype=torch.int64)
    assert watcher.after(module, before, [output]) == NEXT


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, True),
        ({"num_layers": 3}, False),
        ({"num_layers": 1, "dropout": 0.0}, False),
        ({"dropout": 0.0}, False),
        ({"dropout": 1.0}, False),
        ({"bidirectional": True}, False),
        ({"proj_size": 2}, False),
    ],
)
def test_which_masks_can_be_found(
    options: dict[str, Any], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = nn.LSTM(D, H, **{"num_layers": 2, "dropout": P, **options})
    assert not CudnnMask().wants(module), "on a CPU masks are drawn again"
    monkeypatch.setattr(type(module.weight_hh_l0), "device", SimpleNamespace(type="cuda"), raising=False)
    assert CudnnMask().wants(module) == wanted
