"""Recurrences, run again so that every step's gradients can be seen.

Fused kernels hide what happens at a time step, so the recurrence is run again step by step, and the output
gradients are taken back to the input side $u_t = W_{ih} x_t + b_{ih}$ of every step. The hidden side
$w_t = W_{hh} h_{t-1} + b_{hh}$ receives the same gradient, except for the new-gate of a GRU, where the reset
gate stands between. Every matrix is then a linear layer whose uses are the time steps.

Both ways are written out (`gates`): autograd would note a dozen operations a step, and what is a step's own in
them costs less for all steps together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from cockpit.engine.gradients.parts import Dense, Part
from cockpit.engine.layers.formula import Call, Layout
from cockpit.engine.layers.linear import outer

State = tuple[Tensor, ...]
"""(h,) or, in an LSTM, (h, c)."""

TIME_FIRST = Layout(1)
"""Everything here is computed with time in front, [T, N, features]."""


class Strand(ABC):
    """One direction of one layer, over all time steps; ``suffix`` ends its parameters' names.

    There is room for all steps from the beginning, and a step writes into its own: it makes no tensors.
    """

    d_side: Tensor
    """The gradients at the input side of all steps, [T, N, gates], once they were taken `back`."""
    d_hidden: Tensor
    """Those at the hidden side."""

    def __init__(
        self, m: nn.Module, suffix: str, inputs: Tensor, state: State, backwards: bool = False
    ) -> None:
        self.module, self.suffix, self.inputs = m, suffix, inputs.contiguous()
        self.order = range(len(inputs))[:: -1 if backwards else 1]
        self.w_ih, self.w_hh = self.weight("weight_ih"), self.weight("weight_hh")
        self.b_ih = self.weight("bias_ih") if m.bias else None
        self.b_hh = self.weight("bias_hh") if m.bias else None
        self.before, self.after = self.places(state[0])

    def weight(self, name: str) -> Tensor:
        """Return one of this strand's parameters in the precision that is computed in."""
        weight = getattr(self.module, name + self.suffix)
        assert isinstance(weight, Tensor)
        return weight.detach().to(self.inputs)

    def places(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return room for a state before and after each step, [T, N, H] each, with the first one written."""
        states = first.new_empty(len(self.inputs) + 1, *first.shape)
        if self.order.step > 0:
            states[0] = first
            return states[:-1], states[1:]
        states[-1] = first
        return states[1:], states[:-1]

    def run(self) -> Tensor:
        """Return the hidden states of all steps, [T, N, H]."""
        self.begin()
        for t in self.order:
            self.step(t)
        return self.after

    def back(self, given: Tensor | None, *last: Tensor | None) -> None:
        """Take gradients back: those of the hidden states of all steps, and those of the last state."""
        arriving = (
            torch.zeros_like(self.after) if given is None else torch.empty_like(self.after).copy_(given)
        )
        rows, order = arriving.unbind(0), self.order[::-1]
        if last[0] is not None:
            rows[order[0]].add_(last[0])
        self.begin_back(*last[1:])
        d_hidden = self.d_hidden.unbind(0)
        for t, earlier in zip(order, [*order[1:], None], strict=True):
            self.step_back(t, rows[t], None if earlier is None else rows[earlier])
            if earlier is not None:
                rows[earlier].addmm_(d_hidden[t], self.w_hh)
        self.end_back(arriving)

    @abstractmethod
    def begin(self) -> None:
        """Compute what does not depend on the hidden states, for all steps."""

    @abstractmethod
    def step(self, t: int) -> None:
        """Write the state after step ``t``."""

    @abstractmethod
    def begin_back(self, *last: Tensor | None) -> None:
        """Put into ``d_hidden`` what arriving gradients are to be multiplied with; ``last``: that of the last $c$."""

    @abstractmethod
    def step_back(self, t: int, arrived: Tensor, earlier: Tensor | None) -> None:
        """Finish ``d_hidden`` of step ``t``; add to what arrives at the ``earlier`` step what goes past it."""

    def end_back(self, arrived: Tensor) -> None:
        """Put ``d_side`` together from all that arrived at the hidden states."""
        self.d_side = self.d_hidden

    def d_inputs(self) -> Tensor:
        """Return the gradients at the inputs of all steps."""
        return self.d_side @ self.w_ih

    def parts(self, call: Call, layout: Layout = TIME_FIRST) -> dict[str, Part]:
        """Read off the linear layers of this strand."""
        u, w = (call.split(d, 1, layout) for d in (self.d_side, self.d_hidden))
        bias = Dense(u.sum(1))
        return {
            **self.matrix("weight_ih", call.split(self.inputs, 1, layout), u),
            **self.matrix("weight_hh", call.split(self.before, 1, layout), w),
            f"bias_ih{self.suffix}": bias,
            f"bias_hh{self.suffix}": bias if self.d_hidden is self.d_side else Dense(w.sum(1)),
        }

    def matrix(self, name: str, a: Tensor, b: Tensor) -> dict[str, Part]:
        """Return the part of one matrix by its inputs and output gradients, [N, T, features] each."""
        name += self.suffix
        return {name: outer(a, b, getattr(self.module, name))}
