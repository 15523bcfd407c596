"""Roster: the model's parameters by name, looked up anew only when the model has changed."""

from __future__ import annotations

from torch import Tensor, nn


class Roster:
    """The parameters of one model. Walking the module tree takes longer than a small training step does."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[tuple[nn.Module, tuple[nn.Module | None, ...]]] = []
        self._owners: list[tuple[nn.Module, str, Tensor | None, bool]] = []
        self.trainable: dict[str, Tensor] = {}
        self.frozen: list[str] = []
        self._count = 0

    def refresh(self) -> bool:
        """Look whether modules or parameters were added, replaced, frozen or thawed; say whether they were."""
        if self._modules and self._unchanged():
            return False
        self._modules = [(m, tuple(m._modules.values())) for m in self._model.modules()]
        self._owners = [
            (m, key, p, p is not None and p.requires_grad)
            for m, _ in self._modules
            for key, p in m._parameters.items()
        ]
        self._count = len(self._owners)
        named = list(self._model.named_parameters())
        self.trainable = {n: p for n, p in named if p.requires_grad}
        self.frozen = [n for n, p in named if not p.requires_grad]
        return True

    def _unchanged(self) -> bool:
        return (
            all(tuple(m._modules.values()) == children for m, children in self._modules)
            and sum(len(m._parameters) for m, _ in self._modules) == self._count
            and all(
                m._parameters.get(key) is p and (p is None or p.requires_grad == trained)
                for m, key, p, trained in self._owners
            )
        )
