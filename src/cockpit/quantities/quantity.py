"""Quantity: declares what it needs of a step, and turns an observation of it into values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from cockpit.engine.answers.table import Table
from cockpit.engine.needs import Known, Need, TopEigenvalue
from cockpit.engine.statistics import Statistic
from cockpit.errors import CockpitError, Gap
from cockpit.naming import snake_case
from cockpit.schedule import Schedule, as_schedule, every
from cockpit.store.record import Histogram, Numbers

Memory = dict[str, Any]
"""What a quantity remembers between steps: tensors, numbers, lists. Saved and restored with a checkpoint."""


@dataclass(frozen=True, eq=False)
class OptimizerView:
    """What a quantity may know of the optimiser: its class, settings and each parameter's learning rate."""

    name: str
    learning_rate: Mapping[str, float]
    plain_sgd: bool
    learning_rates: tuple[float, ...] = ()
    """One for each parameter group."""


@dataclass(frozen=True, eq=False)
class Observation:
    """All that a quantity may look at. What was not declared as a need is not there.

    Sums and lists run over all examples of the step: every micro-batch, every rank.
    """

    step: int
    examples: int
    statistics: Table
    optimizer: OptimizerView
    memory: Memory
    known: Mapping[Known, Any] = field(default_factory=dict)
    eigenvalues: Mapping[TopEigenvalue, Any] = field(default_factory=dict)
    curvature_method: Mapping[Need, str | Gap] = field(default_factory=dict)
    trace_variance: Mapping[Need, float] = field(default_factory=dict)
    clock: float = 0.0
    following: Observation | None = None

    def __getitem__(self, what: Known) -> Any:
        """Return a known vector, or say that it is missing."""
        found = self.known.get(what)
        if found is None:
            raise Gap(f"no_{what.value}: the {what.value} of this step are not known")
        return found

    def insist(self, statistic: Statistic, what: str) -> None:
        """Say that something is missing if no parameter has this statistic."""
        if not self.statistics.stacked(statistic)[0]:
            raise Gap(f"no_{what}: the {what} of this step are not known")

    @property
    def losses(self) -> Tensor:
        """The loss of every example, [N], float64."""
        losses: Tensor = self[Known.LOSSES]
        return losses


Number = float | Tensor
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reading:
    """What a quantity returns: a value for the model, values by parameter, and how far to trust them.

    ``by_parameter`` is any mapping; `Numbers` and `Histograms` (``cockpit.store.record``) hold all parameters in one
    array, which costs least to record.
    """

    value: Number | Histogram | None = None
    by_parameter: Mapping[str, Number | Histogram] = field(default_factory=dict)
    status: str = "ok"
    more: Mapping[str, Number | Mapping[str, Number]] = field(default_factory=dict)
    """Further numbers, stored as ``<quantity>.<key>``; a mapping gives one for each scope."""


@dataclass(frozen=True, eq=False)
class Readings(Reading):
    """What a quantity returns of a stretch of S steps (`Quantity.stretches`)."""

    value: Any = None
    """An array [S], or a list of histograms."""
    by_parameter: Any = None
    """Names and an array [S, P], or a list of `Histograms`."""
    status: Any = "ok"
    """One for all steps, or a list."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers, [S] each, or `Further`."""


@dataclass(frozen=True, eq=False)
class Further:
    """A further number of the model, with those of parameters: of one step, or of a stretch, [S] and [S, P]."""

    value: Any
    names: tuple[str, ...] = ()
    each: Array | None = None

    def of_step(self) -> dict[str, float]:
        """Return them by scope."""
        each = () if self.each is None else self.each.tolist()
        return {"": float(self.value), **dict(zip(self.names, each, strict=True))}


def reading(
    value: Any,
    names: tuple[str, ...] = (),
    each: Array | None = None,
    status: Sequence[str] = ("ok",),
    **more: Any,
) -> Reading:
    """Return the reading of one step, or those of a stretch.

    Args:
        value: of the model, a number or an array [S].
        names: the parameters.
        each: their numbers, [P] or [S, P].
        status: of each step, or of all.
        more: further numbers of the model, or `Further`.
    """
    if np.ndim(value):
        numbers = None if each is None else (names, each)
        return Readings(value, numbers, list(status) * (len(value) // len(status)), more)
    parts = {} if each is None else Numbers(names, each)
    further = {key: x.of_step() if isinstance(x, Further) else float(x) for key, x in more.items()}
    return Reading(float(value), parts, status[0], further)


@dataclass(frozen=True, eq=False)
class Quantity(ABC):
    """Something worth recording. Fields are settings; two of one class need different labels."""

    when: Schedule = field(default=every(1), kw_only=True)
    label: str = field(default="", kw_only=True)

    needs_after: ClassVar[tuple[Need, ...]] = ()
    """What is needed of the following step; its value is then known one step later and stored at its own."""
    unit: ClassVar[str] = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "when", as_schedule(self.when))

    @property
    def needs(self) -> Iterable[Need]:
        """What is needed of the step."""
        return ()

    def request(self, memory: Memory, step: int) -> Iterable[Need]:
        """Return the needs where they depend on earlier steps (adapted bins); by default just `needs`."""
        return self.needs

    @property
    def adaptive(self) -> bool:
        """Whether a request depends on the value before, which must then be known before the next step begins."""
        return type(self).request is not Quantity.request

    @property
    def stretches(self) -> bool:
        """Whether `compute` takes a stretch of steps, too: statistics and losses [S, …] in, `Readings` out."""
        return False

    def start(self, parameters: Mapping[str, Tensor], memory: Memory) -> None:  # noqa: B027  # most need none
        """Look at the parameters once, before the first step."""

    @abstractmethod
    def compute(self, o: Observation) -> Reading | Number | Histogram:
        """Return the value; raise `Gap` where it does not exist."""

    @cached_property
    def name(self) -> str:
        """The stored name: the class in snake_case, and the label."""
        return snake_case(type(self).__name__) + (f":{self.label}" if self.label else "")

    def describe(self) -> dict[str, Any]:
        """Return name, settings and meaning, as stored with the run."""
        doc = (type(self).__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        settings = {f.name: repr(getattr(self, f.name)) for f in fields(self)}
        return {
            "name": self.name,
            "class": type(self).__name__,
            "settings": settings,
            "unit": self.unit,
            "doc": doc,
        }


def check_choice(owner: str, setting: str, value: object, choices: Iterable[object]) -> None:
    """Refuse a setting that is not among the choices, in the constructor rather than in mid-training."""
    choices = list(choices)
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise CockpitError(f"{owner}({setting}={value!r}): {setting} is one of {listed}")
