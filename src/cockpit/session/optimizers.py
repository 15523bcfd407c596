"""The optimisers of a session: when a step begins and ends, learning rates, and whether gradients were cleared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import nan
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cockpit.engine.steps.foresight import Foresight
from cockpit.quantities.quantity import OptimizerView
from cockpit.session.moves import Coming, Taken, foreseeable, readable, taken


class Optimizers:
    """Listens to one or more optimisers; together they take one step.

    The step is over when each of them has stepped. Where some step more rarely, ``stepped`` stays true and the
    session ends the step when the next backward pass comes.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        before: Callable[[], None],
        after: Callable[[], None],
    ) -> None:
        self._model, self._optimizers = model, optimizers
        self._before, self._after = before, after
        self._waiting = set(range(len(optimizers)))
        self._handles: list[RemovableHandle] = []
        self._witness: tuple[Tensor, int] | None = None
        self._usual: Tensor | None = None
        """A parameter that had a gradient the last time."""
        self.stepping = self.stepped = False
        self.resting = 0
        """Steps that are only counted from now on, where there is one optimiser."""
        self._told = True
        for k, optimizer in enumerate(optimizers):
            self._handles.append(optimizer.register_step_pre_hook(self._pre))
            self._handles.append(optimizer.register_step_post_hook(partial(self._post, k)))
        self._rates = self._learning_rates()
        self._view: OptimizerView | None = None
        self._members: list[list[int]] = []
        self._groups: list[tuple[str, int]] = []

    def _pre(self, *_: Any) -> None:
        if self.resting:
            return
        self.stepping = True
        self._rates = self._learning_rates()
        self._before()

    def _post(self, which: int, *_: Any) -> None:
        if self.resting:
            self._after()
            return
        self.stepping = False
        self.stepped = True
        self._witness = None
        self._waiting.discard(which)
        if not self._waiting:
            self._after()

    @property
    def alone(self) -> bool:
        """Whether there is one of them."""
        return len(self._optimizers) == 1

    def begin(self) -> None:
        """Wait for all of them again."""
        self._waiting = set(range(len(self._optimizers)))
        self.stepped = False

    def note_gradients(self) -> None:
        """Remember a gradient, to see later whether it was cleared."""
        if (
            self._usual is None or self._usual.grad is None
        ):  # walking the model takes longer than looking at one
            self._usual = next((p for p in self._model.parameters() if p.grad is not None), None)
        if self._usual is not None and (grad := self._usual.grad) is not None:
            self._witness = (self._usual, grad._version)

    def gradients_cleared(self) -> bool:
        """Say whether gradients were set to None or zero since the last backward pass."""
        if self._witness is None:
            return False
        parameter, version = self._witness
        if parameter.grad is None:
            return True
        return parameter.grad._version != version and not bool(parameter.grad.any())

    def _learning_rates(self) -> list[tuple[list[Any], float]]:
        return [
            (g["params"], float(g.get("lr", nan)))
            for optimizer in self._optimizers
            for g in optimizer.param_groups
        ]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the first parameter group, as it is now."""
        return self._learning_rates()[0][1]

    def view(self) -> OptimizerView:
        """Return what quantities may know; learning rates are those of the step just taken."""
        rates, plain = tuple([lr for _, lr in self._rates]), self.plain
        if self._view is not None and (self._view.learning_rates, self._view.plain_sgd) == (rates, plain):
            return self._view
        by_name: Mapping[str, float] = {name: rates[k] for name, k in self._named_groups()}
        name = "+".join([type(o).__name__ for o in self._optimizers])
        self._view = OptimizerView(name, by_name, plain, rates)
        return self._view

    def _named_groups(self) -> list[tuple[str, int]]:
        """Return each parameter's name and the number of its group; walk the model only where groups have changed."""
        members = [[id(p) for p in params] for params, _ in self._rates]
        if members != self._members:
            group = {one: k for k, ids in enumerate(members) for one in ids}
            named = [(name, id(p)) for name, p in self._model.named_parameters()]
            self._members, self._groups = members, [(name, group[one]) for name, one in named if one in group]
        return self._groups

    @property
    def readable(self) -> bool:
        """Whether the state will tell the step when it is taken: of one optimiser, as long as it has always done so."""
        return self.alone and self._told and readable(self._optimizers[0])

    def taken(self, parameters: Mapping[str, Tensor]) -> Taken | None:
        """Return the step just taken as the state tells it; None: it does not."""
        names = {id(p): name for name, p in parameters.items()}
        with torch.no_grad():
            found = taken(self._optimizers[0], names, [rate for _, rate in self._rates])
        self._told = found is not None
        return found

    def foresee(self, parameters: Mapping[str, Tensor]) -> Foresight | None:
        """Return what tells the coming step of parameters; None: optimiser and gradients do not."""
        if not self.alone or not foreseeable(self._optimizers[0]):
            return None
        return Foresight(parameters, Coming(self._optimizers[0]))

    @property
    def plain(self) -> bool:
        """Whether all of them are plain gradient descent."""
        # (Loops, because this is asked twice a step: calls would take longer than what they do.)
        for optimizer in self._optimizers:
            if type(optimizer) is not torch.optim.SGD:
                return False
            for group in optimizer.param_groups:
                if any(_extras(group)):
                    return False
        return True

    def remove(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._witness = self._usual = None


_extras = itemgetter("momentum", "dampening", "weight_decay", "nesterov", "maximize")
