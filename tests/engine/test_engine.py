"""The stages of a step, what is handed out, and what becomes of passes that are none."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine.answers.observed import Observed
from cockpit.engine.answers.requests import LAST, MEAN, UPDATE
from cockpit.engine.coverage.coverage import Way
from cockpit.engine.derived import Length
from cockpit.engine.engine import Engine
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.needs import Known, Need
from cockpit.engine.statistics import Norm2, Total
from cockpit.errors import Gap
from layer_check import by_autograd, filled, normal

LABELS = torch.tensor([0, 1, 1, 0, 1])


def net() -> nn.Sequential:
    model = filled(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    assert isinstance(model, nn.Sequential)
    return model


def losses_of(model: nn.Module, seed: int = 0, part: slice = slice(None)) -> Tensor:
    return F.cross_entropy(model(normal(5, 3, seed=seed)[part]), LABELS[part], reduction="none")


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([g.flatten(1) for g in gradients.values()], 1)


def step(
    engine: Engine,
    needs: Iterable[Need],
    parts: Iterable[slice] = (slice(None),),
    seed: int = 0,
    rate: float = 0.1,
) -> Observed:
    """Begin, micro-batches, and a step of plain gradient descent."""
    engine.begin(frozenset(needs))
    engine.model.zero_grad()
    for part in parts:
        losses = losses_of(engine.model, seed, part)
        engine.enter(losses)
        (losses.sum() / 5).backward()
        engine.leave()
    engine.before_update()
    with torch.no_grad():
        for p in engine.model.parameters():
            p -= rate * p.grad if p.grad is not None else 0
    observed = engine.finish(moved=True)
    assert observed is not None
    return observed


def test_known_vectors() -> None:
    model = net()
    engine = Engine(model)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    expected = by_autograd(model, losses_of(model))
    losses = losses_of(model).detach()
    observed = step(engine, Known, [slice(0, 2), slice(2, 5)])
    assert observed.examples == 5
    torch.testing.assert_close(observed.known[Known.LOSSES], losses)
    for name, parameter in model.named_parameters():
        assert torch.equal(observed.known[Known.PARAMETERS][name], before[name])
        torch.testing.assert_close(
            observed.known[Known.UPDATES][name], parameter.detach() - before[name], rtol=0, atol=0
        )
        torch.testing.assert_close(observed.known[Known.GRADIENTS][name], expected[name].mean(0))


def test_what_was_not_asked_for_is_not_kept() -> None:
    engine = Engine(net())
    observed = step(engine, [Known.LOSSES])
    assert set(observed.known) == {Known.LOSSES}
    assert not engine.capture.armed
    assert engine.coverage == {}


@pytest.mark.parametrize("parts", [[slice(None)], [slice(0, 2), slice(2, 5)]], ids=["whole", "two"])
def test_projections_on_directions_known_late(parts: list[slice]) -> None:
    """On the mean of all micro-batches, on the step that follows, and on the one before."""
    model = net()
    engine = Engine(model)
    last: Tensor | None = None
    for t in range(3):
        G = flat(by_autograd(model, losses_of(model, t)))
        here = nn.utils.parameters_to_vector(model.parameters()).detach()
        observed = step(engine, [MEAN, UPDATE, LAST, Known.UPDATES], parts, seed=t)
        s = nn.utils.parameters_to_vector(model.parameters()).detach() - here
        torch.testing.assert_close(observed.table.total(MEAN), G @ G.mean(0))
        torch.testing.assert_close(observed.table.total(UPDATE), G @ s)
        if last is None:
            with pytest.raises(Gap):
                observed.table.total(LAST)
        else:
            torch.testing.assert_close(observed.table.total(LAST), G @ last)
        last = s


def test_more_micro_batches_than_in_the_step_before() -> None:
    engine = Engine(net())
    step(engine, [MEAN])
    observed = step(engine, [MEAN, Norm2()], [slice(0, 2), slice(2, 5)])
    with pytest.raises(Gap, match="needs_full_batch"):
        observed.table.total(MEAN)
    assert len(observed.table.total(Norm2())) == 5
    assert len(step(engine, [MEAN], [slice(0, 2), slice(2, 5)]).table.total(MEAN)) == 5


def test_nothing_is_asked() -> None:
    engine = Engine(net())
    engine.begin(frozenset())
    assert not engine.busy
    assert not engine.begun
    assert engine.finish(moved=True) is None
    assert not any(m._forward_hooks for m in engine.model.modules())


def test_a_block_without_a_backward_pass_is_taken_back() -> None:
    model = net()
    engine = Engine(model)
    engine.begin(frozenset({Norm2(), MEAN, Known.LOSSES, Known.GRADIENTS}))
    G = flat(by_autograd(model, losses_of(model)))
    for taken in (False, True):
        losses = losses_of(model)
        engine.enter(losses)
        if taken:
            losses.mean().backward()
        engine.leave()
    observed = engine.finish(moved=False)
    assert observed is not None
    assert observed.examples == 5
    assert len(observed.known[Known.LOSSES]) == 5
    torch.testing.assert_close(observed.table.total(Norm2()), G.square().sum(1))
    torch.testing.assert_close(observed.table.total(MEAN), G @ G.mean(0))
    assert [kind for kind, _ in observed.notes] == ["nothing_watched"]


def test_an_abandoned_step_leaves_nothing() -> None:
    model = net()
    engine = Engine(model)
    engine.begin(frozenset({Norm2()}))
    losses = losses_of(model)
    engine.enter(losses)
    engine.abandon()
    assert not engine.begun
    assert not losses._backward_hooks
    losses.mean().backward()
    assert engine.finish(moved=True) is None
    observed = step(engine, [Norm2()], seed=1)
    assert len(observed.table.total(Norm2())) == 5


def test_examples_of_weight_zero_do_not_count() -> None:
    model = net()
    engine = Engine(model)
    weights = torch.tensor([1.0, 0.0, 2.0, 0.5, 0.0], dtype=torch.float64)
    kept = weights != 0
    G = flat(by_autograd(model, losses_of(model)))[kept]
    engine.begin(frozenset({Norm2(), Total(), Known.LOSSES, Known.GRADIENTS}))
    losses = losses_of(model)
    engine.enter(losses)
    (weights * losses).sum().backward()
    engine.leave()
    observed = engine.finish(moved=False)
    assert observed is not None
    assert observed.examples == 3
    torch.testing.assert_close(observed.table.total(Norm2()), G.square().sum(1))
    torch.testing.assert_close(observed.known[Known.LOSSES], losses.detach()[kept])
    mean = torch.cat([g.flatten() for g in observed.known[Known.GRADIENTS].values()])
    torch.testing.assert_close(mean, G.mean(0))
    assert observed.notes == (("zero_weight", "2 examples of weight zero were left out of the statistics"),)


def test_numbers_that_are_none_are_noted() -> None:
    model = net()
    engine = Engine(model)
    engine.begin(frozenset({Known.LOSSES, Known.GRADIENTS}))
    losses = losses_of(model) * torch.tensor([1.0, torch.nan, 1.0, torch.inf, 1.0], dtype=torch.float64)
    engine.enter(losses)
    losses.mean().backward()
    engine.leave()
    observed = engine.finish(moved=False)
    assert observed is not None
    observed.settle()
    notes = dict(observed.notes)
    assert notes["nonfinite_loss"] == "2 of the losses are NaN or infinite: examples [1, 3]"
    assert notes["nonfinite_gradient"].startswith("NaN or infinite gradients in 4 parameters")


def test_frozen_parameters_are_listed_and_left_out() -> None:
    model = net()
    model[0].requires_grad_(False)
    engine = Engine(model)
    observed = step(engine, [Norm2(), Known.GRADIENTS])
    assert engine.coverage["0.weight"].way is Way.FROZEN
    assert set(observed.known[Known.GRADIENTS]) == {"2.weight", "2.bias"}


class Checkpointed(nn.Module):
    """Reentrant checkpointing: gradients come from a backward pass inside the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.utils.checkpoint.checkpoint(self.inner, self.first(x), use_reentrant=True)
        result: Tensor = self.last(torch.tanh(h))
        return result


def test_a_graph_that_cannot_be_walked_twice() -> None:
    """Formulas serve it, confirmed by the growth of ``.grad``."""
    model = filled(Checkpointed())
    engine = Engine(model)
    model.zero_grad()
    rows = []
    for k in range(5):
        losses_of(model)[k].backward()
        rows.append(torch.cat([p.grad.flatten().clone() for p in model.parameters()]))  # type: ignore[union-attr]
        model.zero_grad()
    G = torch.stack(rows)
    observed = step(engine, [Norm2()])
    assert {c.way for c in engine.coverage.values()} == {Way.FORMULA}
    assert all("reentrant" in c.reason for c in engine.coverage.values())
    torch.testing.assert_close(observed.table.total(Norm2()), G.square().sum(1))


class OwnLoss(nn.Module):
    """Returns the mean loss, a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), LABELS)


@pytest.mark.parametrize("scalar", [False, True], ids=["outputs", "a single number"])
def test_passes_without_losses(scalar: bool) -> None:
    """A mean over the leading axis is assumed, at every step and whatever the model returns."""
    model = OwnLoss() if scalar else net()
    engine = Engine(model)
    for t in range(3):
        engine.begin(frozenset({Norm2(), Known.GRADIENTS}))
        model.zero_grad()
        plain = model.net if isinstance(model, OwnLoss) else model
        G = flat(by_autograd(plain, losses_of(plain, t)))
        x = normal(5, 3, seed=t)
        objective = model(x) if scalar else F.cross_entropy(model(x), LABELS)
        engine.enter(None)
        objective.backward()
        engine.leave()
        observed = engine.finish(moved=False)
        assert observed is not None, f"step {t} was not seen"
        torch.testing.assert_close(observed.table.total(Norm2()), G.square().sum(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_round_statistics(dtype: torch.dtype) -> None:
    model = net().float()
    engine = Engine(model)
    engine.begin(frozenset({Norm2()}))
    with torch.autocast("cpu", dtype=dtype):
        output = model(normal(5, 3).float())
        losses = F.cross_entropy(output.float(), LABELS, reduction="none")
        engine.enter(losses)
        losses.mean().backward()
        engine.leave()
        observed = engine.finish(moved=False)
    assert observed is not None
    assert observed.table.total(Norm2()).dtype in (torch.float32, torch.float64)


def test_state_goes_on() -> None:
    first = Engine(net())
    step(first, [UPDATE, Known.UPDATES])
    second = Engine(net())
    second.model.load_state_dict(first.model.state_dict())
    second.load_state(first.state())
    found, expected = (step(e, [LAST], seed=1).table.total(LAST) for e in (second, first))
    assert torch.equal(found, expected)


def test_close_leaves_nothing() -> None:
    engine = Engine(net())
    step(engine, [UPDATE, Known.UPDATES])
    assert engine.motion.last
    engine.begin(frozenset({Norm2()}))
    engine.close()
    assert not engine.capture.armed
    assert not engine.motion.last
    assert not any(m._forward_hooks for m in engine.model.modules())


@pytest.mark.xfail(reason="torch lets every pass add to a retained gradient, ours too", raises=AssertionError)
def test_a_gradient_that_the_user_retains_is_that_of_his_pass() -> None:
    model = net()
    engine = Engine(model)
    engine.begin(frozenset({Norm2()}))
    h = model[0](normal(5, 3))
    h.retain_grad()
    losses = F.cross_entropy(model[2](model[1](h)), LABELS, reduction="none")
    expected = torch.autograd.grad(losses.mean(), h, retain_graph=True)[0]
    h.grad = None
    engine.enter(losses)
    losses.mean().backward()
    engine.leave()
    assert h.grad is not None
    torch.testing.assert_close(h.grad, expected)


# -- what is taken from ``.grad`` -----------------------------------------------------------------------


def own_step(engine: Engine, needs: Iterable[Need], seed: int = 0, rates: bool = True) -> Observed:
    """A step whose objective is the mean of the losses, of an optimiser that is plain gradient descent."""
    engine.motion.plain = rates
    engine.begin(frozenset(needs))
    engine.model.zero_grad()
    losses = losses_of(engine.model, seed)
    engine.enter(losses, own=True)
    losses.mean().backward()
    engine.leave()
    engine.before_update()
    with torch.no_grad():
        for p in engine.model.parameters():
            p -= 0.1 * p.grad if p.grad is not None else 0
    given = {n: 0.1 for n, _ in engine.model.named_parameters()} if rates else None
    observed = engine.finish(moved=True, rates=given)
    assert observed is not None
    observed.settle()
    return observed


def test_the_mean_direction_is_read_as_soon_as_autograd_has_summed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = net()
    engine = Engine(model)
    own_step(engine, [MEAN])
    monkeypatch.setattr(ExampleGradients, "total", lambda *_: pytest.fail("summed again"))
    G = flat(by_autograd(model, losses_of(model, 1)))
    observed = own_step(engine, [MEAN, Norm2()], seed=1)
    torch.testing.assert_close(observed.table.total(MEAN), G @ G.mean(0))
    torch.testing.assert_close(observed.table.total(Norm2()), G.square().sum(1))


class Tied(nn.Module):
    """One weight, used twice with another layer in between: its gradient is whole only after the second use."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.between, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.between(torch.tanh(self.twice(x))))
        result: Tensor = self.last(torch.tanh(self.twice(h)))
        return result


def test_the_mean_direction_of_a_weight_that_is_used_twice() -> None:
    model = filled(Tied())
    engine = Engine(model)
    for t in range(3):
        G = flat(by_autograd(model, losses_of(model, t)))
        observed = own_step(engine, [MEAN], seed=t)
        torch.testing.assert_close(observed.table.total(MEAN), G @ G.mean(0))


def test_a_plain_step_is_kept_as_the_gradient_and_its_rate() -> None:
    model = net()
    engine = Engine(model)
    needs = [UPDATE, LAST, Length(Known.UPDATES)]
    last: Tensor | None = None
    for t in range(4):
        G = flat(by_autograd(model, losses_of(model, t)))
        before = nn.utils.parameters_to_vector(model.parameters()).detach()
        observed = own_step(engine, needs, seed=t)
        s = nn.utils.parameters_to_vector(model.parameters()).detach() - before
        factors = {factor for _, factor in engine.motion.last.values()}
        assert factors == ({1.0} if t == 0 else {-0.1})
        kept = torch.cat([(v * factor).flatten() for v, factor in engine.motion.last.values()])
        torch.testing.assert_close(kept, s)
        torch.testing.assert_close(observed.table.total(UPDATE), G @ s)
        torch.testing.assert_close(observed.table.total(Length(Known.UPDATES)), s @ s)
        if last is not None:
            torch.testing.assert_close(observed.table.total(LAST), G @ last)
        last = s


def test_without_rates_a_plain_step_was_none_after_all() -> None:
    """The optimiser was another one when it stepped."""
    engine = Engine(net())
    needs = [UPDATE, Length(Known.UPDATES), Norm2()]
    own_step(engine, needs)
    engine.motion.plain = True
    engine.begin(frozenset(needs))
    engine.model.zero_grad()
    losses = losses_of(engine.model, 1)
    engine.enter(losses, own=True)
    losses.mean().backward()
    engine.leave()
    observed = engine.finish(moved=True, rates=None)
    assert observed is not None
    observed.settle()
    for statistic in (UPDATE, Length(Known.UPDATES)):
        with pytest.raises(Gap, match="clipped"):
            observed.table.total(statistic)
    assert len(observed.table.total(Norm2())) == 5
    assert engine.motion.last == {}


def test_the_plain_engine_takes_nothing_for_granted() -> None:
    model = net()
    engine = Engine(model, fast=False)
    for t in range(3):
        G = flat(by_autograd(model, losses_of(model, t)))
        before = nn.utils.parameters_to_vector(model.parameters()).detach()
        observed = own_step(engine, [MEAN, UPDATE], seed=t)
        s = nn.utils.parameters_to_vector(model.parameters()).detach() - before
        assert {factor for _, factor in engine.motion.last.values()} == {1.0}
        torch.testing.assert_close(observed.table.total(MEAN), G @ G.mean(0))
        torch.testing.assert_close(observed.table.total(UPDATE), G @ s)
