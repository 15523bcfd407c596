"""Largest eigenvalue of the Hessian."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cockpit.engine.lanczos import Eigenpair
from cockpit.engine.needs import Need, TopEigenvalue
from cockpit.errors import Gap
from cockpit.quantities.quantity import Observation, Quantity, Reading


@dataclass(frozen=True, eq=False)
class HessMaxEV(Quantity):
    r"""Largest algebraic eigenvalue of the Hessian, $\lambda_{\max}(H) = \max_v v^\top H v / v^\top v$.

    Lanczos iteration, warm-started from the last step's eigenvector, until the residual $\|Hv - \lambda v\|$ is below
    ``tolerance`` times $|\lambda|$; residual and number of products are stored with it. ``by_parameter`` adds the
    largest eigenvalue of each parameter's diagonal block, at the price of as many solves as there are parameters.
    """

    tolerance: float = 1e-3
    products: int = 200
    by_parameter: bool = field(default=False, kw_only=True)

    def _need(self, blocks: bool) -> TopEigenvalue:
        return TopEigenvalue(self.tolerance, self.products, blocks)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (self._need(False), self._need(True)) if self.by_parameter else (self._need(False),)

    def compute(self, o: Observation) -> Reading:
        pair = _found(o, self._need(False))[""]
        blocks = _found(o, self._need(True)) if self.by_parameter else {}
        status = "ok" if pair.converged else f"not_converged: residual {pair.residual:.2g}"
        more = {"residual": pair.residual, "products": float(pair.products)}
        return Reading(pair.value, {name: block.value for name, block in blocks.items()}, status, more)


def _found(o: Observation, need: TopEigenvalue) -> Mapping[str, Eigenpair]:
    found = o.eigenvalues.get(need)
    if found is None:
        raise Gap("no_losses: the Hessian needs the losses of the step")
    if isinstance(found, Gap):
        raise found
    return found
