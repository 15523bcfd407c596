from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cockpit.legacy import quantities
from cockpit.legacy.context import get_batch_size, get_individual_losses
from cockpit.legacy.quantities.quantity import (
    ByproductQuantity,
    Quantity,
    SingleStepQuantity,
    TwoStepQuantity,
    storable,
)
from cockpit.legacy.utils.schedules import linear
from legacy.training import always, same, trained


class GradientMean(SingleStepQuantity):
    def extensions(self, global_step: int) -> list[Any]:
        return []

    def _compute(self, global_step: int, params: list[Tensor], batch_loss: Tensor) -> dict[str, Any]:
        return {"mean": params[0].grad.mean(), "shapes": [tuple(p.shape) for p in params]}  # type: ignore[union-attr]


class Move(TwoStepQuantity):
    """Distance moved since the tracked step before, by the protocol of the original."""

    SAVE_SHIFT = 1

    def extensions(self, global_step: int) -> list[Any]:
        return []

    def is_start(self, global_step: int) -> bool:
        return bool(self._track_schedule(global_step))

    def is_end(self, global_step: int) -> bool:
        return bool(self._track_schedule(global_step - self.SAVE_SHIFT))

    def _compute_start(self, global_step: int, params: list[Tensor], batch_loss: Tensor) -> None:
        kept = [p.detach().clone() for p in params]
        self.save_to_cache(
            global_step, "params", kept, lambda step: 0 <= step - global_step <= self.SAVE_SHIFT
        )

    def _compute_end(self, global_step: int, params: list[Tensor], batch_loss: Tensor) -> list[float]:
        before = self.load_from_cache(global_step - self.SAVE_SHIFT, "params")
        return [float((p.detach() - b).norm()) for p, b in zip(params, before, strict=True)]


class AutogradNormTest(quantities.NormTest):
    """A built-in quantity computed anew by a subclass."""

    def create_graph(self, global_step: int) -> bool:
        return self.should_compute(global_step)

    def _compute(self, global_step: int, params: list[Tensor], batch_loss: Tensor) -> float:
        n = get_batch_size(global_step)
        losses = get_individual_losses(global_step)
        rows = [
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, params, retain_graph=True)])
            for loss in losses
        ]
        g = torch.stack(rows)
        return float(((g - g.mean(0)).square().sum() / (n * (n - 1) * g.mean(0).square().sum())).sqrt())


def test_a_quantity_of_ones_own() -> None:
    output, _ = trained([GradientMean(linear(2))], range(4))
    assert sorted(output) == [0, 2]
    assert isinstance(output[0]["GradientMean"]["mean"], np.ndarray)
    assert output[0]["GradientMean"]["shapes"] == [(5, 4), (5,), (3, 5), (3,)]


def test_a_quantity_of_two_steps() -> None:
    move = Move(lambda t: t in (0, 1, 3))
    output, _ = trained([move, quantities.UpdateSize(always)], range(6))
    assert [t for t in output if "Move" in output[t]] == [0, 1, 3]
    for t in (0, 1, 3):
        same(output[t]["Move"], output[t]["UpdateSize"])
    assert not move._cache


def test_an_end_without_a_start_has_no_value() -> None:
    output, _ = trained([Move(always)], range(5, 8))
    assert sorted(output) == [5, 6]


def test_other_key_errors_of_a_quantity_are_not_hidden() -> None:
    class Wrong(Move):
        def _compute_end(self, global_step: int, params: list[Tensor], batch_loss: Tensor) -> list[float]:
            return {}["mine"]  # type: ignore[no-any-return]

    with pytest.raises(KeyError, match="mine"):
        trained([Wrong(always)], range(2))


def test_a_subclass_of_a_built_in_may_compute_its_own() -> None:
    output, _ = trained([quantities.NormTest(always), AutogradNormTest(always)], range(3))
    for row in output.values():
        same(row["AutogradNormTest"], row["NormTest"])


def test_a_subclass_of_a_built_in_may_build_on_it() -> None:
    class Squared(quantities.NormTest):
        def _compute(self, global_step: int, params: list[Tensor], batch_loss: Tensor) -> Any:
            return super()._compute(global_step, params, batch_loss) ** 2

    output, _ = trained([quantities.NormTest(always), Squared(always)], range(1))
    same(output[0]["Squared"], output[0]["NormTest"] ** 2)


def test_what_can_be_stored() -> None:
    tensor = torch.ones(2, requires_grad=True)
    found = storable({"a": tensor, "b": [tensor, 1], "c": (2.0, np.float32(3))})
    assert isinstance(found["a"], np.ndarray)
    assert isinstance(found["b"][0], np.ndarray)
    assert found["c"] == (2.0, 3.0)
    assert isinstance(found["c"][1], float)
    with pytest.raises(NotImplementedError, match="no rule for str"):
        storable(["text"])


def test_the_protocol_is_to_be_implemented() -> None:
    loss = torch.zeros(())
    for cls, calls in {
        Quantity: ("should_compute", "extensions"),
        SingleStepQuantity: ("extensions",),
        TwoStepQuantity: ("is_start", "is_end", "extensions"),
    }.items():
        for call in calls:
            with pytest.raises(NotImplementedError):
                getattr(cls(always), call)(0)
    assert ByproductQuantity(always).extensions(0) == []
    with pytest.raises(NotImplementedError):
        SingleStepQuantity(always).track(0, [], loss)


def test_verbose_says_what_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    trained([quantities.Loss(linear(2), verbose=True)], range(2))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("[Step 0 | Loss]: Store iteration 0, value ")
    assert second == "[Step 1 | Loss]: No computation scheduled"


def test_built_ins_take_the_original_s_arguments() -> None:
    for name in quantities.__all__:
        quantity = getattr(quantities, name)(track_schedule=linear(3), verbose=False)
        assert [quantity.should_compute(t) for t in (0, 3)] == [True, True]
        assert quantity.extensions(0) == []
        assert not quantity.create_graph(0)
    assert quantities.HessMaxEV(always, use_power=False).source.tolerance == 1e-3
    assert quantities.TICDiag(always).source.curvature == "diag_h"
    assert quantities.TICTrace(always, epsilon=0.5).source.epsilon == 0.5
    assert (
        quantities.EarlyStopping(always).source.epsilon == quantities.MeanGSNR(always).source.epsilon == 1e-5
    )
    with pytest.raises(ValueError, match="diag_ggn_mc"):
        quantities.HessTrace(always, curvature="diag")  # type: ignore[arg-type]
