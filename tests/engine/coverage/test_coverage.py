"""By which way each parameter is served, why, and that a formula is never trusted unseen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit import Cockpit
from cockpit.engine.answers.observed import Observed
from cockpit.engine.coverage import fallback, plans
from cockpit.engine.coverage.coverage import Coverage, Way, confirmed, couples_examples, shape_plan
from cockpit.engine.coverage.examination import BATCHNORM, INCOMPLETE, Examination, probe_weights
from cockpit.engine.engine import Engine
from cockpit.engine.gradients.parts import Dense, Part
from cockpit.engine.layers.formula import FORMULAS, Call, Layout, formula
from cockpit.engine.statistics import Norm2, SquareSum, Total
from cockpit.testing import problem
from layer_check import by_autograd, filled, normal

NEEDS = frozenset({Norm2(), Total(), SquareSum()})


def finished(engine: Engine, losses: Tensor) -> Observed:
    engine.enter(losses)
    losses.mean().backward()
    engine.leave()
    engine.before_update()
    observed = engine.finish(moved=False)
    assert observed is not None
    return observed


def seen(model: nn.Module, losses: Callable[[], Tensor], engine: Engine | None = None) -> dict[str, Coverage]:
    """Watch one pass and compare every statistic with autograd; return the ways."""
    engine = engine or Engine(model)
    engine.begin(NEEDS)
    values = losses()
    expected = by_autograd(model, values)
    observed = finished(engine, values)
    ways = engine.coverage
    for name, G in expected.items():
        if ways[name].way is Way.UNUSED:
            assert not G.any()
            continue
        torch.testing.assert_close(
            observed.table.by_parameter(Norm2())[name],
            G.reshape(len(G), -1).square().sum(1),
            rtol=1e-9,
            atol=1e-12,
        )
        torch.testing.assert_close(
            observed.table.by_parameter(Total())[name], G.sum(0), rtol=1e-9, atol=1e-12
        )
    return ways


def on(name: str, n: int = 4) -> tuple[nn.Module, Callable[[], Tensor]]:
    p = problem(name)
    model = p.build()
    return model, lambda: p.losses(model, *p.batch(n))


def test_formulas() -> None:
    ways = seen(*on("mlp"))
    assert set(ways.values()) == {Coverage(Way.FORMULA)}


def test_a_layer_used_elsewhere_too_is_served_by_the_graph() -> None:
    ways = seen(*on("module_and_functional"))
    assert ways["lin.weight"] == Coverage(Way.VMAP, INCOMPLETE)
    assert ways["lin.bias"].way is ways["inp.weight"].way is Way.FORMULA


def test_raw_parameters_are_served_by_the_graph() -> None:
    ways = seen(*on("einsum"))
    assert set(ways.values()) == {Coverage(Way.VMAP, "no layer formula covers it")}


def test_unused_and_frozen_parameters() -> None:
    assert seen(*on("unused"))["idle.weight"] == Coverage(Way.UNUSED, "no loss depends on it")
    assert seen(*on("frozen"))["0.weight"] == Coverage(Way.FROZEN, "does not require gradients")


class Doubled(torch.autograd.Function):
    """A product whose backward pass looks at numbers, which ``vmap`` cannot."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        factor = 1.0 if float(grads[0].abs().sum()) >= 0 else 0.0
        return factor * grads[0] * weight, factor * (grads[0] * x).sum(0)


class Scale(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(normal(3)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


def test_where_vmap_fails_examples_come_one_by_one() -> None:
    model = Scale(lambda x, w: Doubled.apply(x, w))
    ways = seen(model, lambda: model(normal(4, 3)).square().sum(1))
    assert ways["weight"] == Coverage(Way.LOOP, "no layer formula covers it")


def test_where_a_batching_rule_is_wrong_examples_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fallback._vectorised

    def wrong(*args: Any) -> list[Tensor] | None:
        found = right(*args)
        return None if found is None else [2 * g for g in found]

    monkeypatch.setattr(fallback, "_vectorised", wrong)
    model = Scale(torch.mul)
    ways = seen(model, lambda: model(normal(4, 3)).square().sum(1))
    assert ways["weight"].way is Way.LOOP


def test_batch_norm_gives_row_contributions_below_it() -> None:
    """Layers above are exact; below, the rows of an example's part of the joint gradient."""
    model = filled(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))
    )
    x, y, n = normal(5, 3), torch.tensor([0, 1, 1, 0, 1]), 5
    engine = Engine(model)
    engine.begin(NEEDS)
    h = model[0](x)
    back: list[Tensor] = []
    h.register_hook(back.append)  # the last pass is the user's
    losses = F.cross_entropy(model[2](model[1](h)), y, reduction="none")
    observed = finished(engine, losses)
    assert {name: c.way for name, c in engine.coverage.items() if name[0] != "0"} == dict.fromkeys(
        ["1.weight", "1.bias", "2.weight", "2.bias"], Way.FORMULA
    )
    assert engine.coverage["0.weight"] == Coverage(Way.ROWS, BATCHNORM)
    rows = n * back[-1][:, :, None] * x[:, None, :]  # ∂(Σℓ)/∂h_i, times what example i put in
    found = observed.table.by_parameter(Norm2())["0.weight"]
    torch.testing.assert_close(found, rows.flatten(1).square().sum(1), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(observed.table.by_parameter(Total())["0.weight"], rows.sum(0))


def test_batch_norm_couples_only_while_it_uses_the_batch() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3))
    assert couples_examples(model)
    assert not couples_examples(model.eval())
    assert couples_examples(nn.BatchNorm1d(3, track_running_stats=False).eval())
    assert not couples_examples(nn.Linear(2, 2))


# -- where the examples lie ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrange", "layout"),
    [
        (lambda x: x, Layout(0)),
        (lambda x: x.transpose(0, 1), Layout(1)),
        (lambda x: x.reshape(-1, 3), Layout(0)),
        (lambda x: x.transpose(0, 1).reshape(-1, 3), Layout(0, minor=True)),
    ],
    ids=["[N, T, d]", "[T, N, d]", "[N·T, d]", "[T·N, d]"],
)
@pytest.mark.parametrize("n", [4, 3])
def test_the_axis_of_the_examples_is_found(
    arrange: Callable[[Tensor], Tensor], layout: Layout, n: int
) -> None:
    """Four tokens each, also where that is the number of examples, and nothing in the shapes tells."""
    model = filled(nn.Linear(3, 2))
    x = normal(n, 4, 3)

    def losses() -> Tensor:
        y = torch.tanh(model(arrange(x)))
        if layout.axis == 1:
            return y.square().sum((0, 2))
        if y.ndim == 2:
            y = y.unflatten(0, (-1, n)).transpose(0, 1) if layout.minor else y.unflatten(0, (n, -1))
        return y.square().sum((1, 2))

    engine = Engine(model)
    ways = seen(model, losses, engine)
    assert {c.way for c in ways.values()} == {Way.FORMULA}
    (plan,) = engine.passes.plans._plans.values()
    assert list(plan.layouts.values()) == [(layout,)]


def test_no_axis_can_be_the_examples() -> None:
    """A layer that sees one example at a time is not served by its formula, and says so."""
    model = filled(nn.Linear(3, 2))
    ways = seen(model, lambda: torch.stack([model(row).square().sum() for row in normal(4, 3)]))
    assert ways["weight"] == Coverage(Way.VMAP, "no axis of its layer's output can be the examples")


# -- formulas that are not to be trusted ---------------------------------------------------------------


class Own(nn.Module):
    """A linear map with a formula that a test gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.4 * normal(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def right(call: Call) -> dict[str, Part]:
    a, b = call.split(call.input, 1), call.split(call.grad, 1)
    return {"weight": Dense(torch.einsum("nto,nti->noi", b, a))}


def doubled(call: Call) -> dict[str, Part]:
    return {"weight": Dense(2 * right(call)["weight"].dense(0, call.examples))}


def shuffled(call: Call) -> dict[str, Part]:
    """The right sum, from the wrong examples: only uneven weights notice."""
    return {"weight": Dense(right(call)["weight"].dense(0, call.examples).roll(1, 0))}


def raising(call: Call) -> dict[str, Part]:
    raise ArithmeticError("out of numbers\nand more")


@pytest.mark.parametrize(
    ("parts", "coverage"),
    [
        (right, Coverage(Way.FORMULA)),
        (doubled, Coverage(Way.VMAP, INCOMPLETE)),
        (shuffled, Coverage(Way.VMAP, INCOMPLETE)),
        (lambda call: {}, Coverage(Way.VMAP, "no layer formula covers it")),
        (raising, Coverage(Way.VMAP, "out of numbers")),
    ],
    ids=["right", "doubled", "shuffled", "silent", "raising"],
)
def test_a_wrong_formula_is_detected_and_not_used(
    parts: Callable[[Call], dict[str, Part]], coverage: Coverage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMULAS, Own, None)
    formula(Own)(parts)
    model = Own()
    ways = seen(model, lambda: torch.tanh(model(normal(4, 3))).square().sum(1))
    assert ways["weight"] == coverage


def test_a_formula_may_refuse_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMULAS, Own, None)
    formula(Own, refuses=lambda module, args, kwargs: "not this one")(right)
    model = Own()
    ways = seen(model, lambda: torch.tanh(model(normal(4, 3))).square().sum(1))
    assert ways["weight"] == Coverage(Way.VMAP, "not this one")


class Late(nn.Module):
    """A layer that is also used past its module, behind a gate that opens later."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate = nn.Linear(3, 3), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.gate * (self.body(x) + F.linear(x.square(), self.body.weight))


def test_a_gradient_of_zero_proves_nothing() -> None:
    """Behind a zero (a new head, a residual gate) every formula is right; it is not when the zero is gone."""
    model = filled(Late())
    engine = Engine(model)

    def losses() -> Tensor:
        return torch.tanh(model(normal(4, 3))).sum(1)

    with torch.no_grad():
        model.gate.zero_()
    engine.begin(NEEDS)
    finished(engine, losses())
    with torch.no_grad():
        model.gate.fill_(0.7)
    ways = seen(model, losses, engine)
    assert ways["body.weight"].way is not Way.FORMULA


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_broken_batch_teaches_nothing(bad: float) -> None:
    """NaN agrees with nothing; the formulas are right all the same from the next batch on."""
    model = filled(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    engine = Engine(model)
    x = normal(4, 3)
    x[1, 2] = bad
    engine.begin(NEEDS)
    finished(engine, model(x).square().sum(1))
    ways = seen(model, lambda: model(normal(4, 3)).square().sum(1), engine)
    assert {c.way for c in ways.values()} == {Way.FORMULA}


# -- plans ---------------------------------------------------------------------------------------------


def test_plans_are_made_once_for_a_shape_of_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counted(Examination):
        def __init__(self, *args: Any) -> None:
            made.append(1)
            super().__init__(*args)

    monkeypatch.setattr(plans, "Examination", Counted)
    p = problem("mlp_dropout")
    model = p.build()
    engine = Engine(model)

    def watched(n: int) -> int:
        engine.begin(NEEDS)
        with torch.random.fork_rng():
            torch.manual_seed(
                0
            )  # where all units are dropped, gradients vanish, and the pass is examined again
            losses = p.losses(model, *p.batch(n))
        finished(engine, losses)
        return len(made)

    for n, count in ((4, 1), (7, 1), (4, 1), (1, 2), (1, 2)):
        assert watched(n) == count, f"{n} examples"
    model.eval()
    assert watched(4) == 3, "another mode is another forward pass"
    model[0].weight.requires_grad_(False)
    assert watched(4) == 4, "other parameters are other questions"
    model.train()
    model[0].weight.requires_grad_(True)
    assert watched(4) == 4


def test_without_losses_formulas_are_checked_by_their_sum() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Scale(torch.mul)).double()
    parameters = dict(model.named_parameters())
    plan = shape_plan(model, parameters, "for a reason")
    assert not plan.checked
    assert plan.names(Way.FORMULA) == ["0.weight", "0.bias"]
    assert plan.ways["1.weight"].way is Way.NONE
    assert all(c.reason.endswith(": for a reason") for c in plan.ways.values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sums_are_confirmed_within_the_dtype(dtype: torch.dtype) -> None:
    g = normal(4, 3)
    assert confirmed(g.to(dtype), g.to(dtype))
    assert not confirmed(1.5 * g.to(dtype), g.to(dtype))
    assert confirmed(None, None)
    assert confirmed(None, torch.zeros(2, dtype=dtype))
    assert confirmed(torch.zeros(2, dtype=dtype), None)
    assert not confirmed(None, g.to(dtype))
    assert not confirmed(g.to(dtype), None)


@pytest.mark.parametrize("n", [1, 2, 100])
def test_probe_weights_are_uneven_and_fixed(n: int) -> None:
    state = torch.get_rng_state()
    w = probe_weights(torch.zeros(n, dtype=torch.float64))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(w, probe_weights(torch.ones(n, dtype=torch.float64)))
    assert len(set(w.tolist())) == n
    assert bool(((w.abs() >= 0.5) & (w.abs() <= 1)).all())
    assert n < 100 or 30 < int((w > 0).sum()) < 70


class NormInFloat32(nn.Module):
    """A norm that computes in float32 whatever it is given, as those of many language models do."""

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def test_rounding_inside_the_model_is_not_held_against_a_formula(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 6), NormInFloat32(), nn.Linear(6, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Cockpit(model, optimizer, quantities=["norm_test"], run=tmp_path) as cockpit:
        losses = nn.functional.cross_entropy(model(normal(5, 4)), torch.arange(5) % 3, reduction="none")
        cockpit.backward(losses)
        optimizer.step()
        assert {way for way, _ in cockpit.coverage.values()} == {"formula"}
