"""The cockpits of a script that knows nothing of them: made when a model is found, closed when the script ends."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit.launch.finding import Finder
from cockpit.launch.live import Live
from cockpit.render.panel import clock, percent
from cockpit.store.run import Run

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Watched:
    """One model. Only its recorder is held: a model that the script has dropped must not stay in memory."""

    def __init__(self, cockpit: Any) -> None:
        self.cockpit, self._recorder = weakref.ref(cockpit), cockpit._recorder
        self.folder: Path | None = cockpit.run
        self._open = True

    def shares(self, model: nn.Module) -> bool:
        """Say whether it and a model have parameters in common."""
        cockpit = self.cockpit()
        if cockpit is None or not self._open:
            return False
        own = {id(p) for p in cockpit.model.parameters()}
        return any(id(p) in own for p in model.parameters())

    def close(self) -> None:
        """End the run."""
        if self._open:
            self._open = False
            (self.cockpit() or self._recorder).close()

    def close_if_dropped(self) -> None:
        """End the run of a model that is gone."""
        if self.cockpit() is None:
            self.close()


class Watching:
    """Attaches a cockpit to every model found, and says so."""

    def __init__(self, name: str, settings: dict[str, Any], live: Live | None) -> None:
        self._name, self._settings, self._live = name, settings, live
        self._process = os.getpid()
        self._watched: list[Watched] = []
        self._failures: set[str] = set()
        self._finder = Finder(self._attach, self._leave, self._guarded)
        self._finder.listen()
        self._close_at_exit()

    def _close_at_exit(self) -> None:
        """Be called before the handlers registered so far: a cockpit is to be closed, not cut off by its own."""
        atexit.unregister(self.close)
        atexit.register(self.close)

    def close(self) -> None:
        """End all runs and say what became of them, or why there are none."""
        if os.getpid() != self._process:
            return
        if self._live is not None:
            self._live.close()
        for watched in self._watched:
            with self._guarded():
                watched.close()
                if watched.folder is not None:
                    say(_ending(watched.folder))
        if not self._watched and not self._finder.claims and not self._failures:
            say(self._why_nothing())

    def _attach(self, model: nn.Module, optimizers: list[Optimizer]) -> None:
        if _is_compiled(model):
            kind = type(getattr(model, "_orig_mod", model)).__name__
            self._fail(f"{kind} is compiled and left alone; TORCH_COMPILE_DISABLE=1 cockpit run … watches it")
            return
        if any(watched.shares(model) for watched in self._watched):
            names = " and ".join(type(o).__name__ for o in optimizers)
            self._fail(f"{type(model).__name__} is watched already, with its first optimiser; {names} is not")
            return
        for watched in self._watched:
            watched.close_if_dropped()
        number = len(self._watched) + 1
        run = f"{self._name}-{number}" if number > 1 else self._name
        self._finder.own = True
        try:
            cockpit = import_module("cockpit.session").attach(model, optimizers, run=run, **self._settings)
        finally:
            self._finder.own = False
        watched = Watched(cockpit)
        self._watched.append(watched)
        self._close_at_exit()
        if watched.folder is not None:
            names = " and ".join(type(o).__name__ for o in optimizers)
            say(
                f"watching {type(cockpit.model).__name__} with {names}, without losses and curvature "
                f"(cockpit show {watched.folder})"
            )
            if self._live is not None:
                self._live.show(watched.folder)

    def _leave(self, model: nn.Module) -> None:
        """Let the script's own cockpit have a model."""
        for watched in [w for w in self._watched if w.shares(model)]:
            self._watched.remove(watched)
            watched.close()
            say("the script has a cockpit of its own for this model; ours is closed")
            if watched.folder is not None and not Run(watched.folder).steps()[0]:
                shutil.rmtree(watched.folder, ignore_errors=True)

    def _why_nothing(self) -> str:
        unfound = sorted({*self._finder.lost, *self._finder.waiting()})
        if not self._finder.torch:
            return "nothing was watched: the script did not import torch"
        if not unfound:
            return "nothing was watched: the script made no optimiser of torch.optim"
        return (
            f"nothing was watched: no module that holds all parameters of {', '.join(unfound)} was called. Make one "
            "module of all parts, or put a Cockpit into the loop (see: docs/training-loops.md)"
        )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the script must not notice
            with suppress(Exception):
                self._fail(f"not watched: {type(error).__name__}: {error}")

    def _fail(self, text: str) -> None:
        if text not in self._failures:
            self._failures.add(text)
            say(text)


def _is_compiled(model: nn.Module) -> bool:
    """Say whether torch.compile will take a model, or a part of it, to pieces: with our hooks it would make others."""
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        return False
    return any(
        hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None
        for part in model.modules()
    )


def _ending(folder: Path) -> str:
    run = Run(folder)
    meta, (_, last) = run.meta, run.steps()
    started, ended, overhead = meta.get("started"), meta.get("ended"), meta.get("overhead")
    text = f"{0 if last is None else last + 1} steps"
    if started is not None and ended is not None:
        text += f" in {clock(ended - started)}"
    if overhead is not None:
        text += f", watching added {percent(overhead)}"
    return f"{text} (cockpit show {folder})"


def say(text: str) -> None:
    """Write one line to standard error, if there is one."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write(f"cockpit: {text}\n")
            sys.stderr.flush()
