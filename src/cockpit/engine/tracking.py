r"""The largest eigenvalue of a Hessian that changes from step to step, with two products a step.

Carried from step to step are the $k = 3$ topmost Ritz vectors $W$ (3 D numbers) and their values. The first
product of a step is with the top one; each further one is with what the model below lacks most. After $m$
products with orthonormal $Y$ the basis $Q$ spans $W$ and $HY$. Of $Q^\top H Q$ every entry that touches $Y$
is known exactly; the block outside $Y$ is completed by a model: the carried values of $W$, scaled as the top
one has changed, and `UNSEEN` times the Rayleigh-Ritz value for directions never multiplied. The largest
eigenvalue of the completed matrix is the value. An error $\delta$ of the model changes it by
$\delta \|(I - YY^\top) u\|^2$ only, with $u$ its eigenvector: of second order, where a plain Rayleigh quotient
misses all that lies outside of $Y$.

The completed value is an estimate. On $Y$, $\theta \le \lambda_{\max}$, and some eigenvalue is within the residual
$\|Hv - \theta v\|$ of the Ritz value $\theta$. ``converged`` says that the residual is below `NEAR` and that the value
moves by less than `TRUSTED` when the model is varied. That is a test of plausibility, not a bound: no few products
can exclude a new top eigenvector orthogonal to everything seen, and with two products it happens.

All decisions are made from projected numbers, so processes that see the same products stay in step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.lanczos import Carried, Eigenpair, Subspace
from cockpit.engine.needs import TopEigenvalue

CARRIED = 3
"""Ritz vectors carried from step to step."""

UNSEEN = 0.25
"""Curvature along a direction met first in this step, relative to the value; -0.1 to 0.8 in trainings measured."""

RANGE = (-0.5, 0.8)
"""What `UNSEEN` may be."""

TRUSTED = 0.01
"""Relative uncertainty up to which a value counts as converged."""

NEAR = 0.03
"""Residual, relative to the value, up to which it may count as converged."""

CHANGE = 4.0
"""By how much the carried values may be scaled from one step to the next."""

OPTIMISM = 1.06
"""Growth a step of carried values not looked at, so that a vector that may have overtaken gets its product."""

KNOWN = 0.1
"""An eigenvector is known if no more than this of it lies outside of the multiplied directions."""


@dataclass(frozen=True)
class TrackedEigenvalue(TopEigenvalue):
    """`TopEigenvalue`, solved to ``tolerance`` once and then followed with ``per_step`` products a step."""

    per_step: int = 2


def followed(
    product: Callable[[Tensor], Tensor],
    carried: Carried,
    products: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Eigenpair:
    """Return the largest eigenvalue after ``products`` more products, with what to carry on.

    Args:
        product: maps a flat vector [D] to a flat vector; deterministic.
        carried: of the last step; finite, of D columns.
        products: how many products to spend, at least 1.
        dtype: of the vectors.
        device: of the vectors.
    """
    known, size = carried.vectors.shape
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        space = Subspace(known + max(products, 1), size, dtype, device)
        space.load(carried.vectors.to(device=device, dtype=dtype))
        seen = Seen(carried.values, len(space.basis))
        for _ in range(max(products, 1)):
            direction = seen.next_direction(space.count)
            if direction is None:
                break
            seen.add(direction, space.append(product(space.combine(direction[: space.count], space.count))))
        residual, top = seen.residual(), seen.ritz()[0]
        value = float(seen.completed(UNSEEN, space.count, limit=top)[0][-1])
        low = float(seen.completed(RANGE[0], space.count, limit=top)[0][-1])
        # By what the top vector's product has changed, those of the other carried ones may have changed too.
        swing = 1 + 2 * residual / max(abs(value), torch.finfo(torch.float64).tiny)
        high = float(seen.completed(RANGE[1], space.count, swing)[0][-1])
        values, vectors = seen.completed(UNSEEN, space.count)
        keep = min(CARRIED, space.count)
        rows = space.combine(vectors[:, -keep:].T, space.count)
        return Eigenpair(
            value,
            rows[-1] / rows[-1].norm(),
            residual,
            seen.products,
            high - low <= TRUSTED * abs(value) and residual <= NEAR * abs(value),
            Carried(rows, values[-keep:].clone()),
        )


class Seen:
    """What is known of the projected matrix: orthonormal directions, their products, and the carried values."""

    def __init__(self, values: Tensor, capacity: int) -> None:
        self.values = values.to(device="cpu", dtype=torch.float64)
        self.directions = torch.zeros(capacity, 0, dtype=torch.float64, device="cpu")
        self.images = torch.zeros(capacity, 0, dtype=torch.float64, device="cpu")

    @property
    def products(self) -> int:
        """How many directions have been multiplied."""
        return self.directions.shape[1]

    def add(self, direction: Tensor, image: Tensor) -> None:
        """Enter a direction and its product, in coordinates of the basis."""
        self.directions = torch.cat([self.directions, direction[:, None]], dim=1)
        self.images = torch.cat([self.images, image[:, None]], dim=1)

    def ritz(self) -> tuple[float, Tensor]:
        """Return the largest Ritz value on the multiplied directions, and its coefficients among them."""
        projected = self.directions.T @ self.images
        values, vectors = torch.linalg.eigh((projected + projected.T) / 2)
        return float(values[-1]), vectors[:, -1]

    def residual(self) -> float:
        r"""Return $\|Hv - \theta v\|$ of the Ritz pair."""
        value, mixture = self.ritz()
        return float((self.images @ mixture - value * (self.directions @ mixture)).norm())

    def completed(
        self, unseen: float, count: int, swing: float = OPTIMISM, limit: float = math.inf
    ) -> tuple[Tensor, Tensor]:
        """Return eigenvalues (ascending) and eigenvectors (in columns) of the completed matrix.

        Args:
            unseen: curvature of directions met in this step, relative to the largest Ritz value.
            count: size of the basis.
            swing: factor of the carried values.
            limit: the largest carried value to believe.
        """
        known = len(self.values)
        model = torch.zeros(count, dtype=torch.float64, device="cpu")
        model[:known] = self.values
        model[:known] *= swing
        if self.products:
            top, first = self.ritz()[0], float(self.directions[:, 0] @ self.images[:, 0])
            before = float(self.values[-1])
            if first * before > 0:  # the whole spectrum has grown or shrunk with its top
                model[:known] *= min(max(first / before, 1 / CHANGE), CHANGE)
            model[:known].clamp_(max=limit)
            model[known:] = top - (1 - unseen) * abs(top)
        y, hy = self.directions[:count], self.images[:count]
        outside = torch.eye(count, dtype=torch.float64, device="cpu") - y @ y.T
        exact = hy @ y.T
        matrix = outside @ (model[:, None] * outside) + exact + exact.T - y @ (y.T @ exact)
        values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
        return values, vectors

    def next_direction(self, count: int) -> Tensor | None:
        """Return the direction to multiply next, or None if all of the basis has been multiplied.

        It is the part of the completed matrix's eigenvector that has not been multiplied: of the top one, but
        of the next where the top one is known already, lest a second eigenvector overtake it unseen.
        """
        if self.products == count:
            return None
        _, vectors = self.completed(UNSEEN, count)
        candidates = vectors - self.directions[:count] @ (self.directions[:count].T @ vectors)
        lengths = candidates.norm(dim=0).flip(0)
        chosen = count - 1 - int((lengths > KNOWN).int().argmax())
        direction = torch.zeros(len(self.directions), dtype=torch.float64, device="cpu")
        direction[:count] = candidates[:, chosen] / candidates[:, chosen].norm()
        return direction
