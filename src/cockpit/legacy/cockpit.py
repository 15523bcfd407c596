"""Cockpit: the original's interface, ``with cockpit(step, info={...}): loss.backward()``."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import Tensor

from cockpit.legacy import backpack
from cockpit.legacy.context import Frame, get_loss, opened
from cockpit.legacy.log import write_log
from cockpit.legacy.measurement import Measurement
from cockpit.legacy.quantities.measured import Measured
from cockpit.legacy.quantities.quantity import Quantity

_OPEN: list[Measurement] = []
"""The measurements whose blocks are open, the innermost last."""


class Cockpit:
    """Tracks quantities of some parameters.

    Args:
        params: the parameters, all with ``requires_grad=True``.
        quantities: what to track.
    """

    BACKPACK_CONV_SAVE_MEMORY = True
    """Handed on to BackPACK, if extensions of your own are used."""

    def __init__(self, params: Iterable[Tensor], quantities: Iterable[Quantity] | None = None) -> None:
        self.params = list(params)
        for p in self.params:
            if not p.requires_grad:
                raise ValueError(f"Got parameter with requires_grad=False: {p}")
        self.quantities: list[Quantity] = []
        self.output: dict[int, dict[str, Any]] = defaultdict(dict)
        self._measurement = Measurement(self.params)
        self._optimizer_name = ""
        for quantity in quantities or ():
            self.add(quantity)

    def add(self, quantity: Quantity) -> None:
        """Track one more quantity."""
        if not isinstance(quantity, Quantity):
            raise ValueError(f"Added quantities must be instances of Quantity. Got {quantity}")
        self.quantities.append(quantity)
        self._measurement.prepare(self._measured)

    @property
    def _measured(self) -> list[Measured]:
        return [q for q in self.quantities if isinstance(q, Measured)]

    def create_graph(self, global_step: int) -> bool:
        """Say whether a quantity of yours needs a differentiable backward pass; the built-in ones do not."""
        return any(q.create_graph(global_step) for q in self.quantities)

    def __call__(
        self, global_step: int, *exts: Any, info: Mapping[str, Any] | None = None, debug: bool = False
    ) -> AbstractContextManager[None]:
        """Return the block for the one backward pass of a step.

        Args:
            global_step: the step's number.
            *exts: BackPACK extensions of your own.
            info: what quantities may need: ``loss`` (always), ``individual_losses``, ``batch_size``,
                ``optimizer``.
            debug: handed on to BackPACK.
        """
        if info and "optimizer" in info:
            self._optimizer_name = type(info["optimizer"]).__name__  # stands above figures
        frame = Frame(global_step, info or {}, self._measurement.chosen.names)
        return self._block(frame, exts, debug)

    @contextmanager
    def _block(self, frame: Frame, exts: tuple[Any, ...], debug: bool) -> Iterator[None]:
        step, measurement = frame.step, self._measurement
        own = backpack.distinct(e for q in self.quantities for e in q.extensions(step))
        hooks = [hook for q in self.quantities for hook in q.extension_hooks(step)]
        kept = {e.savefield for e in exts}.union(*(q.protected_savefields(step) for q in self.quantities))
        with opened(frame):
            with _others_deaf(), backpack.silent():
                measurement.enter(frame, self._measured)
            _OPEN.append(measurement)
            try:
                extensions = backpack.distinct((*exts, *own))
                with backpack.running(extensions, hooks, self.BACKPACK_CONV_SAVE_MEMORY, debug):
                    yield
            except BaseException:
                measurement.abandon()  # the user's exception is the news; nothing of this step is kept
                measurement.prepare(self._measured)
                raise
            finally:
                _OPEN.remove(measurement)
            with _others_deaf():
                measurement.leave(frame)
                measurement.prepare(self._measured)
                loss = get_loss(step)
                for quantity in self.quantities:
                    quantity.track(step, self.params, loss)
            backpack.free(self.params, own, kept)

    def log(
        self,
        global_step: int,
        epoch_count: int,
        train_loss: float,
        valid_loss: float,
        test_loss: float,
        train_accuracy: float,
        valid_accuracy: float,
        test_accuracy: float,
        learning_rate: float,
    ) -> None:
        """Store numbers of your own at a step."""
        self.output[global_step].update(
            epoch_count=epoch_count,
            train_loss=train_loss,
            valid_loss=valid_loss,
            test_loss=test_loss,
            train_accuracy=train_accuracy,
            valid_accuracy=valid_accuracy,
            test_accuracy=test_accuracy,
            learning_rate=learning_rate,
        )

    def get_output(self) -> dict[int, dict[str, Any]]:
        """Return everything tracked so far: ``{step: {class of the quantity: value}}``.

        Of several quantities of one class the second is found under ``Class_2``, and so on.
        """
        seen: Counter[str] = Counter()
        for quantity in self.quantities:
            name = type(quantity).__name__
            seen[name] += 1
            key = name if seen[name] == 1 else f"{name}_{seen[name]}"
            for step, value in quantity.get_output().items():
                self.output[step][key] = value
        return self.output

    def write(self, logpath: str | os.PathLike[str]) -> None:
        """Write everything tracked so far to ``logpath`` plus ``.json``, in the original's format."""
        write_log(logpath, self.get_output())


def _others_deaf() -> ExitStack:
    """Keep the cockpits around this one from taking its backward passes for the user's."""
    stack = ExitStack()
    for measurement in _OPEN:
        stack.enter_context(measurement.deaf())
    return stack
