from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit import legacy
from cockpit.legacy import Cockpit, CockpitPlotter, context, extend, quantities
from cockpit.legacy.log import read_log
from cockpit.legacy.quantities.quantity import SingleStepQuantity
from cockpit.legacy.utils.configuration import configuration
from cockpit.legacy.utils.schedules import linear
from legacy.training import always, batches, network, same, sgd, step, trained

FIRST_ORDER = ("NormTest", "InnerTest", "OrthoTest", "MeanGSNR", "GradHist1d", "GradHist2d", "GradNorm")
SECOND_ORDER = ("HessTrace", "TICDiag", "TICTrace", "HessMaxEV")


def every_quantity(*without: str) -> list[Any]:
    return named(*(name for name in quantities.__all__ if name not in (*without, "Time")))


def named(*names: str) -> list[Any]:
    return [getattr(quantities, name)(always) for name in names]


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


def test_parameters_and_quantities_are_checked() -> None:
    model = network()
    model[0].bias.requires_grad_(False)
    with pytest.raises(ValueError, match="requires_grad=False"):
        Cockpit(model.parameters())
    with pytest.raises(ValueError, match="instances of Quantity"):
        Cockpit(network().parameters(), ["Loss"])


def test_an_exception_in_the_block_passes_through_and_training_goes_on() -> None:
    class MineError(Exception):
        pass

    raised = MineError("mine")

    def run(fails: bool) -> dict[int, dict[str, Any]]:
        model, criterion = extend(network()), extend(nn.CrossEntropyLoss())
        # The eigenvalue's search starts from the last vector found, so a repeated step ends elsewhere.
        watch, optimizer = Cockpit(model.parameters(), every_quantity("HessMaxEV")), sgd(model)
        for t, (x, y) in enumerate(batches(3)):
            if fails and t == 1:
                with pytest.raises(MineError) as caught, watch(t, info={"loss": criterion(model(x), y)}):
                    raise raised
                assert caught.value is raised
                assert 1 not in watch.get_output()
            step(watch, t, model, criterion, optimizer, (x, y))
        return watch.get_output()

    same(run(fails=True), run(fails=False))
    with pytest.raises(KeyError):
        context.get_loss(1)


def test_an_exception_does_not_make_the_next_step_blind() -> None:
    model = extend(network())
    trace = quantities.HessTrace(linear(2, offset=1), curvature="diag_ggn_exact")
    watch, optimizer = Cockpit(model.parameters(), [quantities.GradNorm(always), trace]), sgd(model)
    with pytest.raises(ZeroDivisionError), watch(0, info={"loss": model(batches(1)[0][0]).sum()}):
        raise ZeroDivisionError
    step(watch, 1, model, nn.CrossEntropyLoss(), optimizer, batches(1)[0])
    assert set(watch.get_output()[1]) == {"GradNorm", "HessTrace"}


def test_the_graph_is_freed_as_ever() -> None:
    model, (x, y) = extend(network()), batches(1)[0]
    watch = Cockpit(model.parameters(), named("HessMaxEV", "NormTest"))
    loss = extend(nn.CrossEntropyLoss())(model(x), y)
    with watch(0, info={"loss": loss}):
        loss.backward()
    assert set(watch.get_output()[0]) == {"HessMaxEV", "NormTest"}
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_a_resumed_training_begins_at_any_step() -> None:
    output, _ = trained(every_quantity(), range(7, 10))
    fresh, _ = trained(every_quantity(), range(3))
    assert output[7]["Distance"] == [0.0] * 4
    same({t - 7: row for t, row in output.items()}, dict(fresh))


def test_an_update_is_only_seen_between_neighbouring_steps() -> None:
    output, _ = trained(named("Alpha", "UpdateSize", "Loss"), [0, 10, 11, 20])
    assert {t for t in output if "Alpha" in output[t]} == {10}
    assert {t for t in output if "UpdateSize" in output[t]} == {10}
    assert set(output) == {0, 10, 11, 20}


def test_schedules_decide() -> None:
    names = ("Alpha", "UpdateSize", "NormTest", "HessTrace", "Distance")
    sparse, model = trained([getattr(quantities, name)(linear(2, offset=1)) for name in names], range(6))
    dense, other = trained(named(*names), range(6))
    assert sorted(sparse) == [1, 3, 5]
    same(dict(sparse), {t: dense[t] for t in (1, 3, 5)})
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", ["UpdateSize", "Alpha"])
def test_an_update_is_seen_by_a_step_at_which_nothing_else_is_due(name: str) -> None:
    sparse, _ = trained([getattr(quantities, name)(linear(3))], range(5))
    dense, _ = trained(named(name), range(5))
    same(dict(sparse), {t: dense[t] for t in (0, 3)})


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


def test_nested_cockpits_do_not_hear_each_other() -> None:
    def run(outer_first: bool) -> tuple[Any, Any]:
        model, criterion = extend(network()), extend(nn.CrossEntropyLoss())
        optimizer = sgd(model)
        pair = [Cockpit(model.parameters(), every_quantity(*without)) for without in ((), ("Loss",))]
        first, second = pair if outer_first else pair[::-1]
        for t, (x, y) in enumerate(batches(3)):
            optimizer.zero_grad()
            z = model(x)
            loss, losses = criterion(z, y), F.cross_entropy(z, y, reduction="none")
            info = {"loss": loss, "individual_losses": losses, "optimizer": optimizer}
            with first(t, info=info), second(t, info=dict(info)):
                loss.backward()
            optimizer.step()
        return pair[0].get_output(), pair[1].get_output()

    alone, _ = trained(every_quantity(), range(3))
    for outer_first in (True, False):
        found, other = run(outer_first)
        same(found, dict(alone))
        same(other, {t: {k: v for k, v in row.items() if k != "Loss"} for t, row in alone.items()})


def test_without_extend_the_numbers_are_the_same() -> None:
    same(trained(every_quantity(), extended=False)[0], dict(trained(every_quantity())[0]), rtol=1e-8)


def test_some_parameters_only() -> None:
    names = ("NormTest", "GradNorm", "HessTrace", "MeanGSNR", "Alpha")
    found = []
    for extended in (True, False):
        model, criterion = network(), nn.CrossEntropyLoss()
        if extended:
            extend(model)
        watch, optimizer = Cockpit(model[2].parameters(), named(*names)), sgd(model[2])
        for t, batch in enumerate(batches(3)):
            step(watch, t, model, criterion, optimizer, batch)
        found.append(dict(watch.get_output()))
    assert len(found[0][0]["GradNorm"]) == 2
    same(found[0], found[1])


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


def test_a_batch_of_one_leaves_gaps_and_says_so() -> None:
    with pytest.warns(UserWarning, match="NormTest has no value at step 0: batch_size_1") as caught:
        output, _ = trained(named("NormTest", "Alpha", "GradNorm", "TICTrace"), range(3), size=1)
    assert [Path(w.filename).name for w in caught] == ["training.py"]
    assert set(output[0]) == {"Alpha", "GradNorm", "TICTrace"}


def test_a_parameter_without_part_in_the_loss_counts_as_zero() -> None:
    model = network()
    model.extra = nn.Parameter(torch.ones(2, dtype=torch.float64))
    extend(model)
    per_tensor = ("GradNorm", "HessTrace", "UpdateSize")
    watch = Cockpit(model.parameters(), named("NormTest", "GradHist2d", *per_tensor))
    for t, batch in enumerate(batches(2)):
        step(watch, t, model, nn.CrossEntropyLoss(), sgd(model), batch)
    row, at = watch.get_output()[0], [name for name, _ in model.named_parameters()].index("extra")
    assert [row[name][at] for name in per_tensor] == [0.0] * 3
    same(row["NormTest"], trained(named("NormTest"))[0][0]["NormTest"])


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


def test_a_copied_model_is_not_watched() -> None:
    model = extend(network())
    watch = Cockpit(model.parameters(), named("NormTest"))
    step(watch, 0, model, nn.CrossEntropyLoss(), sgd(model), batches(1)[0])
    twin = copy.deepcopy(model)
    twin(batches(1)[0][0]).sum().backward()
    assert list(watch.get_output()) == [0]
