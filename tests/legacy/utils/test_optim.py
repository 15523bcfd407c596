from __future__ import annotations

from typing import Any

import pytest
import torch

from cockpit.legacy.utils.optim import ComputeStep
from legacy.training import batches, network, sgd


@pytest.mark.parametrize(
    "settings",
    [{"momentum": 0.9}, {"weight_decay": 1e-4}, {"momentum": 0.9, "nesterov": True}, {"dampening": 0.5}],
)
def test_only_plain_sgd_is_plain(settings: dict[str, Any]) -> None:
    parameters = list(network().parameters())
    assert ComputeStep.is_sgd_default_kwargs(torch.optim.SGD(parameters, 0.1))
    other = torch.optim.SGD(parameters, 0.1, **settings)
    assert not ComputeStep.is_sgd_default_kwargs(other)
    with pytest.raises(NotImplementedError, match="SGD"):
        ComputeStep.compute_update_step(other, [id(parameters[0])])
    assert not ComputeStep.is_sgd_default_kwargs(torch.optim.Adam(parameters))


def test_the_update_of_sgd() -> None:
    model = network()
    optimizer = sgd(model, 0.3)
    model(batches(1)[0][0]).square().mean().backward()
    before = {id(p): p.detach().clone() for p in model.parameters()}
    updates = ComputeStep.compute_update_step(optimizer, list(before))
    optimizer.step()
    for p in model.parameters():
        torch.testing.assert_close(p.detach(), before[id(p)] + updates[id(p)])
    with pytest.raises(AssertionError, match="all specified parameters"):
        ComputeStep.compute_update_step(optimizer, [*before, -1])
