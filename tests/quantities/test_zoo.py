"""Every quantity on every problem of the zoo against its independent twin, in all weightings and splits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from cockpit import HessMaxEV, HessTrace, TICDiag, TICTrace
from cockpit.testing import Weighting, problems
from reference.twins import train
from watched import HISTOGRAMS, SCALARS, differences, watch

ZOO = {p.name: p for p in problems()}
EXACT = [p.name for p in problems() if p.exact and p.grad_calls]


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def plain(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


CASES = [
    pytest.param(momentum, [[4], [4], [3]], "mean", id="mean, ragged"),
    pytest.param(plain, [[2, 3], [2, 3]], "weighted", id="weighted, two micro-batches"),
    pytest.param(adam, [[3, 3], [3, 3]], "sum", id="sum, two micro-batches"),
    pytest.param(adam, [[5], [5]], "scaled", id="scaled"),
]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("optimizer", "chunks", "weighting"), CASES)
def test_first_order(name, optimizer, chunks, weighting: Weighting, tmp_path: Path):
    problem = ZOO[name]
    twin = train(problem, optimizer, chunks, weighting)
    run, cockpit, model = watch(problem, optimizer, chunks, tmp_path, SCALARS + HISTOGRAMS, weighting)
    assert differences(run, twin, SCALARS + HISTOGRAMS) == []
    assert not [e for e in run.events() if e.kind == "gap"]
    assert {way for way, _ in cockpit.coverage.values()} <= {
        "formula",
        "spread",
        "vmap",
        "loop",
        "unused",
        "frozen",
    }
    for key, value in model.named_parameters():
        assert torch.equal(value, twin.final[key]), f"{key}: watching changed the training"


KINDS = ("diag_h", "diag_ggn_exact")
CURVED = [cls(curvature=kind, label=kind) for cls in (HessTrace, TICDiag, TICTrace) for kind in KINDS]
WRONG_IN_TORCH = {"weight_norm"}
"""The second derivative of torch's own weight normalisation is not symmetric: we say so instead of a number."""
LARGE = 400
"""Above this many parameters the twin's dense Hessians take too long for every run of the suite."""


def size(name: str) -> int:
    return sum(p.numel() for p in ZOO[name].build().parameters())


@pytest.mark.parametrize("chunks", [[[4], [3]], [[2, 2], [2, 2]]], ids=["whole", "two micro-batches"])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if size(n) > LARGE else []) for n in EXACT]
)
def test_curvature(name, chunks, tmp_path: Path):
    problem = ZOO[name]
    twin = train(problem, plain, chunks, curvature=True)
    run, _, _ = watch(
        problem, plain, chunks, tmp_path, [*CURVED, HessMaxEV(tolerance=1e-3, by_parameter=True)]
    )
    names = {n for _, n, _ in twin.records} & {q.name for q in CURVED}
    if problem.coupled:  # no Gauss-Newton matrix by example
        names = {n for n in names if not n.endswith("ggn_exact")}
        assert run.series("hess_trace:diag_ggn_exact").status[0].startswith("coupled_losses")
    if name in WRONG_IN_TORCH:
        names = {n for n in names if n.endswith("ggn_exact")}
        assert run.series("hess_max_ev").status[0].startswith("asymmetric")
    elif problem.double_backward:
        assert differences(run, twin, ["hess_max_ev"], rtol=1e-2) == []
        assert set(run.series("hess_max_ev").status) == {"ok"}
    if names:
        assert differences(run, twin, sorted(names)) == []
