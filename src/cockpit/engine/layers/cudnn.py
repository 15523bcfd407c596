"""The dropout mask between the layers of cuDNN's recurrences, found by running one that shows it.

cuDNN draws the mask inside its kernel, from random states that lie in a tensor which torch hands to every call. Another
call of the same shape, with the states as they were before the first one, draws the same mask, and its weights may be
chosen so that it gives the mask out: the first layer's outputs are one constant whatever comes in, the second passes on
what it receives, and neither has a memory. Nobody promises that the mask depends on states and shape alone; like every
formula, the one that rests on it is compared with autograd before it is used.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.engine.numbers.precision import without_autocast

MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}
"""As torch numbers them."""
GATES = {"LSTM": 4, "GRU": 3}
FAR = 20.0
"""Where a sigmoid is 0 or 1."""
NODE = "CudnnRnnBackward0"
Weights = tuple[list[Tensor], Tensor]
"""Those of both layers, and the memory that they lie in."""
NEXT = "the random states of its dropout are known from its next call on"

_STATES: dict[torch.device, Tensor] = {}
"""The tensor with cuDNN's random states, by device: torch makes one and keeps it."""


class CudnnMask:
    """Sees the mask of a call from before it and after."""

    def __init__(self) -> None:
        self._weights: weakref.WeakKeyDictionary[nn.Module, Weights] = weakref.WeakKeyDictionary()

    def wants(self, m: nn.Module) -> bool:
        """Say whether a layer has a mask that can be found."""
        assert isinstance(m, nn.RNNBase)
        two = m.num_layers == 2 and not m.bidirectional and not m.proj_size
        return two and 0 < m.dropout < 1 and m.weight_hh_l0.device.type == "cuda"

    def before(self, m: nn.Module) -> Tensor | None:
        """Keep the random states, as far as they are known."""
        states = _STATES.get(next(m.parameters()).device)
        return states.clone() if m.training and states is not None else None

    def after(self, m: nn.Module, before: Tensor | None, outputs: list[Tensor]) -> list[Tensor] | str:
        """Return what the first layer's outputs were multiplied with, [T, N, H], or why that is not known."""
        assert isinstance(m, nn.RNNBase)
        if not m.training:
            return []
        node = _node(outputs[0])
        if node is None:
            return "the dropout mask between its layers is hidden inside the fused kernel"
        states = node._saved_dropout_state
        known, _STATES[states.device] = _STATES.get(states.device), states
        if before is None or known is None or known.data_ptr() != states.data_ptr():
            return NEXT
        dtype = node._saved_input.dtype
        if m not in self._weights or self._weights[m][0][0].dtype != dtype:
            self._weights[m] = _telling(m.mode, m.input_size, m.hidden_size, dtype, states.device)
        return [_mask(m, outputs[0], self._weights[m], before)]

    def forget(self, m: nn.Module) -> None:
        """Let go of the weights that show its mask."""
        self._weights.pop(m, None)


def _node(output: Tensor) -> Any:
    """Return cuDNN's node behind an output (or behind a transposed one)."""
    node: Any = output.grad_fn
    for _ in range(3):
        if node is None or node.name() == NODE:
            return node
        node = node.next_functions[0][0] if node.next_functions else None
    return None


@torch.no_grad()
def _mask(m: nn.RNNBase, output: Tensor, telling: Weights, states: Tensor) -> Tensor:
    time, examples = output.shape[:2][:: -1 if m.batch_first else 1]
    (weights, memory), hidden = telling, m.hidden_size
    dtype, device = memory.dtype, memory.device
    x = torch.zeros(time, examples, m.input_size, dtype=dtype, device=device)
    h = torch.zeros(2, examples, hidden, dtype=dtype, device=device)
    with without_autocast(device.type):
        shown = torch._cudnn_rnn(
            x,
            weights,
            4,
            memory,
            h,
            h.clone() if m.mode == "LSTM" else None,
            MODES[m.mode],
            hidden,
            0,
            2,
            False,
            m.dropout,
            True,
            False,
            [],
            states,
        )[0]
    mask: Tensor = (shown > 0.3).to(torch.promote_types(dtype, torch.float32)).div_(1 - m.dropout)
    return mask


def _telling(mode: str, inputs: int, hidden: int, dtype: torch.dtype, device: torch.device) -> Weights:
    """Return weights that give the mask out, and the memory that cuDNN wants them in."""
    gates = GATES.get(mode, 1)
    new = slice((gates - 1) * hidden, gates * hidden) if mode == "GRU" else slice(0, hidden)
    weights: list[Tensor] = []
    for width in (inputs, hidden):
        w_ih = torch.zeros(gates * hidden, width, dtype=dtype, device=device)
        bias = torch.zeros(gates * hidden, dtype=dtype, device=device)
        if mode == "LSTM":  # input gate, forget gate, cell, output gate
            bias[:hidden], bias[hidden : 2 * hidden], bias[3 * hidden :] = FAR, -FAR, FAR
            new = slice(2 * hidden, 3 * hidden)
        elif mode == "GRU":  # reset gate, update gate, new
            bias[hidden : 2 * hidden] = -FAR
        if not weights:
            bias[new] = 1.0
        else:
            w_ih[new] = torch.eye(hidden, dtype=dtype, device=device)
        w_hh = torch.zeros(gates * hidden, hidden, dtype=dtype, device=device)
        weights += [w_ih, w_hh, bias, torch.zeros_like(bias)]
    with torch.no_grad():
        memory: Tensor = torch._cudnn_rnn_flatten_weight(
            weights, 4, inputs, MODES[mode], hidden, 0, 2, False, False
        )
    return weights, memory
