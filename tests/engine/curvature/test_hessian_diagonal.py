from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit.engine.curvature.ggn import ggn_diagonal
from cockpit.engine.curvature.hessian import DiagonalResult, HessianProduct
from cockpit.engine.curvature.hessian_diagonal import PROOFS, Agreement, hessian_diagonal
from cockpit.engine.curvature.lanczos import top_eigenpair
from cockpit.engine.curvature.loss_graph import LossGraph
from cockpit.engine.curvature.loss_kinds import root_of
from cockpit.errors import Gap
from curvature_problems import F64, cross_entropy, dense_hessian, forward, mlp, problem, square_sums


def joined(by_parameter: dict[str, Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1) for x in by_parameter.values()])


def measure(model: nn.Module, x: Tensor, y: Tensor, **settings: object):
    output = model(x)
    losses = cross_entropy(output, y)
    return hessian_diagonal(
        losses,
        dict(model.named_parameters()),
        torch.Generator().manual_seed(0),
        (output,),
        exact(model, losses, output),
        **settings,
    )


def exact(model: nn.Module, losses: Tensor, output: Tensor) -> Callable[[], DiagonalResult]:
    return lambda: ggn_diagonal(root_of(LossGraph(losses, (output,))), square_sums(model, len(losses)))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.Hardtanh])
def test_piecewise_linear_nets_use_the_ggn(activation):
    _, x, y, loss = problem("ce")
    model = mlp(activation)
    result, agreement = measure(model, x, y)
    assert result.method == "hessian=ggn"
    assert result.standard_error is None
    assert agreement.confirmed == set(dict(model.named_parameters()))
    expected = dense_hessian((model, x, y, loss)).diagonal()
    torch.testing.assert_close(joined(result.by_parameter), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convolutions_with_pooling_use_the_ggn(dtype):
    _, x, y, _ = problem("conv")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)).to(
        dtype
    )
    result, _ = measure(model, x.to(dtype), y)
    assert result.method == "hessian=ggn"


@pytest.mark.parametrize("name", ["ce", "mse", "bce", "conv", "tokens"])
def test_curved_nets_of_few_parameters_are_exact(name):
    case = problem(name)
    model = case[0]
    result, _ = hessian_diagonal(forward(case), dict(model.named_parameters()), torch.Generator())
    assert result.method == "dense"
    expected = dense_hessian(case).diagonal()
    torch.testing.assert_close(joined(result.by_parameter), expected, rtol=1e-8, atol=1e-12)


def test_a_tanh_net_is_told_from_a_piecewise_linear_one():
    model, x, y, loss = problem("ce")
    result, agreement = measure(model, x, y)
    assert result.method == "dense"
    assert agreement.differ.startswith("not_piecewise_linear: in 0.")
    expected = dense_hessian((model, x, y, loss)).diagonal()
    torch.testing.assert_close(joined(result.by_parameter), expected, rtol=1e-8, atol=1e-12)


def test_a_weight_used_twice_is_told_from_one_used_once():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 4).to(F64)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x).relu())

    _, x, y, loss = problem("ce")
    model = Twice()
    result, agreement = measure(model, x, y)
    assert agreement.differ
    expected = dense_hessian((model, x, y, loss)).diagonal()
    torch.testing.assert_close(joined(result.by_parameter), expected, rtol=1e-8, atol=1e-12)


def test_blocks_that_vanish_at_first_are_compared_again_later():
    _, x, y, _ = problem("ce")
    model = mlp(nn.Tanh)
    nn.init.zeros_(model[2].weight)
    first, agreement = measure(model, x, y)
    assert first.method == "hessian=ggn"  # true at this point: the first layer has no curvature at all
    assert not {"0.weight", "0.bias"} & agreement.confirmed
    nn.init.normal_(model[2].weight, generator=torch.Generator().manual_seed(0))
    second, agreement = measure(model, x, y, agreement=agreement)
    assert second.method == "dense"
    assert agreement.differ


def test_a_confirmed_agreement_costs_a_comparison_at_powers_of_two():
    _, x, y, _ = problem("ce")
    model = mlp(nn.ReLU)
    parameters = dict(model.named_parameters())
    agreement, compared = None, []
    for turn in range(10):
        losses = cross_entropy(output := model(x), y)
        made = []

        def product(losses: Tensor = losses, made: list[HessianProduct] = made) -> HessianProduct:
            made.append(HessianProduct([(losses, 1.0)], parameters))
            return made[0]

        ggn = exact(model, losses, output)
        generator = torch.Generator().manual_seed(0)
        result, agreement = hessian_diagonal(
            losses, parameters, generator, (output,), ggn, agreement, product
        )
        assert result.method == "hessian=ggn"
        compared += [(turn, p.products) for p in made]
    assert compared == [(0, 1), (1, 1), (2, 1), (4, 1), (8, 1)]  # blocks are multiplied with by themselves


def test_another_graph_is_examined_anew():
    _, x, y, _ = problem("ce")
    model = mlp(nn.ReLU)
    _, agreement = measure(model, x, y)
    for _ in range(3):
        _, agreement = measure(model, x, y, agreement=agreement)
    model[1] = nn.Tanh()
    result, agreement = measure(model, x, y, agreement=agreement)
    assert agreement.differ
    assert result.method == "dense"
    model[1] = nn.ReLU()
    result, agreement = measure(model, x, y, agreement=agreement)
    assert result.method == "hessian=ggn"


def test_a_block_that_always_vanishes_is_compared_rarely_in_the_end():
    agreement = Agreement(confirmed=frozenset({"a"}), turn=PROOFS - 1)
    assert agreement.due(["a", "dead"]) == ["dead"]
    assert replace(agreement, turn=PROOFS + 1).due(["a", "dead"]) == []
    assert replace(agreement, turn=4 * PROOFS).due(["a", "dead"]) == ["a", "dead"]


def test_a_broken_batch_teaches_nothing():
    _, x, y, _ = problem("ce")
    model = mlp(nn.ReLU)
    bad = x.clone()
    bad[0, 0] = torch.nan
    with pytest.raises(Gap, match=r"^nonfinite"):
        measure(model, bad, y)
    output = model(x)
    losses = (output - output.detach()).abs().sqrt().sum(1)  # zero, but of infinite slope
    ggn = exact(model, losses, output)
    with pytest.raises(Gap, match=r"^nonfinite"):
        hessian_diagonal(losses, dict(model.named_parameters()), torch.Generator(), (output,), ggn)


def test_a_known_difference_is_not_examined_again():
    _, x, y, _ = problem("ce")
    model = mlp(nn.ReLU)
    result, agreement = measure(model, x, y, agreement=Agreement(differ="no_outputs: told so"))
    assert result.method == "dense"
    assert agreement.differ == "no_outputs: told so"


def test_unusable_outputs_are_no_obstacle():
    model, x, y, _ = problem("ce")
    output = model(x)
    losses = cross_entropy(output, y)
    parameters = dict(model.named_parameters())
    result, agreement = hessian_diagonal(losses, parameters, torch.Generator(), (losses,), lambda: None)
    assert result.method == "dense"
    assert agreement.differ.startswith("no_outputs")


@pytest.mark.parametrize("probes", [1, 2, 200])
def test_large_nets_are_estimated_within_their_errors(probes):
    case = problem("ce")
    model, expected = case[0], dense_hessian(case)
    squares, own = expected.square().sum(), expected.diagonal().square().sum()
    sizes = [p.numel() for p in model.parameters()]
    parts, rows = expected.diagonal().split(sizes), expected.square().sum(1).split(sizes)
    found, errors = [], []
    for seed in range(100 if probes < 200 else 1):
        result, _ = hessian_diagonal(
            forward(case),
            dict(model.named_parameters()),
            torch.Generator().manual_seed(seed),
            dense_limit=10,
            probes=probes,
        )
        assert result.method == "hutchinson"
        assert result.standard_error is not None
        assert result.total_standard_error is not None
        traces = [*result.trace_by_parameter.values()]
        found.append(torch.stack([*traces, sum(traces)]))
        errors.append(torch.stack([*result.standard_error.values(), result.total_standard_error]))
    # Var z'Hz = 2 (|H|² - |diag H|²) for random signs; a single vector does not tell the diagonal
    known = 0 if probes == 1 else 1
    variances = torch.stack(errors).square().mean(0)
    truth = torch.stack([*(part.sum() for part in parts), expected.trace()])
    assert float(variances[-1]) == pytest.approx(float(2 * (squares - known * own) / probes), rel=0.2)
    for variance, part, row in zip(variances, parts, rows, strict=False):
        most = float(2 * (row.sum() - known * part.square().sum()) / probes)
        assert float(variance) == pytest.approx(most, rel=0.3)
    if len(found) > 1:  # the errors are as large as they say, at most
        assert bool(((torch.stack(found) - truth).square().mean(0) <= 1.3 * variances).all())
    assert bool(((torch.stack(found).mean(0) - truth).abs() <= 4 * (variances / len(found)).sqrt()).all())


def test_the_error_of_a_diagonal_matrix_is_nothing():
    theta = torch.linspace(1, 2, 5, dtype=F64).requires_grad_()
    losses = (theta**3)[None].sum(1)
    for probes, error in ((2, 0.0), (1, float((2 * (6 * theta.detach()) ** 2).sum().sqrt()))):
        result, _ = hessian_diagonal(
            losses, {"theta": theta}, torch.Generator(), dense_limit=0, probes=probes
        )
        assert float(result.total_standard_error) == pytest.approx(error, abs=1e-6)


def test_quadratic_losses_have_the_published_trace_and_eigenvalue():
    # l_n = (θ - x_n)ᵀ Q (θ - x_n) / 100 through a model that returns chol(Q)ᵀ θ for every example
    g = torch.Generator().manual_seed(0)
    half = torch.randn(6, 6, dtype=F64, generator=g)
    theta = torch.ones(6, dtype=F64, requires_grad=True)
    x = torch.randn(5, 6, dtype=F64, generator=g)
    output = (theta - x) @ half
    losses = output.square().sum(1) / 100
    result, _ = hessian_diagonal(losses, {"theta": theta}, g)
    hessian = half @ half.T / 50
    torch.testing.assert_close(result.by_parameter["theta"], hessian.diagonal(), rtol=1e-12, atol=0)
    product = HessianProduct([(losses, 1.0)], {"theta": theta})
    pair = top_eigenpair(product, None, 6, F64, torch.device("cpu"), g)
    assert pair.value == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-9)


def test_draws_nothing_from_the_global_generator_and_keeps_the_graph():
    model, x, y, _ = problem("ce")
    output = model(F.dropout(x, 0.2))
    losses = cross_entropy(output, y)
    before = torch.get_rng_state()
    hessian_diagonal(losses, dict(model.named_parameters()), torch.Generator(), dense_limit=0, probes=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is None for p in model.parameters())
    losses.mean().backward()
