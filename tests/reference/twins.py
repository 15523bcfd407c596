"""A training run measured by plain autograd: the twin of a watched run, written without the package's engine.

``train`` runs an ordinary loop in float64 and computes, at every step, every quantity from explicit
individual gradients of all micro-batches joined, and on request from dense Hessians. There is one forward
pass per micro-batch and nothing else that draws random numbers, so a watched run that starts from the same
seed sees the same dropout masks. Records are keyed by step, name and scope (a parameter's qualified name, or
empty).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cockpit.testing import Problem, Weighting, objective
from reference.autograd import flat, ggn_diagonal, hessian, rows
from reference.measure import Seen, curvature_records, noise_records, step_length


@dataclass
class Twin:
    """What was measured: records, the observations that they come from, and the parameters at the end."""

    records: dict[tuple[int, str, str], tuple[Any, str]] = field(default_factory=dict)
    steps: list[Seen] = field(default_factory=list)
    final: dict[str, Tensor] = field(default_factory=dict)

    def value(self, step: int, name: str, scope: str = "") -> Any:
        """A number, an array, or a histogram as a dict of counts, edges, underflow, overflow, nan, inf."""
        return self.records[step, name, scope][0]

    def status(self, step: int, name: str, scope: str = "") -> str:
        """``ok`` or the reason."""
        return self.records[step, name, scope][1]

    def scopes(self, step: int, name: str) -> list[str]:
        """The parameters for which the quantity exists at that step."""
        return [scope for (t, n, scope) in self.records if (t, n) == (step, name) and scope]


def train(
    problem: Problem,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    chunks: Sequence[Sequence[int]],
    weighting: Weighting = "mean",
    curvature: bool = False,
    dense: Collection[int] | None = None,
    seed: int = 0,
    before_step: Callable[[nn.Module], object] | None = None,
) -> Twin:
    """Train a fresh model and measure everything.

    Args:
        problem: From the zoo.
        optimizer: Makes the optimizer of a model.
        chunks: Sizes of the micro-batches of each step; their number is the number of steps.
        weighting: How losses become the scalar that is differentiated; it changes the path, not the formulas.
        curvature: Also the quantities that need dense Hessians or Gauss-Newton diagonals.
        dense: The steps at which Hessians are formed, all if not given; a row costs a double backward pass.
        seed: Of the global random stream at the start of training; the stream is put back at the end.
        before_step: Called after the backward passes, for instance to clip gradients.
    """
    model, twin = problem.build(), Twin()
    opt = optimizer(model)
    trained = {k: p for k, p in model.named_parameters() if p.requires_grad}
    origin = snapshot(trained)
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        for step, sizes in enumerate(chunks):
            opt.zero_grad()
            theta = snapshot(trained)
            seen, curved = measured(problem, model, trained, step, sizes, weighting, curvature, dense)
            if before_step is not None:
                before_step(model)
            records = noise_records(seen, opt) | curvature_records(seen, curved)
            opt.step()
            for name, p in trained.items():
                records["distance", name] = float(np.linalg.norm(theta[name] - origin[name])), "ok"
                records["update_size", name] = float(np.linalg.norm(p.detach().numpy() - theta[name])), "ok"
            for norm in ("distance", "update_size"):
                records[norm, ""] = float(np.linalg.norm([records[norm, k][0] for k in trained])), "ok"
            twin.records |= {(step, *key): value for key, value in records.items()}
            if twin.steps:
                twin.records |= {
                    (step - 1, "alpha", k): v for k, v in step_length(twin.steps[-1], seen).items()
                }
            twin.steps.append(seen)
    twin.final = {k: p.detach().clone() for k, p in model.named_parameters()}
    return twin


def snapshot(parameters: dict[str, nn.Parameter]) -> dict[str, np.ndarray]:
    """Copies of the parameters."""
    return {name: p.detach().clone().numpy() for name, p in parameters.items()}


def measured(
    problem: Problem,
    model: nn.Module,
    trained: dict[str, nn.Parameter],
    step: int,
    sizes: Sequence[int],
    weighting: Weighting,
    curvature: bool,
    dense: Collection[int] | None,
) -> tuple[Seen, dict[str, np.ndarray]]:
    """The forward and backward passes of one step, with the individual gradients of its joined batch."""
    parameters, n = list(trained.values()), sum(sizes)
    found: list[list[Tensor | None]] = []
    losses, ggn = [], np.zeros(sum(p.numel() for p in parameters))
    # Fused attention cannot be differentiated twice; the same numbers come from its textbook form.
    with sdpa_kernel(SDPBackend.MATH) if curvature else nullcontext():
        for inputs, targets in problem.split(problem.batch(n, step), sizes):
            outputs = model(*inputs)
            chunk = problem.criterion(outputs, targets)
            losses.append(chunk)
            found += rows(chunk, parameters, problem.grad_calls)
            if curvature and problem.outputs and problem.grad_calls:
                ggn += ggn_diagonal(
                    outputs, lambda f, y=targets: problem.criterion(f, y).sum() / n, parameters
                )
            objective(chunk, weighting).backward(retain_graph=curvature)
    curved = {"diag_ggn_exact": ggn} if curvature and problem.outputs and problem.grad_calls else {}
    if curvature and problem.grad_calls and (dense is None or step in dense):
        try:
            curved["hessian"] = hessian(torch.cat(losses).mean(), parameters)
        except NotImplementedError:  # an operation of torch that has no second derivative, e.g. embedding_bag
            assert not problem.double_backward
    used = [any(row[i] is not None for row in found) for i in range(len(parameters))]
    G = np.stack([flat(row, parameters).numpy() for row in found])
    cuts = np.cumsum([p.numel() for p in parameters])[:-1]
    pieces = dict(zip(trained, np.split(G, cuts, axis=1), strict=True))
    return (
        Seen(
            losses=torch.cat(losses).detach().numpy(),
            gradients=pieces,
            parameters=snapshot(trained),
            used=[k for k, u in zip(trained, used, strict=True) if u],
            names={id(p): k for k, p in trained.items()},
        ),
        curved,
    )
