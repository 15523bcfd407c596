"""Watched: the block around one backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from cockpit.errors import CockpitError

if TYPE_CHECKING:
    from cockpit.session.cockpit import Cockpit


class Watched:
    """The block around one backward pass."""

    def __init__(self, cockpit: Cockpit, losses: Tensor | None, own: bool) -> None:
        self._cockpit, self._losses, self._own = cockpit, losses, own
        self._entered = False

    def __enter__(self) -> None:
        if self._cockpit._watching:
            raise CockpitError(
                "watch: a backward pass is being watched already. Leave the first `with cockpit.watch(…)` block "
                "(or the call of `cockpit.backward`) before the next one; each holds exactly one backward pass."
            )
        self._cockpit._watching = True
        try:
            self._entered = self._cockpit._enter(self._losses, self._own)
        except BaseException:
            self._cockpit._interrupt()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._cockpit._interrupt()  # the user's exception is the news; nothing of this pass is kept
            return
        try:
            if self._entered:
                self._cockpit._leave()
        finally:
            self._cockpit._watching = False
