"""Requests: what is asked of a step, sorted by how it is served."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cockpit.engine.derived import Derived, Folded, Length, MeanNorm2
from cockpit.engine.gradients.histograms import Histogram2d
from cockpit.engine.needs import Diagonal, Known, Need
from cockpit.engine.statistics import Direction, Projection, Statistic, Total

MEAN, UPDATE, LAST = (Projection(d) for d in (Direction.MEAN, Direction.UPDATE, Direction.LAST_UPDATE))
GRADIENTS, UPDATES = Length(Known.GRADIENTS), Length(Known.UPDATES)


@dataclass(frozen=True, eq=False)
class Requests:
    """The needs of a step, with what they themselves need."""

    needs: frozenset[Need] = frozenset()
    statistics: tuple[Statistic, ...] = ()
    individual: tuple[Statistic, ...] = ()
    """Statistics that are reduced from individual gradients."""
    diagonals: tuple[Diagonal, ...] = ()
    joined: tuple[Statistic, ...] = ()
    """Statistics whose answers join over micro-batches and ranks."""
    joint: tuple[Histogram2d, ...] = ()
    """Histograms that look at the parameters."""
    lengths: bool = False
    """Whether the length of the summed gradient is asked for."""
    sums: bool = False
    """Whether the summed gradient itself is asked for."""
    given: frozenset[Need] = frozenset()
    """What quantities ask for themselves, without what that is derived from."""

    @cached_property
    def reads_gradients(self) -> bool:
        """Whether ``.grad`` is looked at."""
        return self.lengths or self.sums or MEAN in self.needs

    @cached_property
    def moves(self) -> bool:
        """Whether the step taken is asked for in any form."""
        return bool(self.needs & {Known.UPDATES, UPDATES, UPDATE})

    @cached_property
    def recalls(self) -> bool:
        """Whether individual gradients are projected on the step before."""
        return LAST in self.individual

    @cached_property
    def parameters(self) -> bool:
        """Whether somebody wants the parameters before the step."""
        return Known.PARAMETERS in self.needs

    @cached_property
    def keeps(self) -> bool:
        """Whether something asked for keeps individual gradients as they are."""
        return any(s.keeps for s in self.individual)

    @cached_property
    def vectors(self) -> bool:
        """Whether somebody wants whole vectors."""
        return bool(self.needs & {Known.GRADIENTS, Known.PARAMETERS, Known.UPDATES})


def requests(needs: frozenset[Need], several: bool, last: bool, plain: bool) -> Requests:
    """Sort needs.

    Args:
        needs: what quantities ask for.
        several: whether there are several processes, of whose ``.grad`` nothing is sure.
        last: whether the step before is known.
        plain: whether the step will be a multiple of the gradient.
    """
    if not needs:
        return Requests()
    given = needs
    vectors = {n for n in needs if isinstance(n, Derived) and Total() in n.sources} - {MeanNorm2()}
    sums = bool(vectors) or bool(needs & {Total(), Known.GRADIENTS})
    needs |= {source for n in needs if isinstance(n, Derived) for source in n.sources}
    if Known.GRADIENTS in needs:
        needs |= {GRADIENTS}
    if MEAN in needs or (several and GRADIENTS in needs):
        needs |= {Total()}
    if not last:
        needs -= {LAST}
    if plain and needs & {UPDATE, UPDATES}:
        needs |= {GRADIENTS, MEAN, Total()} if UPDATE in needs else {GRADIENTS}
    statistics = tuple(sorted((n for n in needs if isinstance(n, Statistic)), key=repr))
    individual = tuple(n for n in statistics if n.individual and not isinstance(n, Folded))
    return Requests(
        needs,
        statistics,
        individual,
        tuple(n for n in statistics if isinstance(n, Diagonal)),
        tuple(s for s in statistics if not isinstance(s, Folded)),
        tuple(s for s in individual if isinstance(s, Histogram2d)),
        bool(needs & {MeanNorm2(), GRADIENTS, UPDATES}),
        sums,
        given,
    )
