"""Where the original crashes, stays silent or is wrong: what is stored here, situation by situation.

Held elsewhere: smaller last batches, NaN and infinities in gradients (`session/test_batches.py`); frozen and unused
parameters (`session/test_models.py`); gradient scalers (`session/test_precision.py`); accumulation
(`session/test_accumulation.py`); sums, weights and penalties in the objective, clipping
(`session/test_weighting.py`); ``maximize`` and parameter groups (`session/test_optimizers.py`); exceptions in a
watched block (`session/test_watching.py`); in-place operations, residuals, normalisation, tied and raw parameters
(`quantities/test_zoo.py`); random numbers (`test_do_no_harm.py`); several processes (`distributed`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit import (
    Alpha,
    Cockpit,
    Distance,
    GradHist1d,
    HessMaxEV,
    HessTrace,
    NormTest,
    Run,
    TICDiag,
    UpdateSize,
    attach,
    every,
)
from cockpit.testing import problem
from reference.autograd import hessian
from reference.twins import train
from session.loops import (
    Records,
    batch,
    differences,
    events,
    everything,
    individual_gradients,
    losses_of,
    net,
    plain,
    sgd,
    trained,
)
from watched import watch

NOISE = ("norm_test", "inner_test", "ortho_test")
CRITERIA = ("mean_gsnr", "cabs", "early_stopping")


def word(found: Records, name: str, t: int = 0, scope: str = "") -> str:
    return found[t, name, scope][1].split(":")[0]


def no_gaps(folder: Path) -> bool:
    return not [kind for _, kind in events(folder) if kind == "gap"]


def test_one_example_has_slopes_but_no_variance(tmp_path: Path) -> None:
    """α = −d₁/d₀; what needs a variance says so; the rest is as usual."""
    p = problem("mlp_tanh")

    def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.5)

    twin = train(p, plain_sgd, [[1], [1]], curvature=True)
    run, _, _ = watch(p, plain_sgd, [[1], [1]], tmp_path, everything())
    for name in (*NOISE, *CRITERIA):
        series = run.series(name)
        assert all(isnan(v) for v in series.values)
        assert all(s.startswith("batch_size_1") for s in series.status)
    start, end = (seen.joined()[0] for seen in twin.steps)
    s = np.concatenate(
        [(twin.steps[1].parameters[k] - v).ravel() for k, v in twin.steps[0].parameters.items()]
    )
    assert end @ s > start @ s, "concave: nothing to compare"
    assert run.series("alpha").values[0] == pytest.approx(-(end @ s) / (start @ s), rel=1e-10)
    assert run.series("alpha").status[0].startswith("slopes_only")
    for name, reference in (
        ("grad_norm", "grad_norm"),
        ("loss", "loss"),
        ("hess_trace", "hess_trace:diag_h"),
    ):
        assert run.series(name).values[0] == pytest.approx(twin.value(0, reference), rel=1e-9)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda m: torch.optim.SGD(m.parameters(), lr=0.0),
        lambda m: torch.optim.Adam(m.parameters(), lr=0.0),
    ],
    ids=["SGD", "Adam"],
)
def test_no_movement(tmp_path: Path, optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    """α is −1 by definition, for the model and for each parameter; the update has size 0."""
    found = trained(tmp_path, plain, 3, optimizer=optimizer, quantities=["alpha", "update_size", "distance"])
    for t in range(2):
        assert found[t, "alpha", ""] == (-1.0, "zero_step: the optimiser did not move")
        assert found[t, "alpha", "0.weight"][0] == -1
    for t in range(3):
        assert found[t, "update_size", ""][0] == found[t, "distance", ""][0] == 0
    assert no_gaps(tmp_path)


def test_one_parameter_does_not_move(tmp_path: Path) -> None:
    def some(model: nn.Module) -> torch.optim.Optimizer:
        first, *rest = model.parameters()
        return torch.optim.SGD([{"params": [first], "lr": 0.0}, {"params": rest, "lr": 0.1}])

    found = trained(tmp_path, plain, 2, optimizer=some, quantities=["alpha", "update_size"])
    assert found[0, "alpha", "0.weight"][0] == -1
    assert found[0, "alpha", "2.weight"][0] != -1
    assert found[0, "update_size", "0.weight"][0] == 0


def test_no_gradient(tmp_path: Path) -> None:
    """0/0 is said to be that, not computed."""

    def flat(cockpit: Cockpit, model: nn.Module, _: torch.optim.Optimizer, t: int) -> None:
        cockpit.backward(0 * losses_of(model, *batch(t)) + 2)

    found = trained(tmp_path, flat, 2)
    for name in NOISE:
        assert isnan(found[0, name, ""][0])
        assert word(found, name) == "zero_gradient"
    assert found[0, "grad_norm", ""] == (0.0, "ok")
    assert found[0, "loss", ""] == (2.0, "ok")
    assert found[0, "hess_max_ev", ""][0] == pytest.approx(0, abs=1e-12)
    assert found[0, "alpha", ""][1].startswith("zero_step")
    assert no_gaps(tmp_path)


def test_gradients_that_cancel(tmp_path: Path) -> None:
    """The mean vanishes although no example's gradient does: no division by what is left of it."""

    def cancel(cockpit: Cockpit, model: nn.Module, _: torch.optim.Optimizer, t: int) -> None:
        x = torch.ones(2, 5, dtype=torch.float64)
        cockpit.backward(model(x).sum(1) * torch.tensor([1.0, -1.0], dtype=torch.float64))

    found = trained(tmp_path, cancel, 1, quantities=[*NOISE, "grad_norm", "cabs"])
    assert all(word(found, name) == "zero_gradient" for name in NOISE)
    assert word(found, "cabs") == "loss_not_positive"


def test_a_loss_that_is_not_positive(tmp_path: Path) -> None:
    def negative(cockpit: Cockpit, model: nn.Module, _: torch.optim.Optimizer, t: int) -> None:
        cockpit.backward(losses_of(model, *batch(t)) - 50)

    found = trained(tmp_path, negative, 1, quantities=["cabs", "early_stopping"])
    assert isnan(found[0, "cabs", ""][0])
    assert word(found, "cabs") == "loss_not_positive"
    assert word(found, "early_stopping") == "ok"


def test_nothing_that_is_stored_ends_the_log(tmp_path: Path) -> None:
    """NaN, infinity and what comes after them are all read back."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        losses = losses_of(model, *batch(t))
        factor = (1.0, torch.nan, torch.inf, 1.0)[t]
        with cockpit.watch(losses):
            losses.mean().backward()
        cockpit.log(mine=factor)
        if t in (1, 2):
            with torch.no_grad():
                model[0].bias[0] = factor  # type: ignore[index]
        if t == 2:
            with torch.no_grad():
                model[0].bias[0] = 0.0  # type: ignore[index]
            opt.zero_grad()

    trained(tmp_path, body, 4, quantities=["loss", "grad_norm", "grad_hist1d", "grad_hist2d"])
    run = Run(tmp_path)
    assert run.series("loss").steps.tolist() == [0, 1, 2, 3]
    assert np.isfinite(run.series("loss").values).tolist() == [True, True, False, True]
    assert run.series("mine").values.tolist()[::3] == [1, 1]
    histogram = run.series("grad_hist1d").values[2]
    assert histogram.nan > 0
    assert run.series("grad_hist2d").values[2].nan == histogram.nan
    assert run.series("grad_hist1d").values[3].nan == 0


class Idle(nn.Module):
    """A layer that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.idle = net(), nn.Linear(4, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x)
        return result


def test_unused_parameters_are_no_part_of_dimensions_and_curvature(tmp_path: Path) -> None:
    """GSNR and EarlyStopping divide by the number of parameters in use; λ and traces do not see the others."""
    found, expected = (
        trained(tmp_path / "idle", plain, 2, model=Idle()),
        trained(tmp_path / "plain", plain, 2),
    )
    for name in ("mean_gsnr", "early_stopping", "hess_trace", "hess_max_ev", "tic_diag", "norm_test"):
        assert found[0, name, ""][0] == pytest.approx(expected[0, name, ""][0], rel=1e-8), name
    assert (0, "norm_test", "idle.weight") not in found
    assert found[1, "distance", "idle.weight"][0] == 0


def test_tracking_begins_late(tmp_path: Path) -> None:
    """θ_0 is where the training began, not where tracking did; a step is measured where it was watched."""
    late = every(1, offset=2)
    quantities = [Distance(when=late), UpdateSize(when=late), Alpha(when=late), NormTest(when=late)]
    found = trained(tmp_path / "late", plain, 5, quantities=quantities)
    expected = trained(
        tmp_path / "plain", plain, 5, quantities=[Distance(), UpdateSize(), Alpha(), NormTest()]
    )
    assert {t for t, name, _ in found if name != "learning_rate"} == {2, 3, 4}
    for key, (number, _) in found.items():
        np.testing.assert_allclose(number, expected[key][0], rtol=1e-10, err_msg=str(key))
    assert (4, "alpha", "") not in found, "the last step has no successor"
    assert no_gaps(tmp_path / "late")


def test_two_step_quantities_now_and_then(tmp_path: Path) -> None:
    """α at t looks at t + 1, whether or not anything is due there."""
    found = trained(tmp_path / "r", plain, 7, quantities=[Alpha(when=every(3))])
    expected = trained(tmp_path / "plain", plain, 7, quantities=[Alpha()])
    assert sorted(t for t, name, scope in found if (name, scope) == ("alpha", "")) == [0, 3]
    for t in (0, 3):
        assert found[t, "alpha", ""][0] == pytest.approx(expected[t, "alpha", ""][0], rel=1e-12, nan_ok=True)


def test_schedules_are_asked_about_steps_only(tmp_path: Path) -> None:
    asked: list[int] = []

    def always(step: int) -> bool:
        asked.append(step)
        return True

    quantities = [UpdateSize(when=always), Alpha(when=always), Distance(when=always)]  # type: ignore[arg-type]
    found = trained(tmp_path, plain, 3, quantities=quantities)
    assert min(asked) == 0
    assert all(isinstance(step, int) for step in asked)
    assert [t for t, name, scope in found if (name, scope) == ("alpha", "")] == [0, 1]
    assert no_gaps(tmp_path)


def test_two_quantities_of_one_class(tmp_path: Path) -> None:
    """Each has its own settings and its own series."""
    quantities: list[Any] = [
        *(GradHist1d(10), GradHist1d(20, (-1.0, 1.0), label="fine")),
        *(TICDiag("diag_h"), TICDiag("diag_ggn_exact", label="ggn")),
    ]
    found = trained(tmp_path, plain, 1, quantities=quantities)
    assert found[0, "grad_hist1d", ""][0].counts.shape == (10,)
    assert found[0, "grad_hist1d:fine", ""][0].counts.shape == (20,)
    assert found[0, "tic_diag", ""][0] != found[0, "tic_diag:ggn", ""][0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    """Curvature and noise in every precision; sums are never taken in half."""
    model = net(dtype=dtype)
    losses = losses_of(model.double(), *batch(0))
    H = hessian(losses.mean(), list(model.parameters()))
    G = torch.cat([g.flatten(1) for g in individual_gradients(losses, list(model.parameters()))], 1)
    g = G.mean(0)

    def body(cockpit: Cockpit, m: nn.Module, _: torch.optim.Optimizer, t: int) -> None:
        cockpit.backward(losses_of(m, *batch(t, dtype=dtype)))

    quantities: list[Any] = [HessMaxEV(), HessTrace("diag_h"), "norm_test", "loss"]
    found = trained(tmp_path, body, 1, model=model.to(dtype), quantities=quantities)
    rel = {torch.float64: 1e-3, torch.float32: 2e-3, torch.bfloat16: 0.1}[dtype]  # 1e-3: the eigenvalue's own
    assert found[0, "hess_max_ev", ""][0] == pytest.approx(np.linalg.eigvalsh(H)[-1], rel=rel)
    assert found[0, "hess_trace", ""][0] == pytest.approx(np.trace(H), rel=rel)
    expected = float(((G - g).square().sum() / (30 * g.square().sum())).sqrt())
    assert found[0, "norm_test", ""][0] == pytest.approx(expected, rel=rel)


def test_batch_norm_is_said_to_couple_examples(tmp_path: Path) -> None:
    """Individual gradients below it are row contributions; the run says for which parameters."""
    p = problem("batch_norm_train")
    run, cockpit, _ = watch(p, sgd, [[5], [5]], tmp_path, ["norm_test", "grad_norm", "grad_hist1d"])
    ways = {name: way for name, (way, _) in cockpit.coverage.items()}
    assert ways == {
        **dict.fromkeys(["0.weight", "0.bias"], "row_contribution"),
        **dict.fromkeys(["1.weight", "1.bias", "4.weight", "4.bias"], "formula"),
    }
    stored = run.meta["coverage"]["0.weight"]
    assert stored["way"] == "row_contribution"
    assert "BatchNorm" in stored["reason"]
    model = p.build()
    inputs, targets = p.batch(5)
    p.losses(model, inputs, targets).mean().backward()
    norms = [float(q.grad.norm()) for q in model.parameters() if q.grad is not None]
    assert run.series("grad_norm").values[0] == pytest.approx(float(np.linalg.norm(norms)), rel=1e-10)
    assert np.isfinite(run.series("norm_test").values).all()


@pytest.mark.parametrize("way", ["attach", "watch"])
@pytest.mark.parametrize("name", ["tuple_outputs", "dict_outputs"])
def test_several_heads_without_losses(tmp_path: Path, name: str, way: str) -> None:
    """The gradients of one head are there before those of the other come; none is lost."""
    p, quantities = problem(name), ["grad_norm", "norm_test", "update_size"]
    expected, _, _ = watch(p, sgd, [[5]] * 3, tmp_path / "losses", quantities)
    model = p.build()
    opt = sgd(model)
    make = attach if way == "attach" else Cockpit
    with make(model, opt, quantities=quantities, run=tmp_path / "r") as cockpit:
        for t in range(3):
            opt.zero_grad()
            objective = p.losses(model, *p.batch(5, t)).mean()
            if way == "attach":
                objective.backward()
            else:
                with cockpit.watch():
                    objective.backward()
            opt.step()
    found = Run(tmp_path / "r")
    for quantity in quantities:
        for scope in expected.scopes(quantity):
            np.testing.assert_allclose(
                found.series(quantity, scope).values,
                expected.series(quantity, scope).values,
                rtol=1e-9,
                err_msg=f"{quantity}[{scope}]",
            )


def test_a_micro_batch_in_which_nobody_counts(tmp_path: Path) -> None:
    """All its weights are zero: the step is that of the others, histograms included."""

    def body(cockpit: Cockpit, model: nn.Module, _: torch.optim.Optimizer, t: int) -> None:
        for weight, k in ((0.0, 50), (1.0, 0)):
            losses = losses_of(model, *batch(t + k))
            with cockpit.watch(losses):
                (weight * losses).mean().backward()

    names = ["norm_test", "inner_test", "grad_hist1d", "grad_hist2d", "grad_norm", "mean_gsnr"]
    found, expected = (
        trained(tmp_path / str(k), b, 2, quantities=names) for k, b in enumerate((body, plain))
    )
    assert not differences(found, expected)


@pytest.mark.parametrize("name", ["mean_gsnr", "early_stopping", "cabs"])
def test_criteria_of_a_batch_without_noise(tmp_path: Path, name: str) -> None:
    """All examples alike: σ² = 0, clamped where rounding makes it negative."""

    def body(cockpit: Cockpit, model: nn.Module, _: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(0, 1)
        cockpit.backward(losses_of(model, x.expand(7, -1), y.expand(7)))

    found = trained(
        tmp_path, body, 1, quantities=[name, "norm_test", "inner_test", "ortho_test", "grad_norm"]
    )
    x, y = batch(0, 1)
    model = net()
    F.cross_entropy(model(x), y).backward()
    g = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    ratio = float((g.square() / 1e-5).mean())
    expected = {"mean_gsnr": ratio, "early_stopping": 1 - 7 * ratio, "cabs": 0.0}[name]
    assert found[0, name, ""][0] == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert [found[0, n, ""][0] for n in NOISE] == pytest.approx([0, 0, 0], abs=1e-6)
