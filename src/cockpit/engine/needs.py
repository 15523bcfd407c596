"""What a quantity can ask for: statistics of individual gradients, known vectors, and curvature."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from torch import Tensor

from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.statistics import Join, Statistic


class Known(Enum):
    """Vectors the engine keeps for a step when somebody needs them."""

    LOSSES = "losses"
    """The loss of every example."""
    GRADIENTS = "gradients"
    """The mean gradient, as the backward pass left it: unclipped, and without any loss scale."""
    PARAMETERS = "parameters"
    """The parameters before the step."""
    UPDATES = "updates"
    """The step taken, θ_{t+1} − θ_t."""

    __hash__ = object.__hash__  # (Enum's own is written in Python, and asked several times a step.)


CurvatureName = Literal["diag_h", "diag_ggn_exact", "diag_ggn_mc", "diag_h_auto", "diag_ggn_auto"]
CURVATURES: tuple[CurvatureName, ...] = (
    "diag_h",
    "diag_ggn_exact",
    "diag_ggn_mc",
    "diag_h_auto",
    "diag_ggn_auto",
)


@dataclass(frozen=True)
class Diagonal(Statistic):
    """The diagonal of a curvature matrix, summed over examples; served by backward passes of its own."""

    curvature: CurvatureName
    samples: int = 1
    over_examples = Join.SUM
    over_parameters = Join.NEVER
    individual = small = False

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return zeros: what an unused parameter contributes."""
        return g.total()


@dataclass(frozen=True)
class DiagonalVariance(Statistic):
    """The variance of the trace estimate of `Diagonal` (zero where it is exact), one number a parameter."""

    diagonal: Diagonal
    over_examples = Join.SUM
    over_parameters = Join.SUM
    individual = False

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return zero: what an unused parameter contributes."""
        return g.total().sum()


@dataclass(frozen=True)
class TopEigenvalue:
    """The largest algebraic eigenvalue of the Hessian of the step's mean loss.

    With ``blocks``, of the diagonal block of every parameter instead.
    """

    tolerance: float = 1e-3
    products: int = 200
    blocks: bool = False


Need = Statistic | Known | TopEigenvalue


def individual_gradients(need: Need) -> bool:
    """Say whether a need rests on individual gradients."""
    return isinstance(need, Statistic) and need.individual
