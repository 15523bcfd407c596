"""Largest eigenvalue of the Hessian."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cockpit.engine.curvature.lanczos import Eigenpair
from cockpit.engine.curvature.tracking import TrackedEigenvalue
from cockpit.engine.needs import Need, TopEigenvalue
from cockpit.errors import Gap
from cockpit.quantities.quantity import Observation, Quantity, Reading, reading


@dataclass(frozen=True, eq=False)
class HessMaxEV(Quantity):
    r"""Largest algebraic eigenvalue of the Hessian, $\lambda_{\max}(H) = \max_v v^\top H v / v^\top v$.

    At the first tracked step it is solved by Lanczos iteration, later it is followed from step to step with
    ``products`` Hessian-vector products each (2 if None; `cockpit.engine.curvature.tracking`): an estimate, about
    half of the time within 1 %, but off by 10 % and more where a step's Hessian has little to do with the last one's
    (small batches, steps far apart, another eigenvector overtaking). The status is ``not_converged`` unless the
    products speak for 1 %. More products bring it nearer. Memory: 4 vectors of the size of the model.

    With a ``tolerance`` it is solved anew at every tracked step instead, warm-started, until the residual
    $\|Hv - \lambda v\|$ is below ``tolerance`` times $|\lambda|$ or ``products`` (200 if None) are spent.

    Residual and number of products are stored with it. ``by_parameter`` adds the largest eigenvalue of each
    parameter's diagonal block, at the price of as many solves as there are parameters.
    """

    tolerance: float | None = None
    products: int | None = None
    by_parameter: bool = field(default=False, kw_only=True)

    def _need(self, blocks: bool) -> TopEigenvalue:
        if self.tolerance is None:
            return TrackedEigenvalue(blocks=blocks, per_step=2 if self.products is None else self.products)
        return TopEigenvalue(self.tolerance, 200 if self.products is None else self.products, blocks)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (self._need(False), self._need(True)) if self.by_parameter else (self._need(False),)

    stretches = True

    def compute(self, o: Observation) -> Reading:
        pairs = [found[""] for found in _found(o, self._need(False))]
        blocks = _found(o, self._need(True)) if self.by_parameter else [{}] * len(pairs)
        names = tuple(blocks[0])
        each = np.array([[found[name].value for name in names] for found in blocks])
        value, residual, products = np.array([(p.value, p.residual, p.products) for p in pairs]).T
        status = ["ok" if p.converged else _doubt(p) for p in pairs]
        if not isinstance(o.eigenvalues[self._need(False)], list):
            value, each, residual, products = value[0], each[0], residual[0], products[0]
        return reading(value, names, each if names else None, status, residual=residual, products=products)


def _doubt(pair: Eigenpair) -> str:
    return f"not_converged: residual {pair.residual:.2g} after {pair.products} products"


def _found(o: Observation, need: TopEigenvalue) -> list[Mapping[str, Eigenpair]]:
    """Return what was found at the step, or at each of a stretch."""
    found = o.eigenvalues.get(need)
    steps: list[Any] = found if isinstance(found, list) else [found]
    for one in steps:
        if one is None:
            raise Gap("no_losses: the Hessian needs the losses of the step")
        if isinstance(one, Gap):
            raise one
    return steps
