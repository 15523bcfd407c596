"""The roster notices whatever happens to a model's parameters, and walks the model only then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from cockpit.engine.seeing.roster import Roster


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 2, bias=False)))


def names(model: nn.Module) -> tuple[list[str], list[str]]:
    named = list(model.named_parameters())
    return [n for n, p in named if p.requires_grad], [n for n, p in named if not p.requires_grad]


def agrees(roster: Roster, model: nn.Module) -> bool:
    by_name = dict(model.named_parameters())
    same = all(by_name[n] is p for n, p in roster.trainable.items())
    return same and (list(roster.trainable), roster.frozen) == names(model)


def refreshed() -> tuple[nn.Sequential, Roster]:
    model = net()
    roster = Roster(model)
    assert roster.refresh(), "the first look finds everything new"
    assert agrees(roster, model)
    return model, roster


def test_the_first_look() -> None:
    model, roster = refreshed()
    assert list(roster.trainable) == ["0.weight", "0.bias", "2.0.weight"]
    assert roster.frozen == []
    assert roster.trainable["0.weight"] is model[0].weight


def frozen(model: nn.Sequential) -> None:
    model[0].weight.requires_grad_(False)


def a_module_added(model: nn.Sequential) -> None:
    model.append(nn.Linear(2, 2))


def a_module_added_inside(model: nn.Sequential) -> None:
    model[2].append(nn.Linear(2, 2))


def a_module_removed(model: nn.Sequential) -> None:
    del model[2]


def a_parameter_added(model: nn.Sequential) -> None:
    model[1].register_parameter("slope", nn.Parameter(torch.ones(1)))


def a_parameter_replaced(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.zeros(4, 3))


def a_parameter_removed(model: nn.Sequential) -> None:
    model[0].bias = None


def a_module_replaced(model: nn.Sequential) -> None:
    model[0] = nn.Linear(3, 4)


def a_module_replaced_by_another_with_as_much(model: nn.Sequential) -> None:
    model[1] = nn.ReLU()
    model[2][0] = nn.Linear(4, 2, bias=False)


def a_parameter_where_there_was_none(model: nn.Sequential) -> None:
    model[2][0].bias = nn.Parameter(torch.zeros(2))


def two_layers_swapped(model: nn.Sequential) -> None:
    model[0], model[2] = model[2], model[0]


def a_weight_tied(model: nn.Sequential) -> None:
    model[2][0].weight = model[0].weight


@pytest.mark.parametrize(
    "change",
    [
        frozen,
        a_module_added,
        a_module_added_inside,
        a_module_removed,
        a_parameter_added,
        a_parameter_replaced,
        a_parameter_removed,
        a_weight_tied,
        a_module_replaced,
        a_module_replaced_by_another_with_as_much,
        two_layers_swapped,
        a_parameter_where_there_was_none,
    ],
    ids=lambda f: f.__name__,
)
def test_changes_are_noticed(change: Callable[[nn.Sequential], None]) -> None:
    model, roster = refreshed()
    before = roster.trainable
    change(model)
    assert roster.refresh()
    assert agrees(roster, model)
    assert roster.trainable is not before, "what was handed out stays as it was"
    assert not roster.refresh()


def test_freezing_and_thawing() -> None:
    model, roster = refreshed()
    model[0].requires_grad_(False)
    assert roster.refresh()
    assert roster.frozen == ["0.weight", "0.bias"]
    model[0].bias.requires_grad_(True)
    assert roster.refresh()
    assert (list(roster.trainable), roster.frozen) == (["0.bias", "2.0.weight"], ["0.weight"])


def test_training_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, roster = refreshed()
    before = roster.trainable
    monkeypatch.setattr(model, "modules", lambda: pytest.fail("the model was walked"))
    monkeypatch.setattr(model, "named_parameters", lambda: pytest.fail("the model was walked"))
    optimizer = torch.optim.SGD([p for m in (model[0], model[2]) for p in m.parameters()], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        assert not roster.refresh()
    assert roster.trainable is before


def test_loading_a_state_keeps_the_parameters() -> None:
    model, roster = refreshed()
    model.load_state_dict(net().state_dict())
    assert not roster.refresh()
    assert agrees(roster, model)


def test_a_model_that_is_one_parameter() -> None:
    model = nn.ParameterList([nn.Parameter(torch.zeros(2))])
    roster = Roster(model)
    assert roster.refresh()
    model.append(nn.Parameter(torch.zeros(3)))
    assert roster.refresh()
    assert list(roster.trainable) == ["0", "1"]
