"""What is measured at which step, of which parameters, whatever happens inside of a block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cockpit.legacy import Cockpit, context, extend, quantities
from cockpit.legacy.utils.schedules import linear
from legacy.asked import every_quantity, named
from legacy.training import always, batches, network, same, sgd, step, trained


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
