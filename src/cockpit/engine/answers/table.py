"""Table: the answers of one step, joined over micro-batches, ranks and parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cockpit.engine.answers.ranks import Ranks
from cockpit.engine.derived import Derived
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense
from cockpit.engine.needs import Need
from cockpit.engine.statistics import Join, Statistic, joined
from cockpit.errors import Gap

Stacked = tuple[tuple[str, ...], npt.NDArray[np.float64]]
"""Names of parameters, and an array whose first axis goes through them."""

SEVERAL = "needs_full_batch: more micro-batches came than in the step before"
"""Why something is not known of a step of which more was seen than was expected."""


class Table:
    """Joined statistics of one step, by statistic and parameter.

    A parameter that took part in one micro-batch (or on one rank) and not in another had zero gradients there;
    one that took part nowhere is *unused* and absent.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        self._cells: dict[Statistic, dict[str, list[tuple[int, Tensor]]]] = {}
        self._sizes: list[int] = []
        self._used: set[str] = set()
        self._gaps: dict[str, str] = {}
        self._void: dict[Statistic, str] = {}
        self._joined: dict[Statistic, dict[str, Tensor]] = {}
        self._stacked: dict[Statistic, Stacked] = {}
        self._shared: dict[Any, Any] = {}

    @property
    def examples(self) -> int:
        """Number of examples on this process."""
        return sum(self._sizes)

    @property
    def batches(self) -> int:
        """Number of micro-batches so far."""
        return len(self._sizes)

    @property
    def used(self) -> set[str]:
        """Parameters that took part in the step."""
        return self._used

    def begin(self, examples: int, used: Iterable[str], gaps: Mapping[str, str]) -> None:
        """Open the next micro-batch; ``gaps`` are parameters whose individual gradients cannot be had, and why."""
        self._sizes.append(examples)
        self._used.update(used)
        self._gaps.update(gaps)

    def resize(self, examples: int) -> None:
        """Start the present micro-batch over, with fewer examples."""
        present = len(self._sizes) - 1
        self._sizes[present] = examples
        for row in self._cells.values():
            for name, cell in row.items():
                row[name] = [(batch, value) for batch, value in cell if batch != present]

    def gap(self, name: str, reason: str) -> None:
        """Note that a parameter's individual gradients are missing in this step."""
        self._gaps.setdefault(name, reason)

    def begin_using(self, name: str, reason: str) -> None:
        """Note that a parameter thought unused took part after all, without individual gradients."""
        self._used.add(name)
        self.gap(name, reason)

    def drop(self) -> None:
        """Take the present micro-batch back."""
        self.resize(0)
        self._sizes.pop()

    def void(self, statistic: Statistic, reason: str) -> None:
        """Give up one statistic for this step."""
        self._void[statistic] = reason

    def is_void(self, statistic: Statistic) -> bool:
        """Say whether a statistic was given up."""
        return statistic in self._void

    def add(self, statistic: Statistic, name: str, value: Tensor, batch: int | None = None) -> None:
        """Enter an answer of a micro-batch (the present one unless said otherwise)."""
        cell = self._cells.setdefault(statistic, {}).setdefault(name, [])
        cell.append((len(self._sizes) - 1 if batch is None else batch, value))

    def close(self, statistics: Iterable[Statistic], ranks: Ranks | None = None) -> None:
        """Join what has been entered for these statistics, over micro-batches and then over ranks."""
        statistics = [s for s in statistics if s not in self._joined]
        if ranks is not None:
            self._used = ranks.union(self._used, list(self.parameters))
            self._gaps = {
                **self._gaps,
                **dict.fromkeys(ranks.union(set(self._gaps), list(self.parameters)), ""),
            }
        for statistic in statistics:
            cells = self._cells.pop(statistic, {})
            self._joined[statistic] = {
                name: joined(statistic.over_examples, self._filled(statistic, name, cells.get(name, [])))
                for name in self.covered
            }
        if ranks is not None:
            ranks.join({s: self._joined[s] for s in statistics})

    @property
    def covered(self) -> list[str]:
        """Parameters that took part and whose individual gradients are known."""
        return [name for name in self.parameters if name in self._used and name not in self._gaps]

    def enter(self, statistic: Statistic, values: Mapping[str, Tensor], everywhere: bool = False) -> None:
        """Enter a joined statistic that was had in another way, of covered parameters only or ``everywhere``."""
        names = values if everywhere else [name for name in self.covered if name in values]
        self._joined[statistic] = {name: values[name] for name in names}

    def forget(self, statistics: Iterable[Statistic]) -> None:
        """Make room for joined statistics to be computed again."""
        for statistic in statistics:
            self._joined.pop(statistic, None)

    def shrink(self, needed: Collection[Need]) -> None:
        """Let go of statistics as large as the parameters, but for those that are needed."""
        if self._joined:
            self._joined = {s: row for s, row in self._joined.items() if s.small or s in needed}

    def derive(self, statistic: Derived, examples: int) -> None:
        """Compute a derived statistic from its sources."""
        sources = [self._joined.get(source, {}) for source in statistic.sources]
        names = [name for name in self.parameters if all(name in row for row in sources)]
        values = statistic.derive_all(examples, *([row[name] for name in names] for row in sources))
        self._joined[statistic] = dict(zip(names, values, strict=True))

    def fill(self, statistics: Iterable[Statistic], everywhere: bool = False) -> None:
        """Count zero gradients where a parameter had none so far, with the parameters as they are now.

        ``everywhere``: also where it took part on other ranks only.
        """
        for statistic in statistics:
            row = self._cells.setdefault(statistic, {})
            for name in self.parameters if everywhere else self.covered:
                there = {batch for batch, _ in row.get(name, ())}
                for batch, examples in enumerate(self._sizes):
                    if batch not in there:
                        self.add(statistic, name, self._zero(statistic, name, examples), batch)

    def _filled(self, statistic: Statistic, name: str, cell: list[tuple[int, Tensor]]) -> list[Tensor]:
        by_batch: dict[int, Tensor] = {}
        for batch, value in cell:  # a micro-batch served in several pieces
            pieces = [by_batch[batch], value] if batch in by_batch else [value]
            by_batch[batch] = joined(statistic.over_examples, pieces)
        sizes = self._sizes or [0]
        return [by_batch[k] if k in by_batch else self._zero(statistic, name, n) for k, n in enumerate(sizes)]

    def _zero(self, statistic: Statistic, name: str, examples: int) -> Tensor:
        parameter = self.parameters[name].detach()
        zeros = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(
            examples, *parameter.shape
        )
        if statistic.over_examples is Join.CAT:  # a projection on whatever direction is zero
            return zeros.new_zeros(examples)
        return statistic.reduce(ExampleGradients(name, parameter, (Dense(zeros),)))

    def numbers(self) -> list[tuple[Statistic, tuple[str, ...], list[Tensor]]]:
        """Return what is small enough to leave the device: (statistic, parameters, a tensor of each)."""
        return [(s, tuple(row), list(row.values())) for s, row in self._joined.items() if s.small and row]

    def has(self, statistic: Statistic) -> bool:
        """Say whether some parameter has this statistic."""
        return bool(self._joined.get(statistic)) or statistic in self._stacked

    @property
    def entered(self) -> list[Statistic]:
        """The statistics that are joined."""
        return list(self._joined)

    @property
    def blank(self) -> bool:
        """Whether it holds no numbers yet, neither on the device nor on the host."""
        return not self._joined and not self._stacked

    def settle(self, statistic: Statistic, names: tuple[str, ...], values: npt.NDArray[np.float64]) -> None:
        """Take a statistic's numbers as they arrived on the host, [P, …]."""
        self._stacked[statistic] = (names, values)

    def settle_more(
        self, statistic: Statistic, names: tuple[str, ...], values: npt.NDArray[np.float64], axis: int = 0
    ) -> None:
        """Take numbers of further parameters, which lie along an axis; all are then in the order of the parameters."""
        known, others = self._stacked.get(statistic, ((), None))
        place = {name: k for k, name in enumerate((*known, *names))}
        order = tuple([name for name in self.parameters if name in place])
        joined = values if others is None else np.concatenate([others, values], axis)
        self._stacked[statistic] = (order, np.take(joined, [place[name] for name in order], axis))

    @property
    def gaps(self) -> dict[str, str]:
        """Parameters whose individual gradients are missing, and why."""
        return self._gaps

    def frame(self) -> tuple[set[str], dict[str, str], dict[Statistic, str]]:
        """Return what steps must have in common to be told together: who took part, and what is missing."""
        return self._used, self._gaps, self._void

    def emptied(self) -> Table:
        """Return a table with the same frame and no numbers."""
        table = Table(self.parameters)
        table._used, table._gaps, table._void = self.frame()
        return table

    def take(self, stretch: Table, which: int | slice) -> None:
        """Take the numbers of one step, or of some, from those of a stretch of steps, [S, P, …]."""
        for statistic, (names, values) in stretch._stacked.items():
            self._stacked[statistic] = (names, values[which])

    def by_parameter(self, statistic: Statistic) -> dict[str, Tensor]:
        """Return the statistic of every parameter that has one."""
        if statistic in self._void:
            raise Gap(self._void[statistic])
        if statistic in self._stacked:
            names, values = self._stacked.pop(statistic)
            self._joined[statistic] = dict(zip(names, torch.from_numpy(values).unbind(0), strict=True))
        return self._joined.get(statistic, {})

    def stacked(self, statistic: Statistic) -> Stacked:
        """Return the statistic of every parameter that has one as one array on the host, [P, …] float64."""
        if statistic in self._void:
            raise Gap(self._void[statistic])
        if statistic not in self._stacked:
            row = self._joined.get(statistic, {})
            values = [v.detach().cpu() for v in row.values()]
            values = [v.double() if v.is_floating_point() else v for v in values]
            self._stacked[statistic] = (tuple(row), torch.stack(values).numpy() if values else np.zeros(0))
        names, array = self._stacked[statistic]
        if names and not array.size:
            raise Gap("no_examples: no example of this step counts")
        return names, array

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Return what several quantities compute alike, computed once."""
        if key not in self._shared:
            self._shared[key] = compute()
        return self._shared[key]

    def restore(self, statistic: Statistic, values: Mapping[str, Tensor]) -> None:
        """Enter a joined statistic that was saved with a checkpoint."""
        self._joined[statistic] = dict(values)
        self._used.update(values)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which gradient elements are seen."""
        dtype = next(iter(self.parameters.values())).dtype
        return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype

    def total(self, statistic: Statistic) -> Tensor:
        """Return the statistic of the whole model; a `Gap` if a parameter that matters has none."""
        self.total_exists(statistic)
        if statistic in self._stacked:
            values = self._stacked[statistic][1]
            whole = values.max(0) if statistic.over_parameters is Join.MAX else values.sum(0)
            return torch.as_tensor(whole)
        return joined(statistic.over_parameters, list(self.by_parameter(statistic).values()))

    def total_exists(self, statistic: Statistic) -> None:
        """Raise a `Gap` if a parameter that matters has no such statistic."""
        if statistic in self._void:
            raise Gap(self._void[statistic])
        stacked = self._stacked.get(statistic)
        values = set(stacked[0] if stacked is not None else self.by_parameter(statistic))
        missing = [name for name in self._used if name not in values]
        if missing:
            reason = self._gaps.get(missing[0]) or "no individual gradients at this step"
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise Gap(f"not_covered: {missing[0]}{more}: {reason}")
        if not values:
            raise Gap("no_gradients: no parameter took part in this step")
