"""The mean gradient of a step, read off what backward passes leave in ``.grad``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine.seeing.weights import Weights
from cockpit.engine.steps.accumulated import Accumulated, altered
from layer_check import by_autograd, filled, normal


def losses_of(model: nn.Module, part: slice = slice(None)) -> Tensor:
    return torch.tanh(model(normal(6, 3)[part])).square().sum(1)


def pass_(
    accumulated: Accumulated, losses: Tensor, objective: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """One backward pass, weighed as the engine does: by a hook on the losses."""
    accumulated.enter(len(losses))
    once: list[Tensor] = []

    def weigh(w: Tensor) -> None:
        if not once:
            once.append(w)
            accumulated.weigh(Weights.read(w), losses)

    handle = losses.register_hook(weigh)
    objective(losses).backward()
    handle.remove()
    return {name: value * factor for name, (value, factor) in accumulated.leave().items()}


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, g in expected.items():
        torch.testing.assert_close(found[name], g, rtol=1e-10, atol=1e-13)


WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 0.0, 3.0, 1.0], dtype=torch.float64)
OBJECTIVES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean(),
    "sum": lambda x: x.sum(),
    "scaled": lambda x: 65536 * x.mean(),
    "negative": lambda x: -x.mean(),
}


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_one_weight_for_all(name: str) -> None:
    model = filled(nn.Linear(3, 2))
    accumulated = Accumulated(dict(model.named_parameters()))
    expected = {k: G.sum(0) for k, G in by_autograd(model, losses_of(model)).items()}
    close(pass_(accumulated, losses_of(model), OBJECTIVES[name]), expected)
    close(accumulated.mean(), {k: g / 6 for k, g in expected.items()})
    assert accumulated.examples == 6


def test_several_weights_take_a_pass_of_their_own_and_zeros_do_not_count() -> None:
    model = filled(nn.Linear(3, 2))
    accumulated = Accumulated(dict(model.named_parameters()))
    expected = by_autograd(model, losses_of(model))
    assert pass_(accumulated, losses_of(model), lambda x: (WEIGHTS * x).sum()) == {}
    kept = WEIGHTS != 0
    close(accumulated.mean(), {k: G[kept].mean(0) for k, G in expected.items()})
    assert accumulated.examples == 5
    assert model.weight.grad is not None
    torch.testing.assert_close(model.weight.grad, torch.tensordot(WEIGHTS, expected["weight"], 1))


def test_micro_batches_of_different_weights_on_top_of_an_old_gradient() -> None:
    model = filled(nn.Linear(3, 2))
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    accumulated = Accumulated(dict(model.named_parameters()))
    expected = by_autograd(model, losses_of(model))
    pass_(accumulated, losses_of(model, slice(0, 2)), lambda x: x.sum() / 6)
    pass_(accumulated, losses_of(model, slice(2, 6)), lambda x: 10 * x.mean())
    close(accumulated.mean(), {k: G.mean(0) for k, G in expected.items()})


def test_a_gradient_that_is_set_to_none_between_passes() -> None:
    model = filled(nn.Linear(3, 2))
    accumulated = Accumulated(dict(model.named_parameters()))
    for part in (slice(0, 3), slice(3, 6)):
        model.zero_grad(set_to_none=True)
        pass_(accumulated, losses_of(model, part), lambda x: x.mean())
    expected = by_autograd(model, losses_of(model))
    close(accumulated.mean(), {k: G.mean(0) for k, G in expected.items()})


def test_all_weights_zero() -> None:
    model = filled(nn.Linear(3, 2))
    accumulated = Accumulated(dict(model.named_parameters()))
    assert pass_(accumulated, losses_of(model), lambda x: 0 * x.sum()) == {}
    assert accumulated.examples == 0
    assert accumulated.mean() == {}


def test_without_weights_a_mean_is_assumed() -> None:
    model = filled(nn.Linear(3, 2))
    accumulated = Accumulated(dict(model.named_parameters()))
    expected = by_autograd(model, losses_of(model))
    accumulated.enter(6)
    losses_of(model).mean().backward()
    accumulated.leave()
    close(accumulated.mean(), {k: G.mean(0) for k, G in expected.items()})


def test_who_got_no_gradient_has_none() -> None:
    model = filled(nn.Linear(3, 2))
    spare = torch.zeros(3, requires_grad=True)
    accumulated = Accumulated({**dict(model.named_parameters()), "spare": spare})
    pass_(accumulated, losses_of(model), lambda x: x.mean())
    assert set(accumulated.mean()) == {"weight", "bias"}


@pytest.mark.parametrize("uneven", [False, True])
def test_sparse_gradients(uneven: bool) -> None:
    table = filled(nn.Embedding(7, 3, sparse=True))
    ids = torch.tensor([[0, 3], [3, 3], [6, 1]])

    def losses() -> Tensor:
        return torch.tanh(table(ids)).square().sum((1, 2))

    expected = by_autograd(table, losses())["weight"].mean(0)
    accumulated = Accumulated({"weight": table.weight})
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    for _ in range(2):
        pass_(accumulated, losses(), (lambda x: (weights * x).sum()) if uneven else (lambda x: x.mean()))
    torch.testing.assert_close(accumulated.mean()["weight"].to_dense(), expected)


def test_half_precision_is_summed_in_single() -> None:
    model = filled(nn.Linear(3, 2)).to(torch.bfloat16)
    accumulated = Accumulated(dict(model.named_parameters()))
    accumulated.enter(6)
    torch.tanh(model(normal(6, 3).to(torch.bfloat16))).sum(1).mean().backward()
    accumulated.leave()
    assert accumulated.mean()["weight"].dtype == torch.float32


# -- while a pass runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "old"), [(True, False), (True, True), (False, False)])
def test_the_sum_is_known_early_only_from_a_new_gradient_of_our_own_pass(own: bool, old: bool) -> None:
    model = filled(nn.Linear(3, 2))
    if old:
        losses_of(model).mean().backward()
    accumulated = Accumulated(dict(model.named_parameters()))
    accumulated.enter(6, own)
    assert accumulated.sum_of("weight") is None or old, "before the pass there is nothing"
    expected = by_autograd(model, losses_of(model))["weight"].sum(0)
    losses_of(model).mean().backward()
    found = accumulated.sum_of("weight")
    if not own or old:
        assert found is None
    else:
        assert found is not None
        torch.testing.assert_close(found[0] * found[1], expected)
        assert found[0].data_ptr() == model.weight.grad.data_ptr(), "no copy"  # type: ignore[union-attr]


def test_who_got_no_gradient_has_no_sum() -> None:
    model = filled(nn.Linear(3, 2))
    spare = torch.zeros(3, requires_grad=True)
    accumulated = Accumulated({**dict(model.named_parameters()), "spare": spare})
    accumulated.enter(6, own=True)
    losses_of(model).mean().backward()
    assert accumulated.sum_of("spare") is None


def test_sums_are_views_until_they_are_kept() -> None:
    model = filled(nn.Linear(3, 2))
    expected = {k: G.mean(0) for k, G in by_autograd(model, losses_of(model)).items()}
    for kept in (False, True):
        model.zero_grad()
        accumulated = Accumulated(dict(model.named_parameters()))
        accumulated.enter(6, own=True)
        losses_of(model).mean().backward()
        accumulated.leave()
        if kept:
            accumulated.keep()
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)
        if kept:
            close(accumulated.mean(), expected)
        else:
            assert all(float(g.abs().max()) <= 1e-3 for g in accumulated.mean().values())


def test_a_second_pass_keeps_the_first_by_itself() -> None:
    model = filled(nn.Linear(3, 2))
    accumulated = Accumulated(dict(model.named_parameters()))
    for part in (slice(0, 2), slice(2, 6)):
        accumulated.enter(2 if part.stop == 2 else 4, own=True)
        losses_of(model, part).mean().backward()
        accumulated.leave()
    expected = {k: G.mean(0) for k, G in by_autograd(model, losses_of(model)).items()}
    close(accumulated.mean(), expected)


def test_hooks_that_may_alter_gradients() -> None:
    model = filled(nn.Linear(3, 2))
    assert not altered(model.parameters())
    handle = model.bias.register_hook(lambda g: g)
    assert altered(model.parameters())
    handle.remove()
    assert not altered(model.parameters())
    handle = model.weight.register_post_accumulate_grad_hook(lambda p: None)
    assert altered(model.parameters())
    handle.remove()
    assert not altered(model.parameters())
