from __future__ import annotations

import pytest
import torch
from torch import nn

from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense
from cockpit.legacy import Cockpit, extend, quantities
from cockpit.legacy.slopes import Held
from legacy.training import always, batches, network, sgd, step


def test_slopes_of_blocks_of_examples() -> None:
    held, parameter = Held(), torch.zeros(2, 3, dtype=torch.float64)
    rows = torch.arange(24, dtype=torch.float64).reshape(4, 2, 3)
    for block in (rows[:1], rows[1:]):
        held.reduce(ExampleGradients("w", parameter, (Dense(block),)))
    update = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    slopes = held.slopes({"w": update, "other": update})
    torch.testing.assert_close(slopes, {"w": (rows * update).sum((1, 2))})
    assert held.slopes({}) == {}


@pytest.mark.parametrize("overwritten", [True, False])
def test_alpha_notices_that_the_batch_was_overwritten(overwritten: bool) -> None:
    model = extend(network())
    watch, optimizer = Cockpit(model.parameters(), [quantities.Alpha(always)]), sgd(model)
    (first, labels), second = batches(2)
    step(watch, 0, model, nn.CrossEntropyLoss(), optimizer, (first, labels))
    if not overwritten:
        step(watch, 1, model, nn.CrossEntropyLoss(), optimizer, second)
        assert list(watch.get_output()) == [0]
        return
    first.copy_(second[0])
    with pytest.warns(UserWarning, match="Alpha has no value at step 0"):
        step(watch, 1, model, nn.CrossEntropyLoss(), optimizer, (first, second[1]))
    assert not watch.get_output()
