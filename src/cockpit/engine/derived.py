r"""Numbers made on the device from vectors of a parameter's size, so that only the numbers leave it.

A `Derived` statistic names its sources, statistics that are themselves as large as the parameter (sums of
gradients or of their squares, curvature), and folds them into a few numbers once they are joined over
micro-batches and ranks. A `Length` does so with a vector of the step: gradient, update, distance travelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.needs import Diagonal, DiagonalVariance, Known
from cockpit.engine.numbers.lengths import FEW, groups, squared_lengths
from cockpit.engine.numbers.precision import wide_dtype
from cockpit.engine.numbers.sums import signed_sums, wide_sum
from cockpit.engine.numbers.takeuchi import takeuchi, takeuchi_of_all
from cockpit.engine.statistics import Join, SquareSum, Statistic, Total


class Folded(Statistic):
    """Numbers that are not reduced from individual gradients directly."""

    over_examples = Join.NEVER
    over_parameters = Join.SUM
    individual = False

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Not asked: it has other sources."""
        raise NotImplementedError


@dataclass(frozen=True)
class Length(Folded):
    r"""$\|x_p\|^2$ of a vector of the step, for every parameter p."""

    of: Known


@dataclass(frozen=True, eq=False)
class Separation(Folded):
    r"""$\|\theta_p - \theta_{0,p}\|^2$ of every parameter before the step, from an origin."""

    origin: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        self.__dict__["_hash"] = id(self.origin)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Separation) and other.origin is self.origin

    def __repr__(self) -> str:
        return f"Separation({id(self.origin)})"


class Derived(Folded):
    """Numbers of a parameter computed from larger statistics of it."""

    @property
    def sources(self) -> tuple[Statistic, ...]:
        """What it is computed from."""
        raise NotImplementedError

    def derive(self, examples: int, *sources: Tensor) -> Tensor:
        """Return the numbers of one parameter."""
        raise NotImplementedError

    def derive_all(self, examples: int, *sources: Sequence[Tensor]) -> list[Tensor]:
        """Return the numbers of several parameters, whose sources are in the same order.

        Where launches are what counts, together: some at a time, so that what is formed does not grow with them.
        """
        found: list[Tensor] = []
        for start, stop in groups([x.numel() for x in sources[0]]):
            group = [list(x[start:stop]) for x in sources]
            if group[0][0].device.type == "cpu" or stop - start < FEW:
                found += [self.derive(examples, *each) for each in zip(*group, strict=True)]
            else:
                found += self.joint(examples, *group)
        return found

    def joint(self, examples: int, *sources: list[Tensor]) -> Iterable[Tensor]:
        """Return the numbers of parameters that are small together; one by one where there is no other way."""
        return [self.derive(examples, *each) for each in zip(*sources, strict=True)]


@dataclass(frozen=True)
class MeanNorm2(Derived):
    r"""$\|g\|^2$ with the mean gradient $g = \frac1N\sum_n g_n$ of the examples."""

    sources = (Total(),)

    def derive(self, examples: int, *sources: Tensor) -> Tensor:
        """Return a number."""
        (total,) = sources
        (square,) = squared_lengths([total])
        return square / max(1, examples) ** 2


@dataclass(frozen=True)
class SignalToNoise(Derived):
    r"""$\sum_j g_j^2/(\sigma_j^2 + \varepsilon)$ with the variance of individual gradients, biased or unbiased."""

    epsilon: float
    unbiased: bool
    sources = (SquareSum(), Total())
    individual = True

    def derive(self, examples: int, *sources: Tensor) -> Tensor:
        """Return a number; differences of squares that rounding makes negative are clamped at zero."""
        squares, total = (x.to(wide_dtype(x.device)) for x in sources)
        factor = examples / max(1, examples - 1) if self.unbiased else 1.0
        mean = total / max(1, examples)
        variance = (squares / max(1, examples) - mean.square()).clamp_min(0)
        return (mean.square() / (factor * variance + self.epsilon)).sum()


@dataclass(frozen=True)
class Trace(Derived):
    r"""$\sum_j h_j$ of a curvature diagonal, summed over examples."""

    diagonal: Diagonal

    @property
    def sources(self) -> tuple[Statistic, ...]:
        """The diagonal."""
        return (self.diagonal,)

    def derive(self, examples: int, *sources: Tensor) -> Tensor:
        """Return a number."""
        return wide_sum(sources[0])

    def joint(self, examples: int, *sources: list[Tensor]) -> Iterable[Tensor]:
        """Return numbers."""
        return signed_sums(sources[0]).unbind(0)


@dataclass(frozen=True)
class Takeuchi(Derived):
    r"""$\sum_j \frac{\frac1N\sum_n g_{nj}^2}{h_j+\varepsilon}$; of it, what rests on curvature near or below zero.

    The third number counts coordinates of negative curvature.
    """

    diagonal: Diagonal
    epsilon: float
    individual = True

    @property
    def sources(self) -> tuple[Statistic, ...]:
        """Squares and diagonal."""
        return (SquareSum(), self.diagonal)

    def derive(self, examples: int, *sources: Tensor) -> Tensor:
        """Return [3]."""
        squares, h = sources  # both are sums over the examples
        return takeuchi(squares, h, max(1, examples) * self.epsilon)

    def joint(self, examples: int, *sources: list[Tensor]) -> Iterable[Tensor]:
        """Return [3] each."""
        squares, h = sources
        return takeuchi_of_all(squares, h, max(1, examples) * self.epsilon).unbind(0)


def is_curved(need: object) -> bool:
    """Say whether a need rests on a curvature diagonal."""
    sources = need.sources if isinstance(need, Derived) else ()
    return any(isinstance(x, Diagonal | DiagonalVariance) for x in (need, *sources))
