"""Plans: what was learnt about every shape of forward pass, examined once (and again while something is unproven)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cockpit.engine.coverage.coverage import Plan, batch_norms, couple_examples, shape_plan
from cockpit.engine.coverage.examination import Examination
from cockpit.engine.seeing.capture import Capture
from cockpit.engine.seeing.use import Use, signature

PROOFS = 4
"""How often in a row a forward pass is examined while a gradient vanishes; then at powers of two: some never grow."""


class Plans:
    """The plans of one model, by what its forward passes look like."""

    def __init__(self, model: nn.Module, capture: Capture) -> None:
        self._model, self._capture = model, capture
        self._parameters: Mapping[str, Tensor] | None = None
        self._norms: list[_BatchNorm] = []
        self._names: tuple[str, ...] = ()
        self._plans: dict[Any, Plan] = {}
        self._visits: dict[Any, int] = {}

    def __call__(
        self, losses: Tensor | None, examples: int, parameters: Mapping[str, Tensor], uses: Sequence[Use]
    ) -> Plan:
        """Return by which way each parameter is served in the forward pass at hand, checking new ones.

        ``parameters`` is another object whenever the model has changed; ``uses`` are the calls of layers.
        """
        if parameters is not self._parameters:
            self._parameters, self._names = parameters, tuple(parameters)
            self._norms = batch_norms(self._model)
        coupled = couple_examples(self._norms)
        key = (signature(uses), self._names, coupled, examples == 1, losses is None)
        known = self._plans.get(key)
        if known is not None:
            visits = self._visits[key] = self._visits.get(key, 1) + 1
            again = visits <= PROOFS or visits & (visits - 1) == 0
            if losses is None or not (known.unproven and again):
                return known
        plan = self._examined(losses, parameters, coupled)
        if plan.finite:
            self._plans[key] = plan
        return known if known is not None and not plan.finite else plan

    def _examined(self, losses: Tensor | None, parameters: Mapping[str, Tensor], coupled: bool) -> Plan:
        if losses is None:
            return shape_plan(self._model, parameters, "no losses were given")
        try:
            return Examination(self._capture, losses, parameters).plan(coupled)
        except Exception as failure:  # a graph that cannot be walked twice (reentrant checkpointing)
            reason = (str(failure).strip() or type(failure).__name__).splitlines()[0][:160]
            return shape_plan(self._model, parameters, reason)
