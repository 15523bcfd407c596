"""The zoo on a GPU gives the numbers of the CPU, changes no bit of the training, and works in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cockpit import Cockpit, HessMaxEV, HessTrace, Histogram, Run, TICDiag
from cockpit.testing import Problem, problems
from watched import HISTOGRAMS, SCALARS, joined_at_zero

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ZOO = {p.name: p for p in problems() if not p.random}
CUDNN = {"rnn", "lstm", "gru", "rnn_packed", "characters"}
"""cuDNN's recurrent layers cannot be differentiated twice: a recorded gap."""
CURVED = [
    HessTrace(curvature="diag_ggn_exact"),
    TICDiag(curvature="diag_ggn_exact"),
    HessMaxEV(tolerance=1e-3),
]


def moved(inputs: tuple[torch.Tensor, ...], device: str, name: str) -> tuple[torch.Tensor, ...]:
    """Inputs on the device; lengths of packed sequences stay on the CPU, where torch wants them."""
    return tuple(x if name == "rnn_packed" and not x.is_floating_point() else x.to(device) for x in inputs)


def trained(
    problem: Problem, device: str, folder: Path | None, dtype: torch.dtype = torch.float64
) -> tuple[Run | None, nn.Module]:
    model = problem.build(dtype).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    cockpit = None
    if folder is not None:
        cockpit = Cockpit(model, optimizer, quantities=[*SCALARS, *HISTOGRAMS, *CURVED], run=folder)
    for step in range(3):
        optimizer.zero_grad()
        for inputs, targets in problem.split(problem.batch(5, step, dtype), [3, 2]):
            losses = problem.criterion(model(*moved(inputs, device, problem.name)), targets.to(device))
            cockpit.backward(losses) if cockpit is not None else losses.mean().backward()
        optimizer.step()
    if cockpit is not None:
        cockpit.close()
    return (Run(folder) if folder is not None else None), model


@pytest.mark.parametrize("name", ZOO)
def test_gpu_is_cpu(name: str, tmp_path: Path):
    on_cpu, _ = trained(ZOO[name], "cpu", tmp_path / "cpu")
    on_gpu, _ = trained(ZOO[name], "cuda", tmp_path / "gpu")
    assert on_cpu is not None
    assert on_gpu is not None
    assert not [e for e in on_gpu.events() if e.kind == "gap"]
    for quantity in [*SCALARS, *HISTOGRAMS, "hess_trace", "tic_diag", "hess_max_ev"]:
        a, b = on_cpu.series(quantity), on_gpu.series(quantity)
        if b.status[0].startswith("no_double_backward: ") and name in CUDNN:
            continue
        assert [s.split(":")[0] for s in a.status] == [s.split(":")[0] for s in b.status], quantity
        for x, y in zip(a.values, b.values, strict=True):
            if isinstance(x, Histogram):
                assert np.abs(joined_at_zero(x.counts) - joined_at_zero(y.counts)).sum() <= 2, quantity
            else:
                assert y == pytest.approx(x, rel=1e-2 if quantity == "hess_max_ev" else 1e-6, nan_ok=True), (
                    quantity
                )


@pytest.mark.filterwarnings("ignore:.*determini")
@pytest.mark.parametrize("name", ZOO)
def test_training_is_the_same_to_the_bit(name: str, tmp_path: Path):
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        _, plain = trained(ZOO[name], "cuda", None, torch.float32)
        _, watched = trained(ZOO[name], "cuda", tmp_path, torch.float32)
    finally:
        torch.use_deterministic_algorithms(False)
    for (key, a), b in zip(plain.named_parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b), key
