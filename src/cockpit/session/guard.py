"""Guards: what fails inside a block of ours is told, and the training goes on."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class Guard:
    """A block whose exceptions are handed to ``failed``, with what was being done.

    (A class, because a generator's block takes four times as long to enter, and every step enters several.)
    """

    __slots__ = ("_doing", "_failed")

    def __init__(self, failed: Callable[[str, Exception], None], doing: str) -> None:
        self._failed, self._doing = failed, doing

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(failure, Exception):  # nothing, or the end of the program
            return False
        self._failed(self._doing, failure)
        return True
