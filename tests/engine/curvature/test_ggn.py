from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cockpit.engine.curvature.ggn import GGNProduct, ggn_diagonal, ggn_diagonal_mc
from cockpit.engine.curvature.loss_graph import LossGraph
from cockpit.engine.curvature.loss_kinds import root_of
from cockpit.engine.curvature.loss_roots import Root
from cockpit.errors import Gap
from curvature_problems import F64, dense_ggn, dense_hessian, mlp, problem, square_sums

PROBLEMS = ["ce", "mse", "bce", "conv", "tokens"]


def root(losses: Tensor, output: Tensor) -> Root:
    return root_of(LossGraph(losses, (output,)))


def joined(by_parameter: dict[str, Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1) for x in by_parameter.values()])


@pytest.mark.parametrize("name", PROBLEMS)
def test_products_equal_the_dense_matrix(name):
    case = problem(name)
    model, x, y, loss = case
    with sdpa_kernel(SDPBackend.MATH):
        output = model(x)
        product = GGNProduct(LossGraph(loss(output, y), (output,)), dict(model.named_parameters()))
    g = torch.Generator().manual_seed(0)
    vectors = torch.randn(4, product.flat.size, dtype=F64, generator=g)
    found = torch.stack([product(v) for v in vectors])
    torch.testing.assert_close(found, vectors @ dense_ggn(case), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", PROBLEMS)
def test_exact_diagonal_equals_the_dense_matrix(name):
    case = problem(name)
    model, x, y, loss = case
    output = model(x)
    result = ggn_diagonal(root(loss(output, y), output), square_sums(model, len(x)))
    expected = dense_ggn(case).diagonal()
    torch.testing.assert_close(joined(result.by_parameter), expected, rtol=1e-8, atol=1e-12)
    assert result.method == "ggn"
    assert result.standard_error is None
    total = sum(float(t) for t in result.trace_by_parameter.values())
    assert total == pytest.approx(float(expected.sum()), rel=1e-8)


def test_relu_nets_have_the_diagonal_of_the_hessian():
    model, x, y, loss = problem("ce")
    model = mlp(nn.ReLU)
    output = model(x)
    result = ggn_diagonal(root(loss(output, y), output), square_sums(model, len(x)))
    expected = dense_hessian((model, x, y, loss)).diagonal()
    torch.testing.assert_close(joined(result.by_parameter), expected, rtol=1e-12, atol=1e-14)


def test_softmax_regression_at_zero_has_the_closed_form():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(9, 4, dtype=F64, generator=g)
    layer = nn.Linear(4, 5).to(F64)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    output = layer(x)
    losses = F.cross_entropy(output, torch.randint(0, 5, (9,), generator=g), reduction="none")
    result = ggn_diagonal(root(losses, output), square_sums(layer, 9))
    traces = result.trace_by_parameter
    assert float(traces["weight"]) == pytest.approx(float(x.square().sum()) / 9 * (1 - 1 / 5), rel=1e-12)
    assert float(traces["bias"]) == pytest.approx(1 - 1 / 5, rel=1e-12)


def test_sampled_labels_have_the_exact_diagonal_as_expectation():
    # E over labels = sum over all labels of p(label) times the squared gradient for that label.
    model, x, y, loss = problem("ce")
    output = model(x)
    losses = loss(output, y)
    sums = square_sums(model, len(x))
    graph = LossGraph(losses, (output,))
    exact = joined(ggn_diagonal(root_of(graph), sums).by_parameter)
    p = output.detach().softmax(1)
    expected = torch.zeros_like(exact)
    for label in range(3):
        gradient = (p - F.one_hot(torch.full((len(x),), label), 3)) * p[:, label : label + 1].sqrt()
        expected += joined(sums(graph, (gradient[None],))) / len(x)
    torch.testing.assert_close(exact, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["ce", "mse", "bce"])
def test_estimates_agree_with_the_exact_diagonal_within_their_errors(name):
    model, x, y, loss = problem(name)
    output = model(x)
    losses, sums = loss(output, y), square_sums(model, len(x))
    exact = ggn_diagonal(root(losses, output), sums).trace_by_parameter
    found = ggn_diagonal_mc(root(losses, output), sums, torch.Generator().manual_seed(0), samples=150)
    assert found.method == "ggn_mc"
    assert found.standard_error is not None
    assert found.total_standard_error is not None
    for parameter, trace in found.trace_by_parameter.items():
        error = float(found.standard_error[parameter])
        assert error < float(exact[parameter])
        # (The squares of signs do not vary: of a last layer's bias they tell the diagonal exactly.)
        assert abs(float(trace - exact[parameter])) <= 4 * error + 1e-12 * float(exact[parameter])
    assert float(found.total_standard_error) > 0
    total = sum(float(t) for t in found.trace_by_parameter.values())
    assert abs(total - sum(float(t) for t in exact.values())) < 4 * float(found.total_standard_error)


def test_one_sample_is_one_pass_and_has_no_error_bar():
    model, x, y, loss = problem("ce")
    output = model(x)
    sums = square_sums(model, len(x))
    calls = []

    def counted(graph: LossGraph, v: tuple[Tensor, ...]) -> dict[str, Tensor]:
        calls.append([len(x) for x in v])
        return sums(graph, v)

    before = torch.get_rng_state()
    found = ggn_diagonal_mc(root(loss(output, y), output), counted, torch.Generator().manual_seed(0))
    assert calls == [[1]]
    assert found.standard_error is None
    assert torch.equal(torch.get_rng_state(), before)


def test_an_indefinite_loss_is_summed_with_signs():
    w = torch.randn(4, 3, dtype=F64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    x = torch.randn(5, 4, dtype=F64, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(4, 3, bias=False).to(F64)
    with torch.no_grad():
        model.weight.copy_(w.T)
    output = model(x)
    losses = output.prod(1)
    sums = square_sums(model, 5)
    found = ggn_diagonal(root(losses, output), sums).by_parameter["weight"]
    expected = dense_ggn((model, x, x, lambda f, _: f.prod(1))).diagonal().reshape(3, 4)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert float(found.abs().max()) < 1e-12  # off-diagonal loss Hessian and one weight row an output


def test_a_loss_without_curvature_has_a_zero_diagonal():
    model, x, _, _ = problem("mse")
    output = model(x)
    losses = (output - 0.1).abs().sum(1)
    sums = square_sums(model, len(x))
    found = ggn_diagonal(root(losses, output), sums)
    assert float(joined(found.by_parameter).abs().sum()) == 0
    assert set(found.by_parameter) == set(dict(model.named_parameters()))


def test_too_many_columns_are_a_gap_that_points_to_sampling():
    model, x, y, loss = problem("tokens")
    output = model(x)
    sums = square_sums(model, len(x))
    with pytest.raises(Gap, match=r"^too_many_outputs: .* 12 .* diag_ggn_mc"):
        ggn_diagonal(root(loss(output, y), output), sums, max_columns=11)
    ggn_diagonal_mc(root(loss(output, y), output), sums, torch.Generator())


def test_leaves_graph_and_gradients_as_they_were():
    model, x, y, loss = problem("ce")
    output = model(x)
    losses = loss(output, y)
    expected = torch.autograd.grad(losses.mean(), list(model.parameters()), retain_graph=True)
    product = GGNProduct(LossGraph(losses, (output,)), dict(model.named_parameters()))
    product(torch.ones(product.flat.size, dtype=F64))
    ggn_diagonal(root(losses, output), square_sums(model, len(x)))
    assert all(p.grad is None for p in model.parameters())
    losses.mean().backward()
    for p, g in zip(model.parameters(), expected, strict=True):
        assert p.grad is not None
        assert torch.equal(p.grad, g)


def test_unused_parameters_have_zero_curvature():
    model, x, y, loss = problem("ce")
    output = model(x)
    unused = torch.ones(2, dtype=F64, requires_grad=True)
    graph = LossGraph(loss(output, y), (output,))
    product = GGNProduct(graph, {"unused": unused, **dict(model.named_parameters())})
    assert product(torch.ones(product.flat.size, dtype=F64))[:2].tolist() == [0, 0]
    nothing = GGNProduct(graph, {"unused": unused})
    assert nothing(torch.ones(2, dtype=F64)).tolist() == [0, 0]
