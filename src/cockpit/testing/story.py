"""What happens in a made-up training: values that fit together, of the model and of its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cockpit.store.points import Points
from cockpit.store.record import NONFINITE, Column, Histogram, Histograms, Numbers
from cockpit.store.status import Status

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BATCH = 32
WIDTH = 16
BLOCK = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")


def parameter_names(count: int) -> tuple[str, ...]:
    """Return names of parameters: an embedding, blocks, a head."""
    layers = [
        "embed",
        *(f"blocks.{k // 4}.{BLOCK[k % 4]}" for k in range(max(0, -(-count // 2) - 2))),
        "head",
    ]
    return tuple(f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias"))[-count:]


@dataclass(frozen=True, eq=False)
class Story:
    """The made-up values of a training of so many steps, for a model with these parameters."""

    steps: int
    names: tuple[str, ...]
    random: np.random.Generator
    trouble: str

    @property
    def sizes(self) -> Ints:
        """How many elements each parameter has."""
        return np.array([WIDTH if name.endswith("bias") else WIDTH * WIDTH for name in self.names])

    @property
    def broken(self) -> float:
        """The step from which on nothing is finite."""
        return 0.6 * self.steps if self.trouble == "nan" else float("inf")

    @property
    def dead(self) -> int | None:
        """The place of the parameter without a gradient."""
        return len(self.names) // 2 if self.trouble == "dead_layer" else None

    def learning_rate(self, steps: Ints) -> Floats:
        """Rise for a twentieth of the training, then fall like a cosine."""
        progress = (steps + 1) / self.steps
        rate = 0.1 * np.minimum(progress / 0.05, 0.5 * (1 + np.cos(np.pi * progress)))
        return np.asarray(np.maximum(rate, 1e-5))

    def values(self, steps: Ints) -> dict[str, Points]:
        """Return the model's values by name."""
        n = len(steps)

        def noise(scale: float) -> Floats:
            return np.exp(self.random.normal(0.0, scale, n))

        age, rate = steps / self.steps, self.learning_rate(steps)
        loss = (0.25 + 2.05 / (1 + 30 * age)) * noise(0.06)
        gradient = (0.35 + 2.5 * age**0.5) * noise(0.15)
        inner, ortho = 0.25 * noise(0.2), (0.55 + 0.5 * age) * noise(0.12)
        norm = np.hypot(inner, ortho)
        sharp = (2 + 25 * age**0.7) * noise(0.12)
        trace, gsnr = 6 * sharp * noise(0.1), 0.012 / (1 + 3 * age) * noise(0.1)
        update, residual = rate * gradient, sharp * self.random.uniform(0.002, 0.03, n)
        alpha = -0.75 + 9.5 * rate + self.random.normal(0, 0.28, n)
        concave = self.random.uniform(size=n) < 0.15 - 0.1 * age
        grade = np.ceil(10 * np.log2(1 + residual)).astype(np.int32) * (residual > 0.015 * sharp)
        doubts = [f"not_converged: residual {2 ** (k / 10) - 1:.2g} after 2 products" for k in range(1, 31)]
        words = {
            "alpha": Status(
                np.where(concave, 1, 2 * (alpha < -1)).astype(np.int32),
                (
                    "concave: the fitted parabola has no minimum",
                    "uphill: the fitted minimum lies behind the start",
                ),
            ),
            "hess_max_ev": Status(np.minimum(grade, len(doubts)), tuple(doubts)),
            "hess_trace": Status(np.ones(n, np.int32), ("estimated: hessian=ggn_mc",)),
            "tic_diag": Status(np.ones(n, np.int32), ("estimated: ggn_mc",)),
        }
        found = {
            "alpha": np.where(concave, np.nan, alpha),
            "alpha.slope_start": -update * gradient,
            "alpha.slope_end": update * gradient * np.where(concave, -1.1, alpha),
            "distance": 12 * age**0.5,
            "grad_norm": gradient,
            "inner_test": inner,
            "loss": loss,
            "norm_test": norm,
            "ortho_test": ortho,
            "update_size": update,
            "tic_diag": 900 * (1 + 2 * age) * noise(0.2),
            "hess_trace": trace,
            "hess_trace.standard_error": 0.08 * trace,
            "hess_max_ev": sharp,
            "hess_max_ev.residual": residual,
            "tic_trace": gradient**2 * (1 + (BATCH - 1) * norm**2) / trace,
            "mean_gsnr": gsnr,
            "cabs": rate * (BATCH - 1) * gradient**2 * norm**2 / loss,
            "early_stopping": 1 - 11 * (BATCH - 1) * gsnr,
            "time": 1.75e9 + 0.021 * steps + 0.002 * self.random.uniform(size=n),
            "learning_rate": rate,
        }
        broken = steps >= self.broken
        for name in found.keys() - {"time", "learning_rate"} if broken.any() else ():
            found[name][broken] = np.nan
            codes, texts = words.get(name, Status())
            before = np.zeros(n, np.int32) if codes is None else codes
            words[name] = Status(
                np.where(broken, len(texts) + 1, before).astype(np.int32), (*texts, NONFINITE)
            )
        return {name: Points(steps, numbers, words.get(name, Status())) for name, numbers in found.items()}

    def shares(self) -> dict[str, tuple[Floats, float]]:
        """Return how parameters share each number, and the power in which they add up (0: they do not)."""
        count, sizes = len(self.names), self.sizes
        depth = np.linspace(0.7, 1.3, count) * self.random.uniform(0.7, 1.4, count) * sizes**0.5
        if self.dead is not None:
            depth[self.dead] *= 1e-12
        norms = depth / np.sqrt((depth**2).sum())
        sums = depth * sizes / (depth * sizes).sum()
        near = self.random.uniform(0.7, 1.3, count)
        return {
            **dict.fromkeys(("distance", "grad_norm", "update_size"), (norms, 2.0)),
            **dict.fromkeys(("tic_diag", "hess_trace", "cabs"), (sums, 1.0)),
            **dict.fromkeys(("norm_test", "inner_test", "ortho_test"), (near, 0.0)),
            **dict.fromkeys(("mean_gsnr", "early_stopping", "alpha"), (near, 0.0)),
        }

    def parts(self, step: int, name: str, value: float, share: Floats, power: float) -> Column:
        """Return the parameters' values that add up to the model's."""
        if name == "alpha" and np.isnan(value) and step < self.broken:
            value = -1.1  # parameters know no concave steps
        each = share * np.exp(self.random.normal(0, 0.1, len(self.names)))
        if power:
            each = each / (each**power).sum() ** (1 / power)
        return Column(step, name, parts=Numbers(self.names, value * each))

    def histograms(self, name: str, step: int) -> Column:
        """Return the histograms of all parameters and of the model."""
        elements = BATCH * self.sizes
        width = 0.03 * (1 + 2 * step / self.steps) * np.linspace(0.6, 1.6, len(self.names))
        if self.dead is not None:
            width[self.dead] = 1e-9
        edges: Any = np.linspace(-2, 2, 101) if name == "grad_hist1d" else np.linspace(-1, 1, 41)
        share = _bell(edges, width)
        if name == "grad_hist2d":
            across = np.linspace(-2, 2, 51)
            weights = _bell(across, 0.25 * np.linspace(0.8, 1.4, len(self.names)))
            share, edges = share[:, :, None] * weights[:, None, :], (edges, across)
        counts = np.floor(share * elements.reshape(-1, *[1] * (share.ndim - 1))).astype(np.int64)
        flat, outside = counts.reshape(len(self.names), -1), np.zeros((len(self.names), 4), np.int64)
        if step >= self.broken:
            flat[:], outside[:, 2] = 0, elements
        else:  # what rounding lost was in the middle
            flat[np.arange(len(flat)), flat.argmax(1)] += elements - flat.sum(1)
        parts = Histograms(self.names, counts, edges, outside)
        return Column(step, name, Histogram(counts.sum(0), edges, *outside.sum(0).tolist()), parts=parts)


def _bell(edges: Floats, width: Floats) -> Floats:
    """Return the shares [P, bins] of logistic distributions between edges."""
    below = 0.5 * (1 + np.tanh(edges / (1.2 * width[:, None])))
    return np.asarray(np.diff(below))
