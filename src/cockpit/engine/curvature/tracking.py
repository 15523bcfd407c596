r"""The largest eigenvalue of a Hessian that changes from step to step, with two products a step.

With each batch the Hessian is another. Carried from step to step are the $k$ = `CARRIED` topmost eigenvectors $W$
(k D numbers) and eigenvalues of its running mean, since a vector that is averaged over batches is nearer to the next
batch's than the last batch's own. The first product of a step is with the top one; each further one is with what the
model below lacks most. After $m$ products with orthonormal $Y$ the basis $Q$ spans $W$ and
$HY$. Of $Q^\top H Q$ every entry that touches $Y$ is known exactly; the block outside $Y$ is completed by a model: the
carried values of $W$, scaled as the top one has grown (by the square root where it has shrunk: another may have
overtaken it), and `UNSEEN` times the Rayleigh-Ritz value for directions
never multiplied. The largest eigenvalue of the completed matrix is the value. An error $\delta$ of the model changes
it by $\delta \|(I - YY^\top) u\|^2$ only, with $u$ its eigenvector: of second order, where a plain Rayleigh quotient
misses all that lies outside of $Y$.

The completed value is an estimate. On $Y$, $\theta \le \lambda_{\max}$, and some eigenvalue is within the residual
$\|Hv - \theta v\|$ of the Ritz value $\theta$. ``converged`` says that the residual is below `NEAR`, that of the first
product alone below `STILL`, and that the value moves by less than `TRUSTED` when the model is varied. That is a test of
plausibility, not a bound: no few products can exclude a new top eigenvector orthogonal to everything seen, and with two
products it happens.

Measured with two products on a new batch of 128 at each step of plain SGD, against converged solves: within 1 % are
97 % of the first steps of cifar10_3c3d at its learning rate of 0.001, 72 % of those of fmnist_2c2d at 0.02 after 150
steps, where one in ten is off by a seventh; 50 to 98 % of small networks' on Fashion-MNIST. Of mnist_mlp's first steps
at 0.001 it is 14 %, with a median error of 5 %: its largest eigenvalues lie close to each other, and the
topmost eigenvectors of two batches have little in common. No two products come near then, which the residual says.

Vectors are never made orthogonal: all that is decided follows from the products of the rows with one another, which
come to the host in one small transfer for each Hessian product, so that a step asks little of the device besides them.
The small matrices and the constants named above are in `cockpit.engine.curvature.seen`. All decisions are made from
projected numbers, so processes that see the same products stay in step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.curvature.lanczos import Carried, Eigenpair
from cockpit.engine.curvature.seen import look
from cockpit.engine.needs import TopEigenvalue
from cockpit.engine.numbers.precision import without_autocast
from cockpit.engine.numbers.vectors import Rows, rounding

CARRIED = 4
"""Vectors carried from step to step."""


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
    with torch.no_grad(), without_autocast(device.type):
        first, products = carried.vectors.to(device=device, dtype=dtype), max(products, 1)
        rows, seen = Rows(first, products), look(carried.values, rounding(first), products)
        direction = first[-1]
        for left in reversed(range(products)):
            rows.append(product(direction))
            weights = seen.add(rows.inner(1 if seen.products else rows.count), left > 0)
            if weights is None:
                break
            direction = rows.combine(weights)[0]
        del direction
        value, residual, converged = seen.value()
        values, weights = seen.averaged(CARRIED)
        kept = rows.combine(weights)
        return Eigenpair(value, kept[-1], residual, seen.products, converged, Carried(kept, values))
