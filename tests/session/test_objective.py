"""The gradient of the mean, without the mean: the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cockpit.session import objective as module
from cockpit.session.objective import LATELY, Objective

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def model(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def gradients(watched: nn.Module) -> list[Tensor]:
    found = [p.grad for p in watched.parameters() if p.grad is not None]
    watched.zero_grad()
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("examples", [1, 3, 7, 49, 128])  # 1/N is rounded in most of them
def test_gradients_are_those_of_the_mean_bit_by_bit(dtype: torch.dtype, examples: int) -> None:
    ours, plain, objective = model(dtype), model(dtype), Objective()
    for seed in range(3):
        x = torch.randn(examples, 5, generator=torch.Generator().manual_seed(seed)).to(dtype)
        objective.backward(ours(x).square().sum(1))
        plain(x).square().sum(1).mean().backward()
        assert all(map(torch.equal, gradients(ours), gradients(plain)))


def test_under_autocast() -> None:
    ours, plain, objective = model(torch.float32), model(torch.float32), Objective()
    x = torch.randn(6, 5)
    for enabled in (False, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            objective.backward(ours(x).square().sum(1))
            plain(x).square().sum(1).mean().backward()
        assert all(map(torch.equal, gradients(ours), gradients(plain)))


def test_a_hook_that_writes_into_the_gradient_is_of_one_step_only() -> None:
    ours, objective = model(torch.float64), Objective()
    x = torch.randn(4, 5, dtype=torch.float64)
    objective.backward(ours(x).square().sum(1))
    expected = gradients(ours)
    losses = ours(x).square().sum(1)
    losses.register_hook(lambda grad: grad.mul_(2))
    objective.backward(losses)
    assert all(torch.equal(found, 2 * g) for found, g in zip(gradients(ours), expected, strict=True))
    objective.backward(ours(x).square().sum(1))
    assert all(map(torch.equal, gradients(ours), expected))


def test_losses_that_are_a_parameter_do_not_share_its_gradient() -> None:
    parameter, objective = nn.Parameter(torch.arange(4.0)), Objective()
    for _ in range(2):
        objective.backward(parameter)
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, torch.full((4,), 0.25))
        parameter.grad.zero_()
        parameter.grad = None


def test_a_kind_of_tensor_of_its_own_has_a_mean_of_its_own() -> None:
    class Doubled(Tensor):
        def mean(self) -> Tensor:  # type: ignore[override]
            return 2 * torch.mean(self.as_subclass(Tensor))

    weights = torch.ones(3, requires_grad=True)
    Objective().backward((weights * torch.arange(3.0)).as_subclass(Doubled))
    assert weights.grad is not None
    assert torch.allclose(weights.grad, torch.arange(3.0) * 2 / 3)


def test_who_replaced_the_backward_pass_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, plain = [], torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *args: (calls.append(args), plain(*args)))
    weights = torch.ones(3, requires_grad=True)
    Objective().backward(weights * 1)
    assert len(calls) == 1
    assert weights.grad is not None


def test_a_torch_without_that_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_run", None)
    test_gradients_are_those_of_the_mean_bit_by_bit(torch.float32, 7)


def test_kinds_are_forgotten_when_there_are_many() -> None:
    objective = Objective()
    for examples in range(1, 3 * LATELY):
        objective.backward(torch.ones(examples, requires_grad=True) * 1)
    assert len(objective._weights) <= LATELY
    objective.forget()
    assert not objective._weights
