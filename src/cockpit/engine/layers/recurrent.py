"""Recurrent layers (RNN, LSTM, GRU) and cells, by running their recurrence again (`recurrence`).

With dropout between layers the same masks are needed. On a CPU torch draws them from its own generator, so the state
from before the forward pass is restored; that between the two layers of a GPU's kernel is found by `cudnn`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from cockpit.engine.gradients.parts import Part
from cockpit.engine.layers.cudnn import CudnnMask
from cockpit.engine.layers.formula import Call, Layout, arguments, formula, leading
from cockpit.engine.layers.gates import Lstm, strand_of
from cockpit.engine.layers.recurrence import State, Strand
from cockpit.engine.numbers.precision import wide

MASK = CudnnMask()


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
    if _drops(module) and module.training and x.device.type != "cpu" and not MASK.wants(module):
        return "the dropout mask between its layers is hidden inside the fused kernel"
    return None


def _drops(m: nn.RNNBase) -> bool:
    return m.dropout > 0 and m.num_layers > 1


def _replays(m: nn.Module) -> bool:
    """Say whether masks may have to be drawn again, in whatever mode the layer will be."""
    assert isinstance(m, nn.RNNBase)
    return _drops(m) and m.weight_hh_l0.device.type == "cpu"


@formula(
    nn.RNN,
    nn.LSTM,
    nn.GRU,
    candidates=_sequence_candidates,
    refuses=_refuses,
    replays=_replays,
    observer=MASK,
    postponed=True,
)
@torch.no_grad()
def recurrent(call: Call) -> dict[str, Part]:
    """Run all layers and directions again, then take the gradients back through them."""
    m, given = call.module, call.arguments
    assert isinstance(m, nn.RNNBase)
    x = wide(given["input"].transpose(0, 1) if m.batch_first else given["input"])
    directions = 2 if m.bidirectional else 1
    initial = _initial(m, given["hx"], x, directions)
    masks = _masks(call, m, x.shape[:2], directions)
    layers: list[list[Strand]] = []
    for layer, mask in enumerate(masks):
        layers.append([])
        for k in range(directions):
            state = tuple(s[layer * directions + k] for s in initial)
            strand = strand_of(m)(m, f"_l{layer}{'_reverse' if k else ''}", x, state, backwards=bool(k))
            layers[-1].append(strand)
        outputs = [strand.run() for strand in layers[-1]]
        x = torch.cat(outputs, -1) if directions > 1 else outputs[0]
        x = x if mask is None else x * mask

    d_x, *d_last = (*call.grads, None, None)[: 1 + len(initial)]
    if d_x is not None and m.batch_first:
        d_x = d_x.transpose(0, 1)
    for layer in reversed(range(m.num_layers)):
        mask = masks[layer]
        d_x = d_x if d_x is None or mask is None else d_x * mask
        for k, strand in enumerate(layers[layer]):
            own = None if d_x is None else d_x.chunk(directions, -1)[k]
            strand.back(own, *(None if d is None else d[layer * directions + k] for d in d_last))
        if layer:
            d_x = layers[layer][0].d_inputs()
            for strand in layers[layer][1:]:
                d_x += strand.d_inputs()
    return {
        name: part for strands in layers for strand in strands for name, part in strand.parts(call).items()
    }


def _initial(m: nn.RNNBase, hx: Any, x: Tensor, directions: int) -> State:
    """Return the given initial states or zeros, each [layers · directions, N, H]."""
    if hx is not None:
        return tuple(wide(s).to(x) for s in (hx if isinstance(hx, tuple) else (hx,)))
    rows = m.num_layers * directions
    h = x.new_zeros(rows, x.shape[1], m.proj_size or m.hidden_size)
    return (h, x.new_zeros(rows, x.shape[1], m.hidden_size)) if isinstance(m, nn.LSTM) else (h,)


def _masks(call: Call, m: nn.RNNBase, front: torch.Size, directions: int) -> list[Tensor | None]:
    """Draw again what the outputs of every layer were multiplied with, [T, N, H]; None for the last, or for all."""
    none: list[Tensor | None] = [None] * m.num_layers
    if not _drops(m) or not m.training:
        return none
    if call.observed:
        return [wide(call.observed[0]), None]
    if call.replay is None:
        raise RuntimeError("dropout between layers needs the random state from before the forward pass")
    ones = call.arguments["input"].new_ones(*front, directions * (m.proj_size or m.hidden_size))
    with call.replay():
        return [wide(F.dropout(ones, m.dropout)) for _ in none[1:]] + [None]


def _cell_candidates(module: nn.Module, outputs: tuple[Tensor, ...], n: int) -> list[tuple[Layout, ...]]:
    return [layouts * len(outputs) for layouts in leading(1)(module, outputs, n)]


@formula(nn.RNNCell, nn.LSTMCell, nn.GRUCell, candidates=_cell_candidates)
@torch.no_grad()
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
    strand = strand_of(m)(m, "", x, state)
    if isinstance(m, nn.LSTMCell) and isinstance(strand, Lstm):
        given_out = given["input"].ndim == 2  # without a batch axis, views of h' and c' are
        strand.parted = given_out and _passes_through_c(m, x[0], state)
    strand.run()
    d_h, *d_c = (*call.grads, None)[: len(state)]
    strand.back(None if d_h is None else d_h[None], None, *d_c)
    return strand.parts(call, Layout(1, call.layouts[0].minor))


def _passes_through_c(m: nn.LSTMCell, x: Tensor, state: State) -> bool:
    """Say whether torch's own cell, on this device, computes $h'$ from the tensor $c'$ that it gives out.

    Where it does (fused kernels do not), the gradient that arrives at $c'$ contains the way through $h'$.
    """
    weights = [p.detach().to(x) for p in (m.weight_ih, m.weight_hh, m.bias_ih, m.bias_hh) if p is not None]
    with torch.enable_grad():
        h, c = torch.lstm_cell(x[:1].requires_grad_(), [s[:1] for s in state], *weights)
        (through,) = torch.autograd.grad(h.sum(), c, allow_unused=True)
    return through is not None
