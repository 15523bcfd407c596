"""Largest eigenvalue of the Hessian."""

from dataclasses import dataclass

from cockpit.engine.needs import Need, TopEigenvalue
from cockpit.errors import Gap
from cockpit.quantities.quantity import Observation, Quantity, Reading


@dataclass(frozen=True, eq=False)
class HessMaxEV(Quantity):
    r"""Largest algebraic eigenvalue of the Hessian, $\lambda_{\max}(H) = \max_v v^\top H v / v^\top v$.

    Lanczos iteration, warm-started from the last step's eigenvector, until the residual $\|Hv - \lambda v\|$ is below
    ``tolerance`` times $|\lambda|$; residual and number of products are stored with it.
    """

    tolerance: float = 1e-3
    products: int = 200

    @property
    def needs(self) -> tuple[Need, ...]:
        return (TopEigenvalue(self.tolerance, self.products),)

    def compute(self, o: Observation) -> Reading:
        found = o.eigenvalues.get(TopEigenvalue(self.tolerance, self.products))
        if found is None:
            raise Gap("no_losses: the Hessian needs the losses of the step")
        if isinstance(found, Gap):
            raise found
        status = "ok" if found.converged else f"not_converged: residual {found.residual:.2g}"
        more = {"residual": found.residual, "products": float(found.products)}
        return Reading(found.value, status=status, more=more)
