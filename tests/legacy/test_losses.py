from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.legacy import extend
from cockpit.legacy.losses import individual_losses, stand_ins, values
from legacy.training import batches, network


def gradients(losses: Tensor, model: nn.Module) -> list[Tensor]:
    return [
        torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)]
        )
        for loss in losses
    ]


@pytest.mark.parametrize(("reduction", "factor"), [("mean", 1), ("sum", 6)])
def test_the_mean_is_the_objective(reduction: str, factor: int) -> None:
    x, y = batches(1)[0]
    z = network()(x)
    each = F.cross_entropy(z, y, reduction="none")
    info = {"loss": F.cross_entropy(z, y, reduction=reduction), "individual_losses": each}
    losses = individual_losses(info)
    assert losses is not None
    torch.testing.assert_close(losses, factor * each)
    torch.testing.assert_close(losses.mean(), info["loss"])
    found = values({**info, "individual_losses": each.detach()})
    assert found is not None
    torch.testing.assert_close(found, losses.detach())


def test_class_weights_behind_an_extended_loss_function() -> None:
    x, y = batches(1)[0]
    z = network()(x)
    loss = extend(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)))(z, y)
    # Those handed in forget the weights: neither their mean nor their sum is the loss.
    losses = individual_losses({"loss": loss, "individual_losses": F.cross_entropy(z, y, reduction="none")})
    assert losses is not None
    torch.testing.assert_close(losses.mean(), loss)
    ratio = losses / F.cross_entropy(z, y, reduction="none")
    torch.testing.assert_close(
        ratio / ratio[0], torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)[y] / (1 + y[0])
    )


def test_tokens_are_averaged_within_their_example() -> None:
    each = torch.arange(6.0, requires_grad=True)
    for given in (each.reshape(2, 3), each):
        losses = individual_losses({"loss": each.mean(), "individual_losses": given, "batch_size": 2})
        assert losses is not None
        assert losses.tolist() == [1.0, 4.0]


def test_losses_nobody_knows() -> None:
    loss = torch.ones(3, requires_grad=True).sum()
    assert individual_losses({"loss": loss}) is None
    assert individual_losses({"loss": loss, "individual_losses": torch.ones(3)}) is None
    assert values({"loss": loss}) is None


def test_stand_ins_have_gradients_and_hessian_of_the_losses() -> None:
    model, (x, y) = network(), batches(1)[0]
    z = model(x)
    loss, each = F.cross_entropy(z, y), F.cross_entropy(z, y, reduction="none")
    losses = stand_ins({"loss": loss}, [z], dict(model.named_parameters()))
    assert losses is not None
    torch.testing.assert_close(losses.mean(), loss)
    torch.testing.assert_close(gradients(losses, model), gradients(each, model))
    weight = model[2].weight
    vector = torch.ones_like(weight)
    products = []
    for objective in (losses.mean(), loss):
        (g,) = torch.autograd.grad(objective, weight, create_graph=True)
        products.append(torch.autograd.grad(g, weight, vector, retain_graph=True)[0])
    torch.testing.assert_close(products[0], products[1])


def test_no_stand_ins_where_the_outputs_do_not_tell_everything() -> None:
    model, (x, y) = network(), batches(1)[0]
    z = model(x)
    penalised = F.cross_entropy(z, y) + model[0].weight.square().sum()
    parameters = dict(model.named_parameters())
    assert stand_ins({"loss": penalised}, [z], parameters) is None
    assert stand_ins({"loss": F.cross_entropy(z, y)}, [], parameters) is None
    assert stand_ins({"loss": z.sum()}, [z.sum()], parameters) is None
