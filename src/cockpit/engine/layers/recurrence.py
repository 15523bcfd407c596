"""Recurrences, run again step by step so that every step's gradients can be seen.

Fused kernels hide what happens at a time step, so the recurrence is run again step by step, and the output
gradients are taken back to the input side $u_t = W_{ih} x_t + b_{ih}$ of every step. The hidden side
$w_t = W_{hh} h_{t-1} + b_{hh}$ receives the same gradient, except for the new-gate of a GRU, where the reset
gate stands between. Every matrix is then a linear layer whose uses are the time steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine.layers.formula import Call, Layout
from cockpit.engine.layers.linear import outer
from cockpit.engine.parts import Dense, Part, wide

State = tuple[Tensor, ...]
"""(h,) or, in an LSTM, (h, c)."""

TIME_FIRST = Layout(1)
"""Everything here is computed with time in front, [T, N, features]."""


def rnn(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, State], tuple[State, None]]:
    r"""Return the step $h' = \phi(u + w)$."""

    def step(u: Tensor, w: Tensor, state: State) -> tuple[State, None]:
        return (activation(u + w),), None

    return step


def lstm(u: Tensor, w: Tensor, state: State) -> tuple[State, None]:
    r"""$c' = \sigma(f) c + \sigma(i) \tanh(g)$, $h' = \sigma(o) \tanh(c')$."""
    i, f, g, o = (u + w).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return (o.sigmoid() * c.tanh(), c), None


def parted_lstm(u: Tensor, w: Tensor, state: State) -> tuple[State, None]:
    """The same values, but $c'$ does not pass on what $h'$ receives."""
    _, c = lstm(u, w, state)[0]
    o = (u + w).chunk(4, -1)[3]
    return (o.sigmoid() * c.detach().tanh(), c), None


def gru(u: Tensor, w: Tensor, state: State) -> tuple[State, Tensor]:
    r"""$n = \tanh(u_n + r w_n)$, $h' = (1 - z) n + z h$; the factor between both sides is (1, 1, r)."""
    (ur, uz, un), (wr, wz, wn) = u.chunk(3, -1), w.chunk(3, -1)
    r, z = (ur + wr).sigmoid(), (uz + wz).sigmoid()
    n = (un + r * wn).tanh()
    one = torch.ones_like(r)
    return (n + z * (state[0] - n),), torch.cat([one, one, r], -1).detach()


Step = Callable[[Tensor, Tensor, State], tuple[State, Tensor | None]]


def step_of(m: nn.Module) -> Step:
    """Return (input side, hidden side, state) -> (next state, hidden side's gradient by input side's)."""
    if isinstance(m, nn.LSTM | nn.LSTMCell):
        return lstm
    if isinstance(m, nn.GRU | nn.GRUCell):
        return gru
    return rnn(torch.tanh if m.nonlinearity == "tanh" else torch.relu)


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


def back(call: Call, outputs: State, strands: list[Strand], layout: Layout = TIME_FIRST) -> dict[str, Part]:
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


def passes_through_c(m: nn.LSTMCell, x: Tensor, state: State) -> bool:
    """Say whether torch's own cell, on this device, computes $h'$ from the tensor $c'$ that it gives out.

    Where it does (fused kernels do not), the gradient that arrives at $c'$ contains the way through $h'$.
    """
    weights = [p.detach().to(x) for p in (m.weight_ih, m.weight_hh, m.bias_ih, m.bias_hh) if p is not None]
    h, c = torch.lstm_cell(x[:1].requires_grad_(), [s[:1] for s in state], *weights)
    (through,) = torch.autograd.grad(h.sum(), c, allow_unused=True)
    return through is not None
