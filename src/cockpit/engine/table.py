"""Table: the answers of one step, joined over micro-batches, ranks and parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from cockpit.engine.gradients import ExampleGradients
from cockpit.engine.parts import Dense, wide
from cockpit.engine.ranks import Ranks
from cockpit.engine.statistics import Join, Statistic
from cockpit.errors import Gap


class Table:
    """Joined statistics of one step, by statistic and parameter.

    A parameter that took part in one micro-batch (or on one rank) and not in another had zero gradients there;
    one that took part nowhere is *unused* and absent.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        self.values: Mapping[str, Tensor] = {}
        """The parameters before the step, where they are kept."""
        self._cells: dict[Statistic, dict[str, list[tuple[int, Tensor]]]] = {}
        self._sizes: list[int] = []
        self._used: set[str] = set()
        self._gaps: dict[str, str] = {}
        self._void: dict[Statistic, str] = {}
        self._joined: dict[Statistic, dict[str, Tensor]] = {}

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
                name: _join_examples(statistic, self._filled(statistic, name, cells.get(name, [])))
                for name in self.parameters
                if name in self._used and name not in self._gaps
            }
        if ranks is not None:
            ranks.join({s: self._joined[s] for s in statistics})

    def _filled(self, statistic: Statistic, name: str, cell: list[tuple[int, Tensor]]) -> list[Tensor]:
        by_batch: dict[int, Tensor] = {}
        for batch, value in cell:  # a micro-batch served in several pieces
            pieces = [by_batch[batch], value] if batch in by_batch else [value]
            by_batch[batch] = _join_examples(statistic, pieces)
        sizes = self._sizes or [0]
        return [by_batch[k] if k in by_batch else self._zero(statistic, name, n) for k, n in enumerate(sizes)]

    def _zero(self, statistic: Statistic, name: str, examples: int) -> Tensor:
        parameter = self.values.get(name, self.parameters[name]).detach()
        zeros = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(
            examples, *parameter.shape
        )
        if statistic.over_examples is Join.CAT:  # a projection on whatever direction is zero
            return zeros.new_zeros(examples)
        return statistic.reduce(ExampleGradients(name, parameter, (Dense(zeros),)))

    def by_parameter(self, statistic: Statistic) -> dict[str, Tensor]:
        """Return the statistic of every parameter that has one."""
        if statistic in self._void:
            raise Gap(self._void[statistic])
        return self._joined.get(statistic, {})

    def restore(self, statistic: Statistic, values: Mapping[str, Tensor]) -> None:
        """Enter a joined statistic that was saved with a checkpoint."""
        self._joined[statistic] = dict(values)
        self._used.update(values)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which gradient elements are seen."""
        return wide(torch.empty(0, dtype=next(iter(self.parameters.values())).dtype)).dtype

    def total(self, statistic: Statistic) -> Tensor:
        """Return the statistic of the whole model; a `Gap` if a parameter that matters has none."""
        self.total_exists(statistic)
        return _reduce(statistic.over_parameters, list(self.by_parameter(statistic).values()))

    def total_exists(self, statistic: Statistic) -> None:
        """Raise a `Gap` if a parameter that matters has no such statistic."""
        values = self.by_parameter(statistic)
        missing = [name for name in self._used if name not in values]
        if missing:
            reason = self._gaps.get(missing[0]) or "no individual gradients at this step"
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise Gap(f"not_covered: {missing[0]}{more}: {reason}")
        if not values:
            raise Gap("no_gradients: no parameter took part in this step")


def _join_examples(statistic: Statistic, values: list[Tensor]) -> Tensor:
    return _reduce(statistic.over_examples, values)


def _reduce(join: Join, values: list[Tensor]) -> Tensor:
    if len(values) == 1:
        return values[0]
    if join is Join.CAT:
        return torch.cat(values)
    values = [v.to(values[0].device) for v in values]
    reduction: Callable[[Tensor], Tensor] = _REDUCTIONS[join]
    return reduction(torch.stack(values))


_REDUCTIONS: dict[Join, Callable[[Tensor], Tensor]] = {
    Join.SUM: lambda x: x.sum(0),
    Join.MAX: lambda x: x.amax(0),
}
