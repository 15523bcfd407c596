"""The original's interface: scripts run as they are, and the training is the same."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit import legacy
from cockpit.legacy import Cockpit, CockpitPlotter, extend, quantities
from cockpit.legacy.log import read_log
from cockpit.legacy.quantities.quantity import SingleStepQuantity
from cockpit.legacy.utils.configuration import configuration
from cockpit.legacy.utils.schedules import linear
from legacy.asked import every_quantity, named
from legacy.training import always, batches, network, same, sgd, step, trained


def test_a_script_for_the_original_runs_with_other_imports(tmp_path: Path) -> None:
    net, mean_ce = extend(network()), extend(nn.CrossEntropyLoss())
    watch, screen = Cockpit(net.parameters(), configuration("economy")), CockpitPlotter()
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    for t, (x, y) in enumerate(batches(3)):
        sgd.zero_grad()
        z = net(x)
        L = mean_ce(z, y)
        each = F.cross_entropy(z, y, reduction="none")
        facts = {"loss": L, "batch_size": len(x), "optimizer": sgd, "individual_losses": each}
        with watch(t, info=facts):
            L.backward(create_graph=watch.create_graph(t))
        sgd.step()
        watch.log(t, 0, 1.0, 2.0, 3.0, 0.1, 0.2, 0.3, 0.1)
    runs = str(tmp_path / "runs")
    watch.write(f"{runs}/demo")
    screen.plot(f"{runs}/demo", show_plot=False, save_plot=True, savedir=runs)
    assert Path(f"{runs}/cockpit__primary.png").stat().st_size
    log = read_log(f"{runs}/demo")
    logged = {"epoch_count", "train_loss", "valid_loss", "test_loss", "learning_rate"}
    logged |= {"train_accuracy", "valid_accuracy", "test_accuracy"}
    names = {type(q).__name__ for q in configuration("economy")}
    assert {t: set(row) for t, row in log.items()} == {
        0: names | logged,
        1: names | logged,
        2: (names | logged) - {"Alpha", "UpdateSize"},
    }
    same(log, dict(watch.get_output()))
    assert log[1]["valid_loss"] == 2.0


def test_values_are_there_when_the_block_is_left() -> None:
    model, criterion = extend(network()), extend(nn.CrossEntropyLoss())
    watch, optimizer = Cockpit(model.parameters(), every_quantity()), sgd(model)
    seen: list[set[str]] = []
    for t, (x, y) in enumerate(batches(2)):
        optimizer.zero_grad()
        z = model(x)
        loss = criterion(z, y)
        losses = F.cross_entropy(z, y, reduction="none")
        with watch(t, info={"loss": loss, "individual_losses": losses, "optimizer": optimizer}):
            loss.backward()
            assert t not in watch.quantities[-1].get_output()
        seen.append(set(watch.get_output()[0]))
        optimizer.step()
    assert seen[1] - seen[0] == {"Alpha", "UpdateSize"}
    assert seen[1] == set(quantities.__all__) - {"Time"}


def test_the_optimizer_is_remembered_by_name() -> None:
    """For the titles of figures; an information without it takes nothing back."""
    watch = Cockpit(network().parameters())
    plotter = CockpitPlotter()
    plotter._read(watch)
    assert plotter.optimizer == ""
    watch(0, info={"optimizer": torch.optim.Adam(watch.params)})
    watch(1, info={"batch_size": 3})
    watch(2)
    plotter._read(watch)
    assert plotter.optimizer == "Adam"


def test_every_part_of_the_original_is_there() -> None:
    assert set(legacy.__all__) == {
        "Cockpit", "CockpitPlotter", "context", "extend", "instruments", "quantities", "utils",
    }  # fmt: skip
    assert callable(legacy.instruments.alpha_gauge)


def test_time_is_the_wall_clock() -> None:
    before = time.time()
    output, _ = trained([quantities.Time(always)], range(2), only=["loss"])
    assert before <= output[0]["Time"] <= output[1]["Time"] <= time.time()


def test_parameters_and_quantities_are_checked() -> None:
    model = network()
    model[0].bias.requires_grad_(False)
    with pytest.raises(ValueError, match="requires_grad=False"):
        Cockpit(model.parameters())
    with pytest.raises(ValueError, match="instances of Quantity"):
        Cockpit(network().parameters(), ["Loss"])


def test_the_graph_is_freed_as_ever() -> None:
    model, (x, y) = extend(network()), batches(1)[0]
    watch = Cockpit(model.parameters(), named("HessMaxEV", "NormTest"))
    loss = extend(nn.CrossEntropyLoss())(model(x), y)
    with watch(0, info={"loss": loss}):
        loss.backward()
    assert set(watch.get_output()[0]) == {"HessMaxEV", "NormTest"}
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_the_training_is_the_same_to_the_bit() -> None:
    def run(watched: bool) -> tuple[list[Tensor], Tensor]:
        torch.manual_seed(3)
        model = network()
        model.insert(2, nn.Dropout(0.3))
        criterion = nn.CrossEntropyLoss()
        extend(model)
        extend(criterion)
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        watch = Cockpit(model.parameters(), every_quantity("CABS", "EarlyStopping") if watched else [])
        for t, batch in enumerate(batches(5)):
            step(watch, t, model, criterion, optimizer, batch)
        return [p.detach() for p in model.parameters()], torch.get_rng_state()

    with torch.random.fork_rng():
        (a, state), (b, other) = run(watched=True), run(watched=False)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert torch.equal(state, other)


def test_nothing_is_left_on_the_model() -> None:
    model, criterion = extend(network()), extend(nn.CrossEntropyLoss())
    before = {name: set(vars(m)) for name, m in model.named_modules()}
    watch = Cockpit(model.parameters(), every_quantity())
    step(watch, 0, model, criterion, sgd(model), batches(1)[0])
    assert any(m._forward_hooks for m in model.modules())
    del watch
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert {name: set(vars(m)) for name, m in model.named_modules()} == before


def test_only_quantities_of_ones_own_ask_for_a_graph() -> None:
    class Curved(SingleStepQuantity):
        def extensions(self, global_step: int) -> list[Any]:
            return []

        def create_graph(self, global_step: int) -> bool:
            return self.should_compute(global_step)

        def _compute(self, global_step: int, params: list[Tensor], batch_loss: Tensor) -> Tensor:
            assert params[0].grad is not None
            (product,) = torch.autograd.grad(params[0].grad.square().sum(), params[0], retain_graph=True)
            return product.norm()

    watch = Cockpit(network().parameters(), every_quantity())
    assert not watch.create_graph(0)
    watch.add(Curved(linear(2)))
    assert [watch.create_graph(t) for t in range(3)] == [True, False, True]
    output, _ = trained([Curved(linear(2)), *named("NormTest", "Alpha")], range(3))
    assert [t for t in output if "Curved" in output[t]] == [0, 2]
    assert float(output[0]["Curved"]) > 0
    assert output[1]["NormTest"] == trained(named("NormTest", "Alpha"), range(3))[0][1]["NormTest"]


def test_two_of_a_class_are_told_apart() -> None:
    two = [quantities.GradHist1d(always, bins=4), quantities.GradHist1d(always, bins=8)]
    output, _ = trained(two, range(1))
    assert [len(output[0][key]["hist"]) for key in ("GradHist1d", "GradHist1d_2")] == [4, 8]


def test_a_copied_model_is_not_watched() -> None:
    model = extend(network())
    watch = Cockpit(model.parameters(), named("NormTest"))
    step(watch, 0, model, nn.CrossEntropyLoss(), sgd(model), batches(1)[0])
    twin = copy.deepcopy(model)
    twin(batches(1)[0][0]).sum().backward()
    assert list(watch.get_output()) == [0]
