"""What a script hands in about a step: what must be there, and what the losses may look like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cockpit.legacy import Cockpit, extend
from legacy.asked import FIRST_ORDER, SECOND_ORDER, named
from legacy.training import batches, network, same, sgd, step, trained


def test_losses_behind_an_extended_loss_function_need_not_be_handed_in() -> None:
    names = (*FIRST_ORDER, *SECOND_ORDER, "Alpha")
    same(trained(named(*names), only=["loss"])[0], trained(named(*names))[0])


def test_first_order_quantities_need_no_losses_with_an_extended_model() -> None:
    def functional(model: nn.Module, individual: bool) -> dict[int, dict[str, Any]]:
        watch, optimizer = Cockpit(extend(model).parameters(), named(*FIRST_ORDER)), sgd(model)
        only = ["loss", "individual_losses"] if individual else ["loss"]
        for t, batch in enumerate(batches(3)):
            step(watch, t, model, F.cross_entropy, optimizer, batch, only)
        return watch.get_output()

    same(functional(network(), individual=False), functional(network(), individual=True))


def test_individual_losses_may_be_detached_or_from_a_pass_of_their_own() -> None:
    def run(losses_of: Any) -> dict[int, dict[str, Any]]:
        model = extend(network())
        watch, optimizer = Cockpit(model.parameters(), named(*FIRST_ORDER, "Alpha")), sgd(model)
        for t, (x, y) in enumerate(batches(3)):
            optimizer.zero_grad()
            z = model(x)
            loss = F.cross_entropy(z, y)
            with watch(t, info={"loss": loss, "individual_losses": losses_of(model, x, y, z)}):
                loss.backward()
            optimizer.step()
        return watch.get_output()

    plain = run(lambda model, x, y, z: F.cross_entropy(z, y, reduction="none"))
    same(run(lambda model, x, y, z: F.cross_entropy(model(x), y, reduction="none")), plain)
    detached = run(lambda model, x, y, z: F.cross_entropy(z, y, reduction="none").detach())
    for row in (*plain.values(), *detached.values()):
        row.pop("Alpha", None)
    same(detached, plain)


def test_alpha_takes_detached_individual_losses() -> None:
    def run(detach: bool) -> Any:
        model = extend(network())
        watch, optimizer = Cockpit(model.parameters(), named("Alpha")), sgd(model)
        for t, (x, y) in enumerate(batches(3)):
            optimizer.zero_grad()
            z = model(x)
            loss, losses = F.cross_entropy(z, y), F.cross_entropy(z, y, reduction="none")
            with watch(t, info={"loss": loss, "individual_losses": losses.detach() if detach else losses}):
                loss.backward()
            optimizer.step()
        return watch.get_output()

    same(run(detach=True), run(detach=False))


@pytest.mark.parametrize("missing", ["loss", "individual_losses", "optimizer"])
def test_what_is_missing_is_asked_for_as_in_the_original(missing: str) -> None:
    info = [key for key in ("loss", "individual_losses", "batch_size", "optimizer") if key != missing]
    wanted = {"loss": "Time", "individual_losses": "NormTest", "optimizer": "CABS"}[missing]
    with pytest.raises(KeyError, match=rf"Please hand in '{missing}' via cockpit\(info=...\)\."):
        trained(named(wanted), extended=False, only=info)


def test_alpha_needs_individual_losses() -> None:
    model = extend(network())
    watch = Cockpit(model.parameters(), named("Alpha"))
    with pytest.raises(KeyError, match="individual_losses"):
        step(watch, 0, model, F.cross_entropy, sgd(model), batches(1)[0], ["loss"])


@pytest.mark.parametrize("name", ["CABS", "EarlyStopping"])
def test_criteria_for_sgd_refuse_other_optimizers(name: str) -> None:
    model = extend(network())
    watch = Cockpit(model.parameters(), named(name))
    for optimizer in (torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), 0.1, 0.9)):
        with pytest.raises(ValueError, match="only supports zero-momentum SGD"):
            step(watch, 0, model, F.cross_entropy, optimizer, batches(1)[0])


def test_cabs_refuses_several_learning_rates() -> None:
    model = extend(network())
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.2}]
    with pytest.raises(ValueError, match="non-unique learning rates"):
        step(
            Cockpit(model.parameters(), named("CABS")),
            0,
            model,
            F.cross_entropy,
            torch.optim.SGD(groups),
            batches(1)[0],
        )


def test_a_sum_is_the_mean_of_losses_that_count_n_fold() -> None:
    n, scaled = 6, ("Loss", "GradNorm", "HessTrace", "HessMaxEV")
    names = (*scaled, *FIRST_ORDER[:3], "Alpha", "UpdateSize", "CABS")
    mean, _ = trained(named(*names), lr=0.1)
    total, _ = trained(named(*names), lr=0.1 / n, reduction="sum")
    for t, row in mean.items():
        for name, value in row.items():
            factor = n if name in scaled else 1
            rtol = 2e-3 if name == "HessMaxEV" else 1e-9
            np.testing.assert_allclose(total[t][name], factor * np.asarray(value), rtol, err_msg=name)


def test_losses_of_pixels_are_averaged() -> None:
    x, _ = batches(1)[0]
    goal = torch.from_numpy(np.random.RandomState(5).normal(size=(6, 3)))
    found = []
    for average in (True, False):
        model = extend(network())
        watch = Cockpit(model.parameters(), named("NormTest", "HessTrace", "GradHist1d"))
        z = model(x)
        loss, each = F.mse_loss(z, goal), F.mse_loss(z, goal, reduction="none")
        with watch(0, info={"loss": loss, "individual_losses": each.mean(1) if average else each}):
            loss.backward()
        found.append(watch.get_output()[0])
    same(found[0], found[1])


def test_another_factor_is_warned_of() -> None:
    model = extend(network())
    watch = Cockpit(model.parameters(), named("NormTest"))
    with pytest.warns(UserWarning, match="neither the mean nor the sum"):
        step(watch, 0, model, lambda z, y: F.cross_entropy(z, y) + 3.0, sgd(model), batches(1)[0])
    same(watch.get_output()[0]["NormTest"], trained(named("NormTest"))[0][0]["NormTest"])
