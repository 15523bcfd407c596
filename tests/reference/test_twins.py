"""The twins are tested, too: identities between quantities and closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from torch import nn

from cockpit.testing import Batch, Problem, objective, problem, problems
from reference import noise
from reference.counts import histogram_1d, histogram_2d, total
from reference.twins import train


def sgd(rate: float = 0.1) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=rate)


def exactly(value: float, rel: float = 1e-10) -> object:
    return pytest.approx(value, rel=rel, abs=1e-14)


@pytest.mark.parametrize("p", problems(), ids=lambda p: p.name)
def test_identities_hold_in_the_whole_zoo(p: Problem) -> None:
    twin = train(p, sgd(), [[4], [2, 3]])
    for step, B in enumerate((4, 5)):
        n, i, o = (twin.value(step, f"{k}_test") for k in ("norm", "inner", "ortho"))
        assert n**2 == exactly(i**2 + o**2)
        seen, L, g = twin.steps[step], twin.value(step, "loss"), twin.value(step, "grad_norm")
        assert len(seen.losses) == B
        assert twin.value(step, "cabs") == exactly(0.1 * (B - 1) * g**2 * n**2 / L)
        assert (seen.joined() ** 2).sum() / B == exactly(g**2 * (1 + (B - 1) * n**2))
        D = seen.joined().shape[1]
        assert total(twin.value(step, "grad_hist1d")) == total(twin.value(step, "grad_hist2d")) == B * D
        for norm in ("grad_norm", "distance", "update_size"):
            parts = [twin.value(step, norm, k) for k in twin.scopes(step, norm)]
            assert twin.value(step, norm) == exactly(np.linalg.norm(parts))
        counts = [twin.value(step, "grad_hist1d", k)["counts"] for k in twin.scopes(step, "grad_hist1d")]
        assert (sum(counts) == twin.value(step, "grad_hist1d")["counts"]).all()
    assert twin.value(0, "distance") == 0
    assert twin.value(1, "distance") == exactly(twin.value(0, "update_size"))
    for name in twin.scopes(0, "update_size"):
        assert twin.value(0, "update_size", name) == exactly(0.1 * twin.value(0, "grad_norm", name), 1e-9)


@pytest.mark.parametrize("name", ["mlp", "conv2d", "linear_3d", "tied_modules", "unused", "frozen"])
def test_curvature_adds_up(name: str) -> None:
    twin = train(problem(name), sgd(), [[5]], curvature=True)
    for kind in ("diag_h", "diag_ggn_exact"):
        for quantity in (f"hess_trace:{kind}", f"tic_diag:{kind}"):
            assert twin.value(0, quantity) == exactly(
                sum(twin.value(0, quantity, k) for k in twin.scopes(0, quantity)), 1e-8
            )
        n, g = twin.value(0, "norm_test"), twin.value(0, "grad_norm")
        curved = twin.value(0, f"tic_trace:{kind}") * (twin.value(0, f"hess_trace:{kind}") + 1e-7)
        assert curved == exactly(g**2 * (1 + 4 * n**2))
    if name in ("mlp", "conv2d", "unused", "frozen"):  # piecewise linear: nothing but the Gauss-Newton matrix
        ggn, h = (twin.value(0, f"hess_trace:{k}") for k in ("diag_ggn_exact", "diag_h"))
        assert ggn == exactly(h)


def test_early_stopping_is_one_minus_gsnr_without_epsilon() -> None:
    G = np.random.default_rng(0).normal(0.3, 1, (7, 50))
    assert noise.early_stopping(G, True, 0.0)[0] == exactly(1 - 6 * noise.mean_gsnr(G, 0.0)[0], 1e-12)


def test_gradient_marginal_of_two_dimensions_is_one_dimension() -> None:
    G, theta = np.random.default_rng(0).normal(0, 1, (6, 40)), np.linspace(-3, 3, 40)
    G[0, :3] = np.nan, np.inf, -np.inf
    one, two = histogram_1d(G, 40, (-1.0, 1.0)), histogram_2d(G, theta)
    assert (two["counts"].sum(1) == one["counts"]).all()
    assert [two[k] for k in ("underflow", "overflow", "nan", "inf")] == [
        one[k] for k in ("underflow", "overflow", "nan", "inf")
    ]
    assert total(one) == total(two) == 240
    assert (one["nan"], one["inf"]) == (1, 2)


def test_softmax_regression_at_zero() -> None:
    twin = train(problem("logreg"), sgd(), [[8]], curvature=True)
    (x,), _ = problem("logreg").batch(8)
    wide = np.concatenate([x.numpy(), np.ones((8, 1))], 1)
    S = wide.T @ wide / 8
    assert twin.value(0, "loss") == exactly(log(3), 1e-12)
    assert twin.value(0, "hess_trace:diag_h") == exactly((1 - 1 / 3) * np.trace(S), 1e-12)
    assert twin.value(0, "hess_max_ev") == exactly(np.linalg.eigvalsh(S)[-1] / 3, 1e-12)
    lengths = (twin.steps[0].joined() ** 2).sum(1)
    np.testing.assert_allclose(lengths, (1 - 1 / 3) * (wide**2).sum(1), rtol=1e-12)


def test_least_squares_in_closed_form() -> None:
    p = replace(
        problem("least_squares"),
        module=lambda: nn.Linear(6, 1, bias=False),
        criterion=lambda f, y: 0.5 * (f[:, 0] - y[:, 0]) ** 2,
    )
    twin = train(p, sgd(), [[8]], curvature=True)
    (x,), y = p.batch(8)
    X, w = x.numpy(), twin.value(0, "parameters", "weight")[0]
    G = (X @ w - y[:, 0].numpy())[:, None] * X
    H = X.T @ X / 8
    np.testing.assert_allclose(twin.steps[0].joined(), G, rtol=1e-12)
    assert twin.value(0, "hess_max_ev") == exactly(np.linalg.eigvalsh(H)[-1], 1e-12)
    assert twin.value(0, "tic_diag:diag_h") == exactly(((G**2).mean(0) / (np.diag(H) + 1e-7)).sum(), 1e-12)
    assert twin.value(0, "norm_test") == exactly(
        np.sqrt(G.var(0, ddof=1).sum() / 8) / np.linalg.norm(G.mean(0))
    )


def test_alpha_of_a_noise_free_quadratic() -> None:
    p = replace(problem("least_squares"), name="all alike", draw=alike(problem("least_squares").draw))
    for optimizer in (sgd(0.3), lambda m: torch.optim.Adam(m.parameters(), lr=0.1)):
        twin = train(p, optimizer, [[4], [4], [2]], curvature=True)
        s = [(twin.steps[1].parameters[k] - twin.steps[0].parameters[k]).ravel() for k in ("weight", "bias")]
        (x,), _ = p.batch(1)
        wide = np.append(x.numpy()[0], 1.0)
        step = np.concatenate([s[0].reshape(4, 6), s[1].reshape(4, 1)], 1)
        curved = ((step @ wide) ** 2).sum() * 2 / 4
        slope = twin.steps[0].joined().mean(0) @ np.concatenate(s)
        assert twin.value(0, "alpha") == pytest.approx(-curved / slope - 1, rel=1e-9)


def alike(draw: Callable[[int, torch.Generator], Batch]) -> Callable[[int, torch.Generator], Batch]:
    """The same example over and over, at every step."""

    def same(n: int, _: torch.Generator) -> Batch:
        (x,), y = draw(1, torch.Generator().manual_seed(3))
        return (x.expand(n, -1),), y.expand(n, -1)

    return same


class Twofold(Problem):
    """Every example twice, in reverse order."""

    def batch(self, n: int, step: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
        inputs, targets = super().batch(n // 2, step, dtype)
        return tuple(torch.cat([x, x]).flip(0) for x in inputs), torch.cat([targets, targets]).flip(0)


def test_every_example_twice() -> None:
    p = problem("mlp_tanh")
    twofold = Twofold(p.name, p.module, p.draw, p.criterion)
    once, twice = (train(q, sgd(), [[n]], curvature=True) for q, n in ((p, 5), (twofold, 10)))
    for name in (
        "loss",
        "grad_norm",
        "cabs",
        "mean_gsnr",
        "hess_max_ev",
        "hess_trace:diag_h",
        "tic_diag:diag_h",
    ):
        assert twice.value(0, name) == exactly(once.value(0, name), 1e-8)
    assert twice.value(0, "norm_test") ** 2 == exactly(once.value(0, "norm_test") ** 2 * 4 / 9)
    assert (twice.value(0, "grad_hist1d")["counts"] == 2 * once.value(0, "grad_hist1d")["counts"]).all()


def test_loss_times_a_constant_with_the_same_step() -> None:
    p = problem("mlp_tanh")
    larger = replace(p, criterion=lambda f, y: 7 * p.criterion(f, y))
    plain, scaled = (train(q, sgd(r), [[5], [5]], curvature=True) for q, r in ((p, 0.1), (larger, 0.1 / 7)))
    for name in ("norm_test", "inner_test", "ortho_test", "alpha", "update_size"):
        assert scaled.value(0, name) == exactly(plain.value(0, name), 1e-9)
    for name in ("grad_norm", "hess_max_ev", "hess_trace:diag_h", "hess_trace:diag_ggn_exact"):
        assert scaled.value(0, name) == exactly(7 * plain.value(0, name), 1e-9)
    # CABS grows with c² from σ², falls with c from L and with c from the smaller rate that keeps the step.
    assert scaled.value(0, "cabs") == exactly(plain.value(0, "cabs"), 1e-9)
    assert scaled.value(0, "tic_trace:diag_h") == pytest.approx(
        7 * plain.value(0, "tic_trace:diag_h"), rel=1e-6
    )
    gsnr = [noise.mean_gsnr(twin.steps[0].joined(), 0.0)[0] for twin in (plain, scaled)]
    assert gsnr[0] == exactly(gsnr[1], 1e-9)


def test_micro_batches_are_joined() -> None:
    for name in ("mlp", "conv2d", "gpt", "batch_second", "rnn_packed", "experts", "checkpoint_reentrant"):
        whole, split = (
            train(problem(name), sgd(0.01), chunks, "sum") for chunks in ([[6], [6]], [[1, 3, 2], [4, 2]])
        )
        for quantity in ("loss", "grad_norm", "norm_test", "update_size", "alpha", "mean_gsnr"):
            assert split.value(0, quantity) == exactly(whole.value(0, quantity), 1e-8), (name, quantity)


def test_weighting_changes_the_path_but_not_the_formulas() -> None:
    twins = {
        w: train(problem("mlp"), sgd(1e-3), [[6], [6]], w) for w in ("mean", "sum", "scaled", "weighted")
    }
    first = {twin.value(0, "norm_test") for twin in twins.values()}
    assert len(first) == 1
    assert twins["sum"].value(0, "update_size") == exactly(6 * twins["mean"].value(0, "update_size"), 1e-9)
    assert twins["scaled"].value(0, "update_size") == exactly(
        1024 * twins["mean"].value(0, "update_size"), 1e-9
    )
    assert twins["weighted"].value(1, "loss") != twins["mean"].value(1, "loss")


@pytest.mark.parametrize("name", ["mlp_dropout", "transformer_dropout", "characters", "checkpoint_reentrant"])
def test_the_twin_trains_like_a_plain_loop(name: str) -> None:
    p = problem(name)
    before = torch.get_rng_state()
    twin = train(p, sgd(), [[2, 3], [4]], "weighted", seed=11)
    assert torch.equal(before, torch.get_rng_state())
    model = p.build()
    optimizer = sgd()(model)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(11)
        for step, sizes in enumerate([[2, 3], [4]]):
            optimizer.zero_grad()
            for inputs, targets in p.split(p.batch(sum(sizes), step), sizes):
                objective(p.losses(model, inputs, targets), "weighted").backward()
            optimizer.step()
    assert all(torch.equal(twin.final[k], v) for k, v in model.named_parameters())
