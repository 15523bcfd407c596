"""Roster: the model's parameters by name, looked up anew only when the model has changed."""

from __future__ import annotations

from torch import Tensor, nn


class Roster:
    """The parameters of one model. Walking the module tree takes longer than a small training step does."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[tuple[nn.Module, int, int]] = []
        self._owners: list[tuple[nn.Module, str, Tensor, bool]] = []
        self.trainable: dict[str, Tensor] = {}
        self.frozen: list[str] = []

    def refresh(self) -> bool:
        """Look whether modules or parameters were added, replaced, frozen or thawed; say whether they were."""
        if self._modules and self._unchanged():
            return False
        self._modules = [(m, len(m._modules), len(m._parameters)) for m in self._model.modules()]
        self._owners = [
            (m, key, p, p.requires_grad)
            for m, _, _ in self._modules
            for key, p in m._parameters.items()
            if p is not None
        ]
        named = list(self._model.named_parameters())
        self.trainable = {n: p for n, p in named if p.requires_grad}
        self.frozen = [n for n, p in named if not p.requires_grad]
        return True

    def _unchanged(self) -> bool:
        return all(len(m._modules) == a and len(m._parameters) == b for m, a, b in self._modules) and all(
            m._parameters.get(key) is p and p.requires_grad == trained for m, key, p, trained in self._owners
        )
