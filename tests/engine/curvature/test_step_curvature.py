"""The curvature of a step: micro-batches, gaps, Hessians that are none, and graphs that are kept."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine.answers.observed import Observed
from cockpit.engine.curvature import diagonals, eigenvalues, measuring
from cockpit.engine.curvature.hessian import HessianProduct
from cockpit.engine.derivatives.graph import graphs_kept
from cockpit.engine.engine import Engine
from cockpit.engine.needs import Diagonal, DiagonalVariance, Need, TopEigenvalue
from cockpit.errors import Gap
from cockpit.testing import Problem, problem
from reference.autograd import ggn_diagonal, hessian

TOP, BLOCKS = TopEigenvalue(1e-10, 500), TopEigenvalue(1e-10, 500, blocks=True)


def step(
    engine: Engine, p: Problem, needs: Iterable[Need], sizes: Sequence[int], number: int = 0
) -> Observed:
    """One step of some micro-batches; the model does not move."""
    engine.begin(frozenset(needs))
    engine.model.zero_grad()
    for inputs, targets in p.split(p.batch(sum(sizes), number), sizes):
        losses = p.losses(engine.model, inputs, targets)
        engine.enter(losses)
        losses.mean().backward()
        del losses
        engine.leave()
    engine.before_update()
    observed = engine.finish(moved=False)
    assert observed is not None
    engine.begin(frozenset())  # nothing is asked of the next step: attention is torch's own again
    return observed


def dense(p: Problem, model: nn.Module, n: int, number: int = 0) -> Tensor:
    losses = p.losses(model, *p.batch(n, number))
    return torch.from_numpy(hessian(losses.mean(), list(model.parameters())))


def top(observed: Observed, need: TopEigenvalue = TOP) -> dict[str, float]:
    found = observed.eigenvalues[need]
    assert not isinstance(found, Gap), found
    assert all(pair.vector.numel() == 0 and pair.carried is None for pair in found.values()), "numbers only"
    return {scope: pair.value for scope, pair in found.items()}


@pytest.mark.parametrize("sizes", [[6], [2, 4], [1, 1, 4]])
def test_the_eigenvalue_is_that_of_the_joined_batch(sizes: list[int]) -> None:
    """At the first step nobody knows how many micro-batches come; later the number is known."""
    p = problem("mlp_tanh")
    engine = Engine(p.build())
    for number in range(2):
        found = top(step(engine, p, [TOP], sizes, number))
        assert found[""] == pytest.approx(
            float(torch.linalg.eigvalsh(dense(p, engine.model, 6, number))[-1]), rel=1e-7
        )


def test_eigenvalues_of_blocks() -> None:
    p = problem("mlp_tanh")
    engine = Engine(p.build())
    found = top(step(engine, p, [TOP, BLOCKS], [2, 3]), BLOCKS)
    H, start = dense(p, engine.model, 5), 0
    for name, parameter in engine.model.named_parameters():
        block = H[start : start + parameter.numel(), start : start + parameter.numel()]
        assert found[name] == pytest.approx(float(torch.linalg.eigvalsh(block)[-1]), rel=1e-6, abs=1e-10)
        start += parameter.numel()


def test_more_micro_batches_than_expected_are_a_gap_once() -> None:
    p = problem("mlp_tanh")
    engine = Engine(p.build())
    step(engine, p, [TOP], [6])
    surprised = step(engine, p, [TOP], [3, 3], 1).eigenvalues[TOP]
    assert isinstance(surprised, Gap)
    assert str(surprised).startswith("needs_full_batch")
    for sizes, number in (([3, 3], 2), ([6], 3)):
        expected = float(torch.linalg.eigvalsh(dense(p, engine.model, 6, number))[-1])
        assert top(step(engine, p, [TOP], sizes, number))[""] == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("sizes", [[6], [2, 4]])
def test_diagonals_add_over_micro_batches(sizes: list[int]) -> None:
    p = problem("mlp_tanh")
    engine = Engine(p.build())
    needs = [Diagonal("diag_h"), Diagonal("diag_ggn_exact")]
    observed = step(engine, p, needs, sizes)
    parameters = list(engine.model.parameters())
    inputs, targets = p.batch(6)
    ggn = ggn_diagonal(engine.model(*inputs), lambda f: p.criterion(f, targets).mean(), parameters)
    for need, expected in zip(needs, (dense(p, engine.model, 6).diagonal(), ggn), strict=True):
        found = observed.table.by_parameter(need)
        flat = torch.cat([found[name].flatten() for name, _ in engine.model.named_parameters()]) / 6
        torch.testing.assert_close(flat, torch.as_tensor(expected), rtol=1e-8, atol=1e-12)
    assert observed.methods[needs[1]] == "ggn"


def test_variances_of_estimates_add() -> None:
    """One parameter, so that the whole model's variance is its own; also after a micro-batch was taken back."""
    p = problem("no_bias")
    engine = Engine(p.build())
    need = Diagonal("diag_ggn_mc", 3)
    engine.begin(frozenset({need, DiagonalVariance(need)}))
    for taken in (True, False, True):
        losses = p.losses(engine.model, *p.batch(4))
        engine.enter(losses)
        if taken:
            losses.mean().backward()
        engine.leave()
    observed = engine.finish(moved=False)
    engine.close()
    assert observed is not None
    assert type(observed.variances[need]) is float
    assert observed.variances[need] > 0
    by_parameter = observed.table.by_parameter(DiagonalVariance(need))["weight"]
    assert observed.variances[need] == pytest.approx(float(by_parameter), rel=1e-10)


def test_monte_carlo_draws_are_private_seeded_and_go_on() -> None:
    p, need = problem("mlp"), Diagonal("diag_ggn_mc", 1)

    def traces(seed: int, state: dict[str, Any] | None = None, steps: int = 2) -> list[float]:
        engine = Engine(p.build(), seed=seed)
        if state is not None:
            engine.load_state(state)
        found = []
        for _ in range(steps):
            table = step(engine, p, [need], [5]).table
            found.append(float(sum(d.sum() for d in table.by_parameter(need).values())))
        states.append(engine.state())
        return found

    states: list[dict[str, Any]] = []
    before = torch.get_rng_state()
    first = traces(0)
    assert torch.equal(torch.get_rng_state(), before)
    assert first[0] != first[1], "each step draws anew"
    assert traces(0) == first
    assert traces(1) != first
    one = traces(0, steps=1)
    assert traces(0, states[-1], steps=1) == first[1:]
    assert one == first[:1]


def test_an_asymmetric_hessian_is_refused_and_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second derivative of torch's own weight normalisation is wrong."""
    asked = []
    original = measuring.insist_symmetric
    monkeypatch.setattr(measuring, "insist_symmetric", lambda *a: asked.append(1) or original(*a))
    p = problem("weight_norm")
    engine = Engine(p.build())
    for number in range(2):
        observed = step(engine, p, [TOP, Diagonal("diag_h"), Diagonal("diag_ggn_exact")], [5], number)
        for found in (observed.eigenvalues[TOP], observed.methods[Diagonal("diag_h")]):
            assert isinstance(found, Gap)
            assert str(found).startswith("asymmetric")
        assert observed.methods[Diagonal("diag_ggn_exact")] == "ggn", "needs no second derivative of the net"
    assert asked == [1]


def test_a_symmetric_hessian_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = measuring.insist_symmetric
    monkeypatch.setattr(measuring, "insist_symmetric", lambda *a: asked.append(1) or original(*a))
    p = problem("mlp_tanh")
    engine = Engine(p.build())
    for _ in range(3):
        top(step(engine, p, [TOP, Diagonal("diag_h")], [5]))
    assert asked == [1]


def test_one_gradient_graph_serves_all_who_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The diagonal, the eigenvalue and those of the blocks are of one Hessian, once all is known.

    (That a step is one batch, and that the diagonal is not the GGN's.)
    """
    p = problem("mlp_tanh")
    engine = Engine(p.build())
    step(engine, p, [TOP, Diagonal("diag_h")], [5])
    made = []
    original = HessianProduct.__init__
    monkeypatch.setattr(HessianProduct, "__init__", lambda *a: made.append(1) or original(*a))
    observed = step(engine, p, [TOP, BLOCKS, Diagonal("diag_h")], [5])
    assert made == [1]
    monkeypatch.undo()
    assert top(observed)[""] == pytest.approx(
        float(torch.linalg.eigvalsh(dense(p, engine.model, 5))[-1]), rel=1e-7
    )


def test_what_fails_is_a_gap_and_the_pass_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(eigenvalues, "top_eigenpair", broken)
    monkeypatch.setattr(diagonals, "ggn_diagonal", broken)
    p = problem("mlp")
    engine = Engine(p.build())
    observed = step(engine, p, [TOP, Diagonal("diag_ggn_exact")], [5])
    for found in (observed.eigenvalues[TOP], observed.methods[Diagonal("diag_ggn_exact")]):
        assert isinstance(found, Gap)
        assert str(found) == "failed: ZeroDivisionError: ours"
    assert all(parameter.grad is not None for parameter in engine.model.parameters())


def test_a_warm_start_survives_a_checkpoint() -> None:
    p, need = problem("mlp_tanh"), TopEigenvalue(1e-6, 500)
    engine = Engine(p.build())
    cold = step(engine, p, [need], [6]).eigenvalues[need][""]
    again = Engine(p.build())
    again.load_state(engine.state())
    warm = step(again, p, [need], [6]).eigenvalues[need][""]
    assert warm.products < cold.products
    assert warm.value == pytest.approx(cold.value, rel=1e-9)
    again.close()
    assert again.state()["curvatures"]["vectors"] == {}


def test_attention_is_replaced_only_while_curvature_is_asked_for() -> None:
    gc.collect()  # engines of other tests that nobody closed
    plain = F.scaled_dot_product_attention
    engine = Engine(problem("mlp").build())
    for end in (lambda: engine.begin(frozenset()), engine.close):
        engine.begin(frozenset({TOP}))
        assert F.scaled_dot_product_attention is not plain
        end()
        assert F.scaled_dot_product_attention is plain


# -- kept graphs ---------------------------------------------------------------------------------------


def graph() -> Tensor:
    return torch.ones(2, requires_grad=True).exp().sum()


@pytest.mark.parametrize(
    "backward",
    [
        lambda x: x.backward(),
        lambda x: x.backward(retain_graph=False),
        lambda x: torch.autograd.backward(x),
        lambda x: torch.autograd.backward(x, None, False),
        lambda x: torch.autograd.backward([x], grad_tensors=[torch.ones(())]),
    ],
    ids=["method", "method, not kept", "function", "by position", "by name"],
)
def test_graphs_are_kept_inside_the_block_only(backward: Any) -> None:
    original = torch.autograd.backward
    with graphs_kept():
        x = graph()
        backward(x)
        backward(x)
    assert torch.autograd.backward is original
    backward(x)
    with pytest.raises(RuntimeError, match="second time"):
        backward(x)


def test_the_function_is_put_back_after_an_exception_and_nests() -> None:
    original = torch.autograd.backward
    with pytest.raises(KeyError), graphs_kept(), graphs_kept():
        raise KeyError("user")
    assert torch.autograd.backward is original


def test_inputs_and_graphs_of_gradients_pass_through() -> None:
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with graphs_kept(), pytest.warns(UserWarning, match="create_graph"):
        (a.square() * b).sum().backward(inputs=[a], create_graph=True)
    assert b.grad is None
    assert a.grad is not None
    assert a.grad.requires_grad
    a.grad = None
