r"""What happens at a step of a recurrence, forward and back, for the three kinds of layers.

A gate $y = \sigma(a)$ passes $\mathrm{d}a = y (1 - y)\, \mathrm{d}y$ on, one with $y = \tanh(a)$
$\mathrm{d}a = (1 - y^2)\, \mathrm{d}y$. All of this but what arrives is known when the recurrence has been run, so
it is computed for all steps together, and what is left to a step is to multiply.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine.gradients.parts import Part
from cockpit.engine.layers.formula import Call, Layout
from cockpit.engine.layers.recurrence import TIME_FIRST, State, Strand

_through_sigmoid: Any = torch.ops.aten.sigmoid_backward.grad_input
_through_tanh: Any = torch.ops.aten.tanh_backward.grad_input
"""(dy, y, grad_input=da): write what passes a gate, in one look."""


class Plain(Strand):
    r"""$h' = \phi(u + w)$."""

    def begin(self) -> None:
        """Compute $u + b_{hh}$."""
        self._w = self.w_hh.T
        self._steps = _by_step(_side(self), self.before, self.after)
        self._activate = torch.tanh_ if self.module.nonlinearity == "tanh" else torch.relu_

    def step(self, t: int) -> None:
        """Run a step."""
        side, before, after = self._steps[t]
        self._activate(torch.addmm(side, before, self._w, out=after))

    def begin_back(self, *last: Tensor | None) -> None:
        r"""Write $\phi'$."""
        h = self.after
        self.d_hidden = 1 - h.square() if self.module.nonlinearity == "tanh" else (h > 0).to(h)
        self._slopes = self.d_hidden.unbind(0)

    def step_back(self, t: int, arrived: Tensor, earlier: Tensor | None) -> None:
        """Multiply."""
        self._slopes[t].mul_(arrived)


class Lstm(Strand):
    r"""$c' = \sigma(f) c + \sigma(i) \tanh(g)$, $h' = \sigma(o) \tanh(c')$, which may be projected: $W_{hr} h'$.

    ``parted``: $c'$ does not pass on what $h'$ receives.
    """

    parted = False

    def __init__(
        self, m: nn.Module, suffix: str, inputs: Tensor, state: State, backwards: bool = False
    ) -> None:
        super().__init__(m, suffix, inputs, state, backwards)
        self._c, self._c_after = self.places(state[1])
        self._w_hr = self.weight("weight_hr") if getattr(m, "proj_size", 0) else None

    def begin(self) -> None:
        """Compute $u + b_{hh}$, where the gates will be."""
        self._w, side = self.w_hh.T, _side(self)
        self._side, self._gates = side, side.chunk(4, -1)
        i, f, g, o = self._gates
        self._tanh_c = side.new_empty(g.shape)
        self._h = self.after if self._w_hr is None else torch.empty_like(self._tanh_c)
        two = side[..., : 2 * g.shape[-1]]
        self._sides = _by_step(side, two, i, f, g, o)
        self._states = _by_step(self.before, self._c, self._c_after, self._tanh_c, self._h, self.after)

    def step(self, t: int) -> None:
        """Run a step."""
        side, two, i, f, g, o = self._sides[t]
        before, c, c_after, tanh_c, h, after = self._states[t]
        side.addmm_(before, self._w)
        two.sigmoid_()
        g.tanh_()
        o.sigmoid_()
        torch.mul(f, c, out=c_after).addcmul_(i, g)
        torch.mul(o, torch.tanh(c_after, out=tanh_c), out=h)
        if self._w_hr is not None:
            torch.mm(h, self._w_hr.T, out=after)

    def begin_back(self, *last: Tensor | None) -> None:
        r"""Write slopes over the gates, and that of $h'$ by $c'$ over $\tanh(c')$: they are as large as all else."""
        (d_c,) = last
        (i, f, g, o), tanh_c = self._gates, self._tanh_c
        self._d_c = torch.zeros_like(tanh_c[0])
        self._d_c_of_three = self._d_c[:, None]
        if d_c is not None:
            self._d_c += d_c
        past, beside = f.clone(), torch.empty_like(tanh_c)
        _through_sigmoid(self._c, f, grad_input=f)
        _through_sigmoid(g, i, grad_input=beside)
        _through_tanh(i, g, grad_input=g)
        i.copy_(beside)
        _through_sigmoid(tanh_c, o, grad_input=beside)
        _through_tanh(o, tanh_c, grad_input=tanh_c)
        o.copy_(beside)
        self.d_hidden = self._side
        three = self.d_hidden.unflatten(-1, (4, -1))[..., :3, :]
        self._slopes = _by_step(tanh_c, three, o, past)
        del self._gates, self._sides, self._states, self._c, self._c_after, self._tanh_c

    def step_back(self, t: int, arrived: Tensor, earlier: Tensor | None) -> None:
        """Add to the gradient of $c'$, multiply, and take it to $c$."""
        slope, three, d_o, f = self._slopes[t]
        d_h = arrived if self._w_hr is None else arrived @ self._w_hr
        if not self.parted:
            self._d_c.addcmul_(d_h, slope)
        three.mul_(self._d_c_of_three)
        d_o.mul_(d_h)
        self._d_c.mul_(f)

    def end_back(self, arrived: Tensor) -> None:
        """Keep what arrived behind the projection."""
        super().end_back(arrived)
        self._d_projected = arrived
        del self._slopes

    def parts(self, call: Call, layout: Layout = TIME_FIRST) -> dict[str, Part]:
        """Add the projection."""
        found = super().parts(call, layout)
        if self._w_hr is not None:
            a, b = (call.split(x, 1, layout) for x in (self._h, self._d_projected))
            found |= self.matrix("weight_hr", a, b)
        return found


class Gru(Strand):
    r"""$n = \tanh(u_n + \sigma(r) w_n)$, $h' = (1 - \sigma(z)) n + \sigma(z) h$."""

    def begin(self) -> None:
        """Compute $u$, where the gates will be, and provide room for $w$."""
        self._w, side = self.w_hh.T, F.linear(self.inputs, self.w_ih, self.b_ih)
        self._b = side.new_zeros(side.shape[-1]) if self.b_hh is None else self.b_hh
        self._gates = r, z, n = side.chunk(3, -1)
        self._hidden_side = hidden = torch.empty_like(side)
        two = 2 * n.shape[-1]
        self._sides = _by_step(side[..., :two], r, z, n)
        self._hidden = _by_step(hidden, hidden[..., :two], hidden[..., two:], self.before, self.after)

    def step(self, t: int) -> None:
        """Run a step."""
        two, r, z, n = self._sides[t]
        hidden, hidden_two, w_n, before, after = self._hidden[t]
        torch.addmm(self._b, before, self._w, out=hidden)
        two.add_(hidden_two).sigmoid_()
        n.addcmul_(r, w_n).tanh_()
        torch.lerp(n, before, z, out=after)

    def begin_back(self, *last: Tensor | None) -> None:
        """Write the slopes of the gates; that of the new-gate is another one at each side."""
        r, z, n = self._gates
        w_n = self._hidden_side.chunk(3, -1)[2]
        self._slope = torch.empty_like(self.after)
        _through_tanh(1 - z, n, grad_input=self._slope)
        by_r = self._slope * w_n
        self.d_hidden = self._hidden_side  # nobody reads it any more
        d_r, d_z, d_n = self.d_hidden.chunk(3, -1)
        _through_sigmoid(by_r, r, grad_input=d_r)
        _through_sigmoid(self.before - n, z, grad_input=d_z)
        torch.mul(self._slope, r, out=d_n)
        self._slopes = _by_step(self.d_hidden.unflatten(-1, (3, -1)), z)

    def step_back(self, t: int, arrived: Tensor, earlier: Tensor | None) -> None:
        """Multiply; $z$ of the gradient goes past the gates."""
        three, z = self._slopes[t]
        three.mul_(arrived[:, None])
        if earlier is not None:
            earlier.addcmul_(arrived, z)

    def end_back(self, arrived: Tensor) -> None:
        """Take the reset gate out of the way."""
        self.d_side = self.d_hidden.clone()
        torch.mul(self._slope, arrived, out=self.d_side.chunk(3, -1)[2])


def strand_of(m: nn.Module) -> type[Strand]:
    """Return the kind of a layer's recurrence."""
    if isinstance(m, nn.LSTM | nn.LSTMCell):
        return Lstm
    return Gru if isinstance(m, nn.GRU | nn.GRUCell) else Plain


def _side(strand: Strand) -> Tensor:
    """Return $u + b_{hh}$ of all steps."""
    bias = None if strand.b_ih is None or strand.b_hh is None else strand.b_ih + strand.b_hh
    return F.linear(strand.inputs, strand.w_ih, bias)


def _by_step(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Return what every step works on; to cut it out at each would cost as much as some operations do."""
    return list(zip(*(x.unbind(0) for x in tensors), strict=True))
