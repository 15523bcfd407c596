from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.functional import hessian

from cockpit.engine.curvature.loss_graph import LossGraph, insist_finite, loss_hessian
from cockpit.errors import Gap

F64 = torch.float64


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def model_output(*shape: int) -> tuple[Tensor, Tensor]:
    """A parameter and an output with a history, as a model would return it."""
    w = numbers(*shape).requires_grad_()
    return w, w * 2


def test_cross_entropy():
    _, f = model_output(4, 3)
    found = loss_hessian(F.cross_entropy(f, torch.tensor([0, 1, 2, 0]), reduction="none"), (f,))
    p = f.detach().softmax(1)
    torch.testing.assert_close(found, torch.diag_embed(p) - p[:, :, None] * p[:, None, :])


def test_squared_error_averaged_over_outputs():
    _, f = model_output(4, 3)
    found = loss_hessian((f - 1).square().mean(1), (f,))
    torch.testing.assert_close(found, (2 / 3 * torch.eye(3, dtype=F64)).expand(4, 3, 3))


def test_any_loss():
    def loss(f: Tensor) -> Tensor:
        return (f[0] * f[1].sin() + f.exp().sum().log() ** 2).sum()

    _, f = model_output(5, 4)
    expected = torch.stack([hessian(loss, row) for row in f.detach()])
    losses = torch.stack([loss(row) for row in f])
    torch.testing.assert_close(loss_hessian(losses, (f,)), expected, rtol=1e-9, atol=1e-12)


def test_several_outputs_are_taken_in_order_and_others_left_out():
    w = numbers(3, 2).requires_grad_()
    a, hidden, b, idle = w * 2, w.sin(), w.sum(1) ** 2, w.cos()
    a_from_hidden = a + hidden
    losses = a_from_hidden.square().sum(1) + 5 * b**2 + a_from_hidden[:, 0] * b
    graph = LossGraph(losses, (hidden, a_from_hidden, b, idle, torch.ones(3)))
    assert [x is y for x, y in zip(graph.outputs, (a_from_hidden, b), strict=True)] == [True, True]
    expected = torch.tensor([[2.0, 0, 1], [0, 2, 0], [1, 0, 10]], dtype=F64).expand(3, 3, 3)
    torch.testing.assert_close(graph.dense(), expected)


@pytest.mark.parametrize(
    ("shape", "axis"), [((4, 3, 2), 0), ((3, 4, 2), 1), ((4, 4, 2), 0), ((4, 4, 2), 1), ((4,), 0)]
)
def test_the_axis_of_the_examples_is_found(shape, axis):
    _, f = model_output(*shape)
    rows = f.movedim(axis, 0).reshape(4, -1)
    losses = (rows**4).sum(1) + rows.prod(1)
    found = loss_hessian(losses, (f,))
    expected = torch.stack([hessian(lambda r: (r**4).sum() + r.prod(), row) for row in rows.detach()])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("minor", [False, True])
def test_tokens_flattened_into_the_batch(minor):
    _, f = model_output(12, 5)
    y = torch.arange(12) % 5
    tokens = F.cross_entropy(f, y, reduction="none")
    losses = tokens.reshape(3, 4).mean(0) if minor else tokens.reshape(4, 3).mean(1)
    graph = LossGraph(losses, (f,))
    assert graph.layouts[0].minor == minor
    assert graph.rows(graph.outputs).shape == (4, 15)
    (again,) = graph.tensors(graph.rows(graph.outputs))
    assert torch.equal(again, f)
    graph.dense()


def test_a_single_example_needs_no_axis():
    _, f = model_output(5)
    found = loss_hessian((f.sum() ** 3).reshape(1), (f,))
    torch.testing.assert_close(found, (6 * f.detach().sum()).expand(1, 5, 5))


def test_the_network_is_not_run_through():
    class Counted(torch.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            Counted.calls += 1
            return g * 2

    w = numbers(4, 3).requires_grad_()
    f = Counted.apply(w)
    loss_hessian(f.sin().sum(1), (f,))
    assert Counted.calls == 0


def coupled_by_mean(f: Tensor) -> Tensor:
    return (f - f.mean(0)).square().sum(1)


def coupled_in_second_order(f: Tensor) -> Tensor:
    return f.square().sum(1) * f.detach().sum() + (f * f.roll(1, 0)).sum(1)


@pytest.mark.parametrize("losses", [coupled_by_mean, coupled_in_second_order])
def test_losses_that_mix_examples_are_a_gap(losses):
    _, f = model_output(4, 3)
    with pytest.raises(Gap, match=r"^coupled_losses"):
        loss_hessian(losses(f), (f,))


def test_what_cannot_be_measured_says_why():
    w, f = model_output(4, 3)
    losses = f.square().sum(1)
    with pytest.raises(Gap, match=r"^no_outputs: .*do not depend"):
        LossGraph(losses, (numbers(4, 3).requires_grad_() * 2,))
    with pytest.raises(Gap, match=r"^no_outputs: .*do not depend"):
        LossGraph(losses, ())
    with pytest.raises(Gap, match=r"^no_outputs: the model returns its losses"):
        LossGraph(losses, (losses,))
    tokens = f.square()
    with pytest.raises(Gap, match=r"^no_outputs: .*linear.*its own losses"):
        LossGraph(tokens.mean(1), (tokens,))
    with pytest.raises(Gap, match=r"^no_outputs: no axis"):
        LossGraph(f.reshape(6, 2).square().sum(1)[:5], (f,))
    with pytest.raises(Gap, match=r"^no_outputs: .*penalty"):
        LossGraph(losses + w.square().sum(), (f,), {"w": w})
    hidden = f.sin()
    with pytest.raises(Gap, match=r"^no_outputs: .*another one computed from it"):
        LossGraph((f.square() + hidden**2).sum(1), (f, hidden), {"w": w})
    with pytest.raises(Gap, match=r"^no_outputs: the losses carry no graph"):
        LossGraph(losses.detach(), (f,))
    _, wide = model_output(2, 513)
    with pytest.raises(Gap, match=r"^too_many_outputs"):
        loss_hessian(wide.square().sum(1), (wide,))


def test_an_output_that_is_a_parameter_itself():
    # quadratic_deep: the model returns its parameter for every example.
    w = numbers(3).requires_grad_()
    f = w.expand(4, 3)
    x = numbers(4, 3, seed=1)
    torch.testing.assert_close(
        loss_hessian((f - x).square().mean(1), (f,)), (2 / 3 * torch.eye(3, dtype=F64)).expand(4, 3, 3)
    )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_losses_that_are_not_finite_are_a_gap(bad):
    insist_finite(torch.full((4,), 3e38))  # whose sum is not finite, while they are
    for losses in (torch.tensor([1.0, bad, 2.0]), torch.tensor([torch.inf, bad])):
        with pytest.raises(Gap, match=r"^nonfinite"):
            insist_finite(losses)


def test_a_loss_without_second_derivative_is_a_gap():
    logits = numbers(6, 2, 4).requires_grad_() * 1.0
    losses = F.ctc_loss(
        logits.log_softmax(-1),
        torch.tensor([[1, 2], [2, 3]]),
        torch.tensor([6, 6]),
        torch.tensor([2, 2]),
        reduction="none",
    )
    with pytest.raises(Gap, match=r"^no_double_backward"):
        loss_hessian(losses, (logits,))
