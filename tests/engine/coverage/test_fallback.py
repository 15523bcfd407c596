"""Individual gradients from the live graph: vectorised as one by one, in blocks as at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cockpit import Cockpit, Run
from cockpit.engine.coverage import fallback
from cockpit.engine.coverage.fallback import rows
from cockpit.testing import problem
from layer_check import by_autograd, filled, normal


def joined(losses: Tensor, parameters: dict[str, Tensor], **settings: Any) -> dict[str, Tensor]:
    blocks = [block for block, _ in rows(losses, parameters, **settings)]
    return {name: torch.cat([b[name] for b in blocks]) for name in parameters}


@pytest.mark.parametrize(
    "name", ["module_twice", "einsum", "own_function", "lstm", "batch_norm_train", "gpt"]
)
def test_vectorised_rows_are_the_single_ones(name: str) -> None:
    p = problem(name)
    model = p.build()
    losses = p.losses(model, *p.batch(4))
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    expected = by_autograd(model, losses)
    for vectorised in (True, False):
        found = joined(losses, parameters, vectorised=vectorised)
        for key, G in expected.items():
            torch.testing.assert_close(found[key], G, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize(("block", "sizes"), [(1, [1] * 5), (30, [2, 2, 1]), (2**24, [5])])
def test_blocks_hold_what_fits(
    block: int, sizes: list[int], vectorised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "BLOCK", block)
    model = filled(nn.Linear(4, 2, bias=True))  # 10 numbers, so that 30 hold three examples…
    model.register_parameter("spare", nn.Parameter(normal(5)))  # …and with this one two
    losses = torch.tanh(model(normal(5, 4))).sum(1)
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    found = list(rows(losses, parameters, vectorised=vectorised))
    assert [len(b["weight"]) for b, _ in found] == sizes
    assert [by for _, by in found] == [vectorised] * len(sizes)
    expected = by_autograd(model, losses)
    for key in parameters:
        torch.testing.assert_close(torch.cat([b[key] for b, _ in found]), expected[key])


class Peeks(torch.autograd.Function):
    """The identity; its backward pass looks at a number, which ``vmap`` forbids."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] if float(grads[0].sum()) > -1e300 else -grads[0]


def test_once_vmap_has_failed_it_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    original = fallback._vectorised
    monkeypatch.setattr(fallback, "_vectorised", lambda *a: tried.append(1) or original(*a))
    monkeypatch.setattr(fallback, "BLOCK", 20)
    model = filled(nn.Linear(4, 2))
    losses = Peeks.apply(torch.tanh(model(normal(5, 4)))).sum(1)
    found = list(rows(losses, dict(model.named_parameters())))
    assert [by for _, by in found] == [False] * 3
    assert tried == [1]
    torch.testing.assert_close(
        torch.cat([b["weight"] for b, _ in found]), by_autograd(model, losses)["weight"]
    )


def test_rows_keep_the_graph_and_leave_no_gradient() -> None:
    model = filled(nn.Linear(4, 2))
    losses = model(normal(3, 4)).square().sum(1)
    for vectorised in (True, False):
        list(rows(losses, dict(model.named_parameters()), vectorised=vectorised))
    assert model.weight.grad is None
    losses.mean().backward()


def test_what_would_be_too_large_to_hold_is_a_gap(tmp_path: Path) -> None:
    """A projection on a step not yet taken keeps written-out rows only up to a limit; the rest is unaffected."""
    einsum = problem("einsum")
    model = einsum.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Cockpit(model, optimizer, quantities=["alpha", "norm_test"], run=tmp_path, memory=10) as cockpit:
        for step in range(2):
            cockpit.backward(einsum.losses(model, *einsum.batch(4, step)))
            optimizer.step()
            optimizer.zero_grad()
    assert Run(tmp_path).series("alpha").status[0].startswith("too_large")
    assert Run(tmp_path).series("norm_test").status == ["ok", "ok"]
