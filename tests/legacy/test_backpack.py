from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cockpit.errors import CockpitError
from cockpit.legacy import Cockpit, backpack, quantities
from cockpit.legacy.quantities.quantity import SingleStepQuantity
from legacy.training import always, batches, network, sgd, step


@dataclass
class BatchGrad:
    """Looks like an extension."""

    savefield: str = "grad_batch"


@dataclass
class DiagHessian:
    savefield: str = "diag_h"


class Extended(SingleStepQuantity):
    """Reads what an extension has left on the parameters."""

    def extensions(self, global_step: int) -> list[Any]:
        return [BatchGrad()] if self.should_compute(global_step) else []

    def extension_hooks(self, global_step: int) -> list[Callable[[Any], Any]]:
        return [lambda module: None]

    def _compute(self, global_step: int, params: list[Tensor], batch_loss: Tensor) -> float:
        return float(sum(p.grad_batch for p in params))  # type: ignore[attr-defined, misc]


class Stand(ModuleType):
    """A stand-in for BackPACK: writes 1 where an extension saves, for every backward pass it sees.

    Like BackPACK it forgets what it needs of the forward pass after a backward pass, unless told otherwise.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__("backpack")
        self.active: tuple[Any, ...] = ()
        self.retains = False
        self.stored = {id(p) for p in parameters}
        self.entered: list[tuple[tuple[str, ...], bool, bool]] = []
        for p in parameters:
            p.register_hook(lambda grad, p=p: self.backward(p))

    def backward(self, parameter: Tensor) -> None:
        for extension in self.active:
            assert id(parameter) in self.stored
            setattr(parameter, extension.savefield, getattr(parameter, extension.savefield, 0) + 1)
        if not self.retains:
            self.stored.discard(id(parameter))

    @contextmanager
    def backpack(
        self, *extensions: Any, extension_hook: Any = None, debug: bool = False, retain_graph: bool = False
    ) -> Iterator[None]:
        if extensions:
            names = tuple(type(e).__name__ for e in extensions)
            self.entered.append((names, extension_hook is not None, debug))
        before = self.active, self.retains
        self.active, self.retains = extensions, retain_graph
        yield
        self.active, self.retains = before


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    model = network()
    convolution = ModuleType("backpack.core.derivatives.convnd")

    @contextmanager
    def save_memory(save_memory: bool) -> Iterator[None]:
        model.memory_saved = save_memory
        yield

    convolution.weight_jac_t_save_memory = save_memory  # type: ignore[attr-defined]
    stand = Stand(list(model.parameters()))
    stand.__spec__ = object()  # type: ignore[assignment]  # what find_spec looks for
    for name in ("backpack.core", "backpack.core.derivatives"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "backpack", stand)
    monkeypatch.setitem(sys.modules, "backpack.core.derivatives.convnd", convolution)
    model.stand = (stand,)
    return model


def test_extensions_run_in_the_user_s_pass_only(model: Any) -> None:
    built = [quantities.NormTest(always), quantities.HessTrace(always), Extended(always), Extended(always)]
    watch, optimizer = Cockpit(model.parameters(), built), sgd(model)
    x, y = batches(1)[0]
    optimizer.zero_grad()
    z = model(x)
    loss, losses = nn.functional.cross_entropy(z, y), nn.functional.cross_entropy(z, y, reduction="none")
    with watch(0, DiagHessian(), info={"loss": loss, "individual_losses": losses}, debug=True):
        loss.backward()
    assert model.stand[0].entered == [(("DiagHessian", "BatchGrad"), True, True)]
    assert model.memory_saved is True
    assert watch.get_output()[0]["Extended"] == 4.0
    assert set(watch.get_output()[0]) == {"NormTest", "HessTrace", "Extended", "Extended_2"}
    # What the user asked for stays, what quantities asked for goes.
    assert all(p.diag_h == 1 and not hasattr(p, "grad_batch") for p in model.parameters())


def test_nothing_runs_where_nothing_is_asked_for(model: Any) -> None:
    watch = Cockpit(model.parameters(), [quantities.NormTest(always), Extended(lambda t: t == 1)])
    step(watch, 1, model, nn.CrossEntropyLoss(), sgd(model), batches(1)[0])
    step(watch, 2, model, nn.CrossEntropyLoss(), sgd(model), batches(1)[0])
    assert [names for names, _, _ in model.stand[0].entered] == [("BatchGrad",)]


def test_without_backpack_an_extension_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpack, "find_spec", lambda name: None)
    model = network()
    watch = Cockpit(model.parameters(), [Extended(always)])
    with pytest.raises(CockpitError, match="the extensions BatchGrad need BackPACK, which is not installed"):
        step(watch, 0, model, nn.CrossEntropyLoss(), sgd(model), batches(1)[0])
    block = Cockpit(model.parameters())(0, DiagHessian(), info={"loss": torch.ones(())})
    with pytest.raises(CockpitError, match="DiagHessian"), block:
        pass
