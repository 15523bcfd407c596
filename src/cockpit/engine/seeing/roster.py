"""Roster: the model's parameters by name, looked up anew only when the model has changed."""

from __future__ import annotations

from itertools import chain

from torch import Tensor, nn


class Roster:
    """The parameters of one model. Walking the module tree takes longer than a small training step does."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[nn.Module] = []
        self._members: tuple[list[int], list[int], list[str]] = ([], [], [])
        self._parameters: list[Tensor] = []
        self._trained: list[bool] = []
        self.trainable: dict[str, Tensor] = {}
        self.frozen: list[str] = []

    def refresh(self) -> bool:
        """Look whether modules or parameters were added, replaced, frozen or thawed; say whether they were."""
        if self._modules and self._unchanged():
            return False
        self._modules = list(self._model.modules())
        self._members = self._present()
        named = list(self._model.named_parameters())
        self._parameters = [p for _, p in named]
        self._trained = [p.requires_grad for p in self._parameters]
        self.trainable = {n: p for n, p in named if p.requires_grad}
        self.frozen = [n for n, p in named if not p.requires_grad]
        return True

    def _unchanged(self) -> bool:
        return self._members == self._present() and self._trained == [
            p.requires_grad for p in self._parameters
        ]

    def _present(self) -> tuple[list[int], list[int], list[str]]:
        """Return what identifies all modules and parameters that modules hold (in C: this is done at every step)."""
        children = chain.from_iterable([m._modules.values() for m in self._modules])
        held = [m._parameters for m in self._modules]
        parameters = chain.from_iterable([each.values() for each in held])
        return list(map(id, children)), list(map(id, parameters)), list(chain.from_iterable(held))
