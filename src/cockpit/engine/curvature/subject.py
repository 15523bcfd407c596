"""Subject: a micro-batch with a live graph, of which curvature is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from cockpit.engine.derivatives.saved import Saved, saved, stand_in
from cockpit.engine.seeing.capture import Capture
from cockpit.engine.seeing.use import Use


@dataclass(frozen=True, eq=False)
class Subject:
    """Losses, one for each example, and what was seen of the forward pass that made them."""

    losses: Tensor
    outputs: tuple[Tensor, ...] = ()
    """What the model returned."""
    uses: Sequence[tuple[Use, int]] = ()
    """The calls of its layers, and their numbers among those of the same layer."""
    placed: Mapping[int, Use] = field(default_factory=dict)
    """Calls that stand for those the graph knows of, by their identities."""

    @classmethod
    def seen(cls, losses: Tensor, capture: Capture) -> Subject:
        """Return what was seen of the forward pass of some losses."""
        return cls(losses, tuple(capture.outputs), capture.numbered())

    def use(self, call: Use) -> Use:
        """Return the call that stands for one the graph knows of."""
        return self.placed.get(id(call), call)

    @property
    def names(self) -> list[tuple[str, int]]:
        """The layers called, in order."""
        return [(use.name, number) for use, number in self.uses]

    @property
    def again(self) -> bool:
        """Whether some layer has to run again, with the random numbers it had."""
        return any(use.replay is not None for use, _ in self.uses)

    def saved(self) -> Saved:
        """Read all that derivatives depend on."""
        inputs = [x for use, _ in self.uses for x in use.inputs]
        return saved(self.losses, [self.losses, *self.outputs, *inputs])

    def at(self, places: Sequence[Tensor]) -> Subject:
        """Return the same with losses, outputs and inputs in other places."""
        rest = iter(places)
        losses = stand_in(self.losses, next(rest))
        outputs = tuple(stand_in(x, next(rest)) for x in self.outputs)
        placed = {id(use): use.at([next(rest) for _ in use.inputs]) for use, _ in self.uses}
        return Subject(losses, outputs, self.uses, placed)
