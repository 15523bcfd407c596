"""Distance from the initial parameters."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from cockpit.engine.needs import Known
from cockpit.errors import Gap
from cockpit.quantities.norms import norms
from cockpit.quantities.quantity import Memory, Observation, Quantity, Reading


@dataclass(frozen=True, eq=False)
class Distance(Quantity):
    r"""Distance travelled, $\|\theta_t - \theta_0\|_2$, per parameter and in all.

    $\theta_0$ are the parameters at the first watched step, or those restored with a checkpoint.
    """

    needs = (Known.PARAMETERS,)

    def start(self, parameters: Mapping[str, Tensor], memory: Memory) -> None:
        memory.setdefault("origin", {name: p.detach().clone() for name, p in parameters.items()})

    def compute(self, o: Observation) -> Reading:
        origin, now = o.memory.get("origin", {}), o[Known.PARAMETERS]
        if not all(name in origin for name in now):
            raise Gap("no_origin: a parameter appeared after the first watched step")
        return norms({name: p - origin[name].to(p) for name, p in now.items()})
