"""Distance from the initial parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from cockpit.engine.derived import Separation
from cockpit.engine.needs import Need
from cockpit.engine.numbers.aside import aside
from cockpit.errors import Gap
from cockpit.quantities.norms import norms
from cockpit.quantities.quantity import Memory, Observation, Quantity, Reading


@dataclass(frozen=True, eq=False)
class Distance(Quantity):
    r"""Distance travelled, $\|\theta_t - \theta_0\|_2$, per parameter and in all.

    $\theta_0$ are the parameters at the first watched step, or those restored with a checkpoint.
    """

    stretches = True

    def start(self, parameters: Mapping[str, Tensor], memory: Memory) -> None:
        origin = memory.setdefault("origin", {})  # the same mapping as in a request made before
        if not origin:
            origin.update(aside(parameters))

    @property
    def adaptive(self) -> bool:
        return False

    def request(self, memory: Memory, step: int) -> Iterable[Need]:
        return (Separation(memory.setdefault("origin", {})),)

    def compute(self, o: Observation) -> Reading:
        separation = Separation(o.memory["origin"])
        if not o.statistics.parameters.keys() <= set(o.statistics.stacked(separation)[0]):
            raise Gap("no_origin: a parameter appeared after the first watched step")
        return norms(o, separation)
