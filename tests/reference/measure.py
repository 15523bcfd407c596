"""From the individual gradients of a step to its records: every quantity, for the model and per parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reference import noise
from reference.counts import histogram_1d, histogram_2d
from reference.step import End, alpha

Array = npt.NDArray[np.float64]
Records = dict[tuple[str, str], tuple[Any, str]]


@dataclass(frozen=True)
class Seen:
    """The joined batch of a step: losses [N], individual gradients [N, D_p] per parameter, θ before it.

    ``used`` are the parameters that some loss depends on; ``names`` maps ids of parameters to their names.
    """

    losses: Array
    gradients: dict[str, Array]
    parameters: dict[str, Array]
    used: list[str]
    names: dict[int, str]

    def joined(self) -> Array:
        """Individual gradients [N, D] of the parameters in use."""
        return np.concatenate([self.gradients[k] for k in self.used], axis=1)


def noise_records(seen: Seen, optimizer: torch.optim.Optimizer) -> Records:
    """What follows from losses, parameters and individual gradients."""
    plain, G, loss = plain_sgd(optimizer), seen.joined(), float(seen.losses.mean())
    theta = {k: seen.parameters[k].ravel() for k in seen.used}
    records: Records = {("loss", ""): (loss, "ok")}
    for name, value in seen.parameters.items():
        records["parameters", name] = value, "ok"
        records["grad_norm", name] = float(np.linalg.norm(seen.gradients[name].mean(0))), "ok"
    records["grad_norm", ""] = float(np.linalg.norm(G.mean(0))), "ok"
    scopes = {"": (G, np.concatenate(list(theta.values())))} | {
        k: (seen.gradients[k], theta[k]) for k in seen.used
    }
    for scope, (g, t) in scopes.items():
        records["norm_test", scope] = noise.norm_test(g)
        records["inner_test", scope] = noise.inner_test(g)
        records["ortho_test", scope] = noise.ortho_test(g)
        records["mean_gsnr", scope] = noise.mean_gsnr(g)
        records["early_stopping", scope] = noise.early_stopping(g, plain)
        records["grad_hist1d", scope] = histogram_1d(g), "ok"
        records["grad_hist2d", scope] = histogram_2d(g, t), "ok"
    records["cabs", ""] = noise.cabs(grouped(seen, optimizer), loss, plain)
    return records


def curvature_records(seen: Seen, curved: dict[str, Array]) -> Records:
    """What follows from the Hessian ``hessian`` [D, D] and the diagonal ``diag_ggn_exact`` [D], where given.

    Names carry the curvature, as in ``hess_trace:diag_h``.
    """
    records: Records = {}
    ends = np.cumsum([g.shape[1] for g in seen.gradients.values()])
    places = {k: slice(e - g.shape[1], e) for (k, g), e in zip(seen.gradients.items(), ends, strict=True)}
    used = np.concatenate([np.arange(places[k].start, places[k].stop) for k in seen.used])
    diagonals = {k: h for k, h in curved.items() if k == "diag_ggn_exact"}
    if "hessian" in curved:
        H = curved["hessian"]
        diagonals["diag_h"] = np.diag(H)
        records["hess_max_ev", ""] = float(np.linalg.eigvalsh(H[np.ix_(used, used)])[-1]), "ok"
        for name in seen.used:
            block = H[places[name], places[name]]
            records["hess_max_ev", name] = float(np.linalg.eigvalsh(block)[-1]), "ok"
    for kind, h in diagonals.items():
        records[f"hess_trace:{kind}", ""] = float(h[used].sum()), "ok"
        records[f"tic_diag:{kind}", ""] = noise.tic_diag(seen.joined(), h[used])
        records[f"tic_trace:{kind}", ""] = noise.tic_trace(seen.joined(), h[used])
        for name in seen.used:
            records[f"hess_trace:{kind}", name] = float(h[places[name]].sum()), "ok"
            records[f"tic_diag:{kind}", name] = noise.tic_diag(seen.gradients[name], h[places[name]])
    return records


def step_length(start: Seen, end: Seen) -> dict[str, tuple[float, str]]:
    """α of the step between two observations, for the model and, from slopes alone, per parameter."""
    s = {k: (end.parameters[k] - start.parameters[k]).ravel() for k in start.parameters}
    slopes = [{k: seen.gradients[k] @ s[k] for k in s} for seen in (start, end)]
    ends = [End.of(seen.losses, sum(d.values())) for seen, d in zip((start, end), slopes, strict=True)]
    found = {"": alpha(*ends, moved=any(x.any() for x in s.values()))}
    for name in s:
        d0, d1 = (float(d[name].mean()) for d in slopes)
        found[name] = (-d1 / d0 if d0 else np.nan, "slopes_only") if s[name].any() else (-1.0, "zero_step")
    return found


def grouped(seen: Seen, optimizer: torch.optim.Optimizer) -> list[tuple[float, Array]]:
    """Learning rate and individual gradients of each parameter group."""
    pairs = []
    for group in optimizer.param_groups:
        names = [seen.names[id(p)] for p in group["params"] if id(p) in seen.names]
        pairs.append((float(group["lr"]), np.concatenate([seen.gradients[k] for k in names], axis=1)))
    return pairs


def plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """SGD without momentum, dampening, weight decay or Nesterov: what CABS and EarlyStopping are made for."""
    keys = ("momentum", "dampening", "weight_decay", "nesterov")
    return type(optimizer) is torch.optim.SGD and not any(g[k] for g in optimizer.param_groups for k in keys)
