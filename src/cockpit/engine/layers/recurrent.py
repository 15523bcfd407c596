"""Recurrent layers (RNN, LSTM, GRU) and cells, by running their recurrence again (`recurrence`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from cockpit.engine.layers.formula import Call, Layout, arguments, formula, leading
from cockpit.engine.layers.recurrence import State, Strand, back, parted_lstm, passes_through_c, step_of
from cockpit.engine.parts import Part, wide


def _sequence_candidates(module: nn.Module, outputs: tuple[Tensor, ...], n: int) -> list[tuple[Layout, ...]]:
    axis = 0 if module.batch_first else 1
    if outputs[0].shape[axis] != n:
        return []
    return [(Layout(axis), Layout(1), Layout(1))[: len(outputs)]]


def _refuses(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    assert isinstance(module, nn.RNNBase)
    x = arguments(module, args, kwargs)["input"]
    if isinstance(x, PackedSequence):
        return "packed sequences have no common number of time steps"
    if x.ndim == 2:
        return "the input has no batch axis"
    if module.dropout > 0 and module.training and module.num_layers > 1:
        return "the dropout mask between its layers is hidden inside the fused kernel"
    return None


@formula(nn.RNN, nn.LSTM, nn.GRU, candidates=_sequence_candidates, refuses=_refuses)
def recurrent(call: Call) -> dict[str, Part]:
    """Run all layers and directions again, then take the gradients back through them."""
    m, given = call.module, call.arguments
    assert isinstance(m, nn.RNNBase)
    x = wide(given["input"].transpose(0, 1) if m.batch_first else given["input"])
    directions = 2 if m.bidirectional else 1
    initial = _initial(m, given["hx"], x, directions)
    strands: list[Strand] = []
    last: list[State] = []
    with torch.enable_grad():
        for layer in range(m.num_layers):
            outputs: list[Tensor] = []
            for reverse in range(directions):
                strands.append(Strand.start(m, f"_l{layer}{'_reverse' if reverse else ''}", x))
                state = tuple(s[layer * directions + reverse] for s in initial)
                hidden, state = strands[-1].run(step_of(m), state, bool(reverse))
                outputs.append(hidden)
                last.append(state)
            x = torch.cat(outputs, -1) if reverse else outputs[0]
        out = x.transpose(0, 1) if m.batch_first else x
        return back(call, (out, *(torch.stack(states) for states in zip(*last, strict=True))), strands)


def _initial(m: nn.RNNBase, hx: Any, x: Tensor, directions: int) -> State:
    """Return the given initial states or zeros, each [layers · directions, N, H]."""
    if hx is not None:
        return tuple(wide(s).to(x) for s in (hx if isinstance(hx, tuple) else (hx,)))
    rows = m.num_layers * directions
    h = x.new_zeros(rows, x.shape[1], m.proj_size or m.hidden_size)
    return (h, x.new_zeros(rows, x.shape[1], m.hidden_size)) if isinstance(m, nn.LSTM) else (h,)


def _cell_candidates(module: nn.Module, outputs: tuple[Tensor, ...], n: int) -> list[tuple[Layout, ...]]:
    return [layouts * len(outputs) for layouts in leading(1)(module, outputs, n)]


@formula(nn.RNNCell, nn.LSTMCell, nn.GRUCell, candidates=_cell_candidates)
def cell(call: Call) -> dict[str, Part]:
    """One step of the recurrence; a call without batch axis is a batch of one."""
    m, given = call.module, call.arguments
    assert isinstance(m, nn.RNNCellBase)
    x = wide(given["input"]).reshape(1, -1, m.input_size)
    if given["hx"] is None:
        state: State = (x.new_zeros(x.shape[1], m.hidden_size),) * (2 if isinstance(m, nn.LSTMCell) else 1)
    else:
        hx = given["hx"] if isinstance(given["hx"], tuple) else (given["hx"],)
        state = tuple(wide(s).to(x).reshape(-1, m.hidden_size) for s in hx)
    with torch.enable_grad():
        strand = Strand.start(m, "", x)
        given_out = given["input"].ndim == 2  # without a batch axis, views of h' and c' are
        parted = isinstance(m, nn.LSTMCell) and given_out and passes_through_c(m, x[0], state)
        _, state = strand.run(parted_lstm if parted else step_of(m), state)
        return back(call, state, [strand], Layout(1, call.layouts[0].minor))
