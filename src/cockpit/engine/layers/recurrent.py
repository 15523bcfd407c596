"""Recurrent layers and cells.

Fused kernels hide what happens at a time step, so the recurrence is run again step by step, and the output
gradients are taken back to the input side $u_t = W_{ih} x_t + b_{ih}$ of every step. The hidden side
$w_t = W_{hh} h_{t-1} + b_{hh}$ receives the same gradient, except for the new-gate of a GRU, where the reset
gate stands between. Every matrix is then a linear layer whose uses are the time steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from cockpit.engine.layers.formula import Call, Layout, arguments, formula, leading
from cockpit.engine.layers.linear import outer
from cockpit.engine.parts import Dense, Part, wide

State = tuple[Tensor, ...]
"""(h,) or, in an LSTM, (h, c)."""

TIME_FIRST = Layout(1)
"""Everything here is computed with time in front, [T, N, features]."""


def _rnn(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, State], tuple[State, None]]:
    def step(u: Tensor, w: Tensor, state: State) -> tuple[State, None]:
        r"""$h' = \phi(u + w)$."""
        return (activation(u + w),), None

    return step


def _lstm(u: Tensor, w: Tensor, state: State) -> tuple[State, None]:
    r"""$c' = \sigma(f) c + \sigma(i) \tanh(g)$, $h' = \sigma(o) \tanh(c')$."""
    i, f, g, o = (u + w).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return (o.sigmoid() * c.tanh(), c), None


def _parted_lstm(u: Tensor, w: Tensor, state: State) -> tuple[State, None]:
    """The same values, but $c'$ does not pass on what $h'$ receives."""
    _, c = _lstm(u, w, state)[0]
    o = (u + w).chunk(4, -1)[3]
    return (o.sigmoid() * c.detach().tanh(), c), None


def _gru(u: Tensor, w: Tensor, state: State) -> tuple[State, Tensor]:
    r"""$n = \tanh(u_n + r w_n)$, $h' = (1 - z) n + z h$; the factor between both sides is (1, 1, r)."""
    (ur, uz, un), (wr, wz, wn) = u.chunk(3, -1), w.chunk(3, -1)
    r, z = (ur + wr).sigmoid(), (uz + wz).sigmoid()
    n = (un + r * wn).tanh()
    one = torch.ones_like(r)
    return (n + z * (state[0] - n),), torch.cat([one, one, r], -1).detach()


Step = Callable[[Tensor, Tensor, State], tuple[State, Tensor | None]]


def _step(m: nn.Module) -> Step:
    """Return (input side, hidden side, state) -> (next state, hidden side's gradient by input side's)."""
    if isinstance(m, nn.LSTM | nn.LSTMCell):
        return _lstm
    if isinstance(m, nn.GRU | nn.GRUCell):
        return _gru
    return _rnn(torch.tanh if m.nonlinearity == "tanh" else torch.relu)


@dataclass(eq=False)
class Strand:
    """One direction of one layer, run over all time steps; ``suffix`` ends its parameters' names."""

    module: nn.Module
    suffix: str
    inputs: Tensor
    side: Tensor
    before: list[Tensor] = field(default_factory=list)
    factors: list[Tensor] = field(default_factory=list)
    unprojected: list[Tensor] = field(default_factory=list)
    projected: list[Tensor] = field(default_factory=list)

    @staticmethod
    def start(m: nn.Module, suffix: str, inputs: Tensor) -> Strand:
        """Compute the input side of all steps, [T, N, gates], to which gradients will be taken."""
        side = F.linear(inputs, _weight(m, "weight_ih", suffix, inputs), _bias(m, "bias_ih", suffix, inputs))
        return Strand(m, suffix, inputs.detach(), side if side.requires_grad else side.requires_grad_())

    def run(self, step: Step, state: State, backwards: bool = False) -> tuple[Tensor, State]:
        """Return the hidden states of all steps, [T, N, H], and the last state."""
        m, like = self.module, self.side
        w_hh, b_hh = _weight(m, "weight_hh", self.suffix, like), _bias(m, "bias_hh", self.suffix, like)
        w_hr = _weight(m, "weight_hr", self.suffix, like) if getattr(m, "proj_size", 0) else None
        order = range(len(self.side))
        hidden: list[Tensor] = []
        sides = self.side.unbind(0)
        for t in reversed(order) if backwards else order:
            self.before.append(state[0].detach())
            state, factor = step(sides[t], F.linear(state[0], w_hh, b_hh), state)
            if factor is not None:
                self.factors.append(factor)
            if w_hr is not None:
                self.unprojected.append(state[0].detach())
                state = (F.linear(state[0], w_hr), *state[1:])
                self.projected.append(state[0])
            hidden.append(state[0])
        if backwards:
            for steps in (hidden, self.before, self.factors, self.unprojected, self.projected):
                steps.reverse()
        return torch.stack(hidden), state

    def parts(self, call: Call, layout: Layout, d_side: Tensor, d_projected: list[Tensor]) -> dict[str, Part]:
        """Read off the linear layers of this strand."""
        m, end = self.module, self.suffix
        d_hidden = d_side * torch.stack(self.factors) if self.factors else d_side

        def split(x: Tensor) -> Tensor:
            return call.split(x, 1, layout)

        u, w = split(d_side), split(d_hidden)
        found: dict[str, Part] = {
            f"weight_ih{end}": outer(split(self.inputs), u, getattr(m, f"weight_ih{end}")),
            f"weight_hh{end}": outer(split(torch.stack(self.before)), w, getattr(m, f"weight_hh{end}")),
            f"bias_ih{end}": Dense(u.sum(1)),
            f"bias_hh{end}": Dense(w.sum(1)),
        }
        if d_projected:
            a, b = split(torch.stack(self.unprojected)), split(torch.stack(d_projected))
            found[f"weight_hr{end}"] = outer(a, b, getattr(m, f"weight_hr{end}"))
        return found


def _weight(m: nn.Module, name: str, suffix: str, like: Tensor) -> Tensor:
    weight = getattr(m, name + suffix)
    assert isinstance(weight, Tensor)
    return weight.detach().to(like)


def _bias(m: nn.Module, name: str, suffix: str, like: Tensor) -> Tensor | None:
    return _weight(m, name, suffix, like) if m.bias else None


def _back(call: Call, outputs: State, strands: list[Strand], layout: Layout = TIME_FIRST) -> dict[str, Part]:
    """Take the output gradients back to all strands at once."""
    ends = [(y, wide(g).to(y).view_as(y)) for y, g in zip(outputs, call.grads, strict=False) if g is not None]
    projected = [h for s in strands for h in s.projected]
    wanted = [s.side for s in strands] + projected
    grads = torch.autograd.grad([y for y, _ in ends], wanted, [g for _, g in ends], materialize_grads=True)
    found: dict[str, Part] = {}
    rest = list(grads[len(strands) :])
    for strand, d_side in zip(strands, grads, strict=False):
        mine, rest = rest[: len(strand.projected)], rest[len(strand.projected) :]
        found |= strand.parts(call, layout, d_side, mine)
    return found


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
                hidden, state = strands[-1].run(_step(m), state, bool(reverse))
                outputs.append(hidden)
                last.append(state)
            x = torch.cat(outputs, -1) if reverse else outputs[0]
        out = x.transpose(0, 1) if m.batch_first else x
        return _back(call, (out, *(torch.stack(states) for states in zip(*last, strict=True))), strands)


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
        parted = isinstance(m, nn.LSTMCell) and given_out and _passes_through_c(m, x[0], state)
        _, state = strand.run(_parted_lstm if parted else _step(m), state)
        return _back(call, state, [strand], Layout(1, call.layouts[0].minor))


def _passes_through_c(m: nn.LSTMCell, x: Tensor, state: State) -> bool:
    """Say whether torch's own cell, on this device, computes $h'$ from the tensor $c'$ that it gives out.

    Where it does (fused kernels do not), the gradient that arrives at $c'$ contains the way through $h'$.
    """
    weights = [p.detach().to(x) for p in (m.weight_ih, m.weight_hh, m.bias_ih, m.bias_hh) if p is not None]
    h, c = torch.lstm_cell(x[:1].requires_grad_(), [s[:1] for s in state], *weights)
    (through,) = torch.autograd.grad(h.sum(), c, allow_unused=True)
    return through is not None
