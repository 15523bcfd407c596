from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.legacy import extend
from cockpit.legacy.extension import Chosen, unreduced
from legacy.training import batches, network


def test_extend_returns_the_module_as_it_is() -> None:
    model = network()
    before = {name: set(vars(m)) for name, m in model.named_modules()}
    assert extend(model) is model
    assert {name: set(vars(m)) for name, m in model.named_modules()} == before
    assert not model._forward_hooks
    with pytest.raises(ValueError, match="Module, not Tensor"):
        extend(torch.zeros(1))  # type: ignore[arg-type]


def test_individual_losses_of_an_extended_loss_function() -> None:
    x, y = batches(1)[0]
    z = network()(x)
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    criterion = extend(nn.CrossEntropyLoss(weight=weight, ignore_index=1))
    extend(criterion)
    losses = unreduced(criterion(z, y))
    assert losses is not None
    torch.testing.assert_close(losses, F.cross_entropy(z, y, weight, ignore_index=1, reduction="none"))
    assert losses.requires_grad
    assert criterion.reduction == "mean"


def test_other_losses_have_none() -> None:
    x, y = batches(1)[0]
    z = network()(x)
    assert unreduced(F.cross_entropy(z, y)) is None
    assert unreduced(extend(nn.CrossEntropyLoss())(z, y) * 2) is None
    assert unreduced(extend(nn.CrossEntropyLoss(reduction="none"))(z, y)) is None


def test_a_loss_that_is_gone_keeps_nothing_alive() -> None:
    x, y = batches(1)[0]
    z = network()(x)
    alive = weakref.ref(z)
    loss = extend(nn.CrossEntropyLoss())(z, y)
    del z
    assert alive() is not None
    del loss
    gc.collect()
    assert alive() is None


def test_the_smallest_extended_owner_is_found() -> None:
    model = network()
    assert Chosen(list(model.parameters())).names == ["param_0", "param_1", "param_2", "param_3"]
    extend(model)
    whole = Chosen(list(model.parameters()))
    assert whole.owner == (model,)
    assert whole.names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    part = Chosen(list(model[2].parameters())[::-1])
    assert [name for name, _ in part.named_parameters()] == ["2.bias", "2.weight"]
    assert [id(p) for p in part.parameters()] == [id(model[2].bias), id(model[2].weight)]
    extend(model[2])
    assert Chosen(list(model[2].parameters())).owner == (model[2],)
    assert Chosen([*model.parameters(), nn.Parameter(torch.zeros(1))]).owner == ()


def test_a_script_that_imports_backpack_gets_its_models_extended_there_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[Any, ...]] = []

    def theirs(module: nn.Module, debug: bool, use_converter: bool) -> nn.Module:
        calls.append((module, debug, use_converter))
        return module

    monkeypatch.setitem(sys.modules, "backpack", SimpleNamespace(extend=theirs))
    model = network()
    extend(model, use_converter=True)
    assert calls == [(model, False, True)]


def test_hooks_on_chosen_parameters_listen_to_their_model() -> None:
    model = extend(network())
    seen: list[Tensor] = []
    chosen = Chosen(list(model[2].parameters()))
    handle = chosen.register_forward_hook(lambda module, args, output: seen.append(output))
    x, _ = batches(1)[0]
    output = model(x)
    assert seen[0] is output
    handle.remove()
    model(x)
    assert len(seen) == 1
