"""Positions and tokens that all examples share: found in the graph, compared with autograd, and what is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine.answers.requests import MEAN
from cockpit.engine.coverage import spread
from cockpit.engine.coverage.coverage import Way
from cockpit.engine.engine import Engine
from cockpit.engine.needs import Diagonal
from cockpit.engine.statistics import Norm2, SquareSum, Total
from engine.shared_parameters import LENGTH, SHARED, WIDTH, Positions, Raw
from layer_check import by_autograd, filled, normal


@pytest.mark.parametrize("examples", [1, 2, LENGTH, 2 * LENGTH], ids=lambda n: f"{n} examples")
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("own", [True, False], ids=["own", "watched"])
def test_rows_where_they_are_apart(name: str, examples: int, own: bool) -> None:
    build, expected = SHARED[name]
    model = filled(build())
    engine = Engine(model)
    for step in range(3):
        model.zero_grad()
        engine.begin(frozenset({Norm2(), Total(), SquareSum(), MEAN}))
        losses = model(normal(examples, LENGTH, WIDTH, seed=step)).square().sum((1, 2))
        truth = by_autograd(model, losses)
        engine.enter(losses, own)
        (losses.mean() if own else losses.sum()).backward()
        engine.leave()
        engine.before_update()
        observed = engine.finish(moved=False)
        assert observed is not None
        for parameter, G in truth.items():
            rows = G.flatten(1)
            close = torch.testing.assert_close
            table = observed.table
            close(table.by_parameter(Norm2())[parameter], rows.square().sum(1), rtol=1e-9, atol=1e-12)
            close(table.by_parameter(Total())[parameter], G.sum(0), rtol=1e-9, atol=1e-12)
            close(table.by_parameter(SquareSum())[parameter], G.square().sum(0), rtol=1e-9, atol=1e-12)
            close(table.by_parameter(MEAN)[parameter], rows @ rows.mean(0), rtol=1e-9, atol=1e-12)
    found = {n for n, c in engine.coverage.items() if c.way is Way.SPREAD}
    if examples > 1:  # a single example is right in every way
        assert found == expected


def test_no_hook_is_left_behind() -> None:
    model = filled(Positions())
    engine = Engine(model)
    engine.begin(frozenset({Norm2()}))
    losses = model(normal(2, LENGTH, WIDTH)).square().sum((1, 2))
    engine.enter(losses, own=True)
    losses.mean().backward(retain_graph=True)
    engine.leave()
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    losses.mean().backward()  # somebody else's
    after = [p.grad for p in model.parameters() if p.grad is not None]
    for a, b in zip(after, before, strict=True):
        torch.testing.assert_close(a, 2 * b)


def test_a_graph_that_changed_is_a_gap() -> None:
    """The plan was made for a sum; from now on it is a product, under the same layers."""

    class Changing(Raw):
        summed = True

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.table + x if self.summed else self.table * x))

    model = filled(Changing(LENGTH, WIDTH))
    engine = Engine(model)
    for summed in (True, False):
        model.summed = summed  # type: ignore[assignment]
        model.zero_grad()
        engine.begin(frozenset({Norm2()}))
        losses = model(normal(2, LENGTH, WIDTH)).square().sum((1, 2))
        engine.enter(losses, own=True)
        losses.mean().backward()
        engine.leave()
        engine.before_update()
        observed = engine.finish(moved=False)
        assert observed is not None
        assert ("table" in observed.table.by_parameter(Norm2())) is summed


@pytest.mark.parametrize("name", [name for name, (_, shared) in SHARED.items() if shared])
def test_the_way_through_a_graph_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shared = SHARED[name]
    model = filled(make())
    engine = Engine(model)
    paths: dict[str, spread.Path] = {}
    searched = spread._searched
    searches = 0

    def counted(*args: Any) -> dict[str, spread.Spread]:
        nonlocal searches
        searches += 1
        return searched(*args)

    monkeypatch.setattr(spread, "_searched", counted)
    for wrapped in (False, False, True):
        engine.begin(frozenset({Norm2()}))
        losses = model(normal(2, LENGTH, WIDTH)).square().sum((1, 2))
        losses = losses.square().exp() if wrapped else losses
        parameters = {n: p for n, p in model.named_parameters() if n in shared}
        found = spread.spreads(losses, parameters, engine.capture.uses(), paths)
        expected = searched(losses.grad_fn, parameters, engine.capture.uses(), {})
        assert set(found) == shared
        assert [s.node for s in found.values()] == [expected[n].node for n in found]
        assert searches == 1 + wrapped, "another graph is searched again"
        engine.abandon()


def test_curvature_beside_it() -> None:
    model = filled(Positions())
    engine = Engine(model)
    need = Diagonal("diag_ggn_exact")
    engine.begin(frozenset({need, Norm2()}))
    x = normal(2, LENGTH, WIDTH)
    losses = nn.functional.mse_loss(model(x), torch.zeros(2, LENGTH, 2, dtype=x.dtype), reduction="none").sum(
        (1, 2)
    )
    engine.enter(losses, own=True)
    losses.mean().backward()
    engine.leave()
    engine.before_update()
    observed = engine.finish(moved=False)
    assert observed is not None
    engine.close()
    outputs = model(x)
    rows = torch.zeros_like(model.table.weight)
    for n in range(2):
        for value in outputs[n].flatten():
            (g,) = torch.autograd.grad(value, model.table.weight, retain_graph=True)
            rows += 2 * g.square()
    torch.testing.assert_close(observed.table.by_parameter(need)["table.weight"], rows, rtol=1e-9, atol=1e-12)
