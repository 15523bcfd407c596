from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cockpit.legacy import Cockpit, context
from cockpit.legacy.quantities.quantity import ByproductQuantity
from legacy.training import always, network, trained


class Asks(ByproductQuantity):
    """Asks for everything that was handed in."""

    def _compute(self, global_step: int, params: list[Tensor], batch_loss: Tensor) -> float:
        assert context.get_loss(global_step) is batch_loss
        assert len(context.get_individual_losses(global_step)) == context.get_batch_size(global_step)
        rate: float = context.get_optimizer(global_step).param_groups[0]["lr"]
        return rate


def test_quantities_see_what_was_handed_in() -> None:
    output, _ = trained([Asks(always)], range(2), lr=0.25)
    assert [output[t]["Asks"] for t in range(2)] == [0.25, 0.25]


@pytest.mark.parametrize("name", ["loss", "individual_losses", "batch_size", "optimizer"])
def test_nothing_is_known_outside_a_block(name: str) -> None:
    trained([Asks(always)], range(1))
    with pytest.raises(KeyError, match=f"Please hand in '{name}' via cockpit"):
        getattr(context, f"get_{name}")(0)


def test_inner_and_outer_blocks_have_their_own() -> None:
    seen: list[tuple[str, Any]] = []

    class Sees(ByproductQuantity):
        def _compute(self, global_step: int, params: list[Tensor], batch_loss: Tensor) -> float:
            seen.append((context.get_optimizer(global_step), float(batch_loss)))
            return 0.0

    one, two = (Cockpit(network().parameters(), [Sees(always)]) for _ in range(2))
    first, second = torch.tensor(1.0), torch.tensor(2.0)
    with one(0, info={"loss": first, "optimizer": "outer"}):
        with two(0, info={"loss": second, "optimizer": "inner"}):
            assert context.get_optimizer(0) == "inner"
        assert context.get_optimizer(0) == "outer"
    assert seen == [("inner", 2.0), ("outer", 1.0)]


def test_a_nan_loss_is_warned_of() -> None:
    watch = Cockpit(network().parameters(), [])
    block = watch(3, info={"loss": torch.tensor(float("nan"))})
    with pytest.warns(UserWarning, match=r"\[Step 3\] The mini-batch loss is NaN"), block:
        pass
