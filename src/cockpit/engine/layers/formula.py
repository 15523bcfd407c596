"""The register of layer formulas: from a layer's input and output gradient to per-example gradients.

A formula is one decorated function::

    @formula(nn.Linear, features=1)
    def linear(call: Call) -> dict[str, Part]: ...

It receives a `Call` (what the layer saw going forward and what came back) and returns a `Part` for each of
the layer's own parameters, by attribute name (a dotted path for a child's that the layer uses itself).
Formulas know nothing of loss scaling or batch layout: the output gradients arrive as those of the examples'
own losses, and `Call.split` cuts any tensor into [N, T, *features].

A formula need not be trusted: before it is used on a model, coverage compares it with autograd on the live
graph (`cockpit.engine.coverage.examination`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from inspect import Signature, signature
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from cockpit.engine.gradients.parts import Part


@dataclass(frozen=True)
class Layout:
    """Where the examples are: an axis of R·N entries, example index slowest (``minor=False``) or fastest."""

    axis: int = 0
    minor: bool = False

    def split(self, x: Tensor, examples: int, features: int) -> Tensor:
        """Return ``x`` as [N, T, *features]; T collects everything in front that is not the example."""
        if x.ndim == features + 1 and len(x) == examples and not self.axis:  # nothing to move
            return x.unsqueeze(1)
        tail = x.shape[x.ndim - features :]
        if x.ndim == features:  # an unbatched call belongs to the only example
            return x.reshape(1, 1, *tail)
        repeats = x.shape[self.axis] // examples
        sizes = (repeats, examples) if self.minor else (examples, repeats)
        x = x.unflatten(self.axis, sizes).movedim(self.axis + int(self.minor), 0)
        return x.reshape(examples, -1, *tail)

    def expand(self, values: Tensor, x: Tensor) -> Tensor:
        """Shape one value per example so that it broadcasts against ``x``."""
        if x.ndim == 0 or x.shape[self.axis] == 0:
            return values.reshape(-1)[:1].reshape([1] * x.ndim)
        repeats = x.shape[self.axis] // len(values)
        flat = values.repeat(repeats) if self.minor else values.repeat_interleave(repeats)
        return flat.reshape([-1 if k == self.axis else 1 for k in range(x.ndim)])


@dataclass(frozen=True, eq=False)
class Replay:
    """What is needed to run a layer's forward pass again to the bit: random states and autocast."""

    cpu: Tensor
    device: torch.device
    device_state: Tensor | None
    autocast: torch.dtype | None

    @staticmethod
    def now(device: torch.device) -> Replay:
        """Record the state just before a forward pass."""
        state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        on = torch.is_autocast_enabled(device.type)
        return Replay(
            torch.get_rng_state(), device, state, torch.get_autocast_dtype(device.type) if on else None
        )

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Restore the recorded state inside the block, and the present one after it."""
        devices = [self.device] if self.device_state is not None else []
        with (
            torch.random.fork_rng(devices),
            torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None),
        ):
            torch.set_rng_state(self.cpu)
            if self.device_state is not None:
                torch.cuda.set_rng_state(self.device_state, self.device)
            yield


@dataclass(frozen=True, eq=False)
class Call:
    """One forward call of a layer and what came back through it.

    ``grads`` are the gradients of the output tensors (None where none came), already those of the examples'
    own losses. ``layouts`` say for each output tensor where its examples are; ``keep`` names the examples
    that count (None: all of them).
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grads: tuple[Tensor | None, ...]
    examples: int
    layouts: tuple[Layout, ...]
    keep: Tensor | None = None
    replay: Replay | None = None
    observed: tuple[Tensor, ...] = ()
    """What an `Observer` saw."""

    @property
    def input(self) -> Tensor:
        """The first input, however it was passed."""
        x = self.args[0] if self.args else next(iter(self.kwargs.values()))
        assert isinstance(x, Tensor)
        return x

    @property
    def grad(self) -> Tensor:
        """The gradient of the only output."""
        (dy,) = self.grads
        assert dy is not None
        return dy

    @property
    def arguments(self) -> dict[str, Any]:
        """What ``forward`` received, by name."""
        return arguments(self.module, self.args, self.kwargs)

    @property
    def simple(self) -> bool:
        """Whether all examples count and lie in the first axis, one after the other."""
        first = self.layouts[0].axis == 0 and len(self.grad) == self.examples
        return self.keep is None and first

    def split(self, x: Tensor, features: int, layout: Layout | None = None) -> Tensor:
        """Cut ``x`` into [N, T, *features] along the first output's layout (or the one given)."""
        x = (layout or self.layouts[0]).split(x, self.examples, features)
        return x if self.keep is None else x[self.keep]


@lru_cache(maxsize=256)
def _signature(forward: Callable[..., Any]) -> Signature:
    return signature(forward)


def arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``forward`` received, by name, defaults filled in."""
    bound = _signature(type(module).forward).bind(module, *args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


Candidates = Callable[[nn.Module, tuple[Tensor, ...], int], list[tuple[Layout, ...]]]
"""(module, outputs, N) -> the ways the examples may lie in the outputs, likeliest first."""


class Observer(Protocol):
    """Sees what a call keeps inside itself, from before the call and after."""

    def wants(self, module: nn.Module) -> bool:
        """Say whether a layer has such a thing, in whatever mode it will be."""

    def before(self, module: nn.Module) -> Tensor | None:
        """Keep what is needed from before a call."""

    def after(self, module: nn.Module, before: Tensor | None, outputs: list[Tensor]) -> list[Tensor] | str:
        """Return what was seen, or why the call is beyond the formula."""

    def forget(self, module: nn.Module) -> None:
        """Let go of what is kept for a layer from call to call."""


@dataclass(frozen=True, eq=False)
class Formula:
    """A registered layer formula and what capture must know about it."""

    parts: Callable[[Call], dict[str, Part]]
    candidates: Candidates
    refuses: Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], str | None]
    replays: Callable[[nn.Module], bool]
    observer: Observer | None = None
    postponed: bool = False


FORMULAS: dict[type[nn.Module], Formula] = {}


def leading(features: int | Callable[[nn.Module, Tensor], int]) -> Candidates:
    """Candidates for one output whose examples lie in an axis in front of its ``features`` last axes."""

    def candidates(module: nn.Module, outputs: tuple[Tensor, ...], n: int) -> list[tuple[Layout, ...]]:
        out = outputs[0]
        last = features if isinstance(features, int) else features(module, out)
        front = out.shape[: out.ndim - last]
        if n == 1 or not front:
            return [(Layout(),)] if n == 1 else []
        exact: list[tuple[Layout, ...]] = [(Layout(k),) for k, size in enumerate(front) if size == n]
        several = [k for k, size in enumerate(front) if size > n and size % n == 0]
        return exact + [(Layout(k, minor),) for k in several for minor in (False, True)]

    return candidates


def formula(
    *types: type[nn.Module],
    features: int | Callable[[nn.Module, Tensor], int] = 1,
    candidates: Candidates | None = None,
    refuses: Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], str | None] = lambda m, a, k: None,
    replays: Callable[[nn.Module], bool] = lambda m: False,
    observer: Observer | None = None,
    postponed: bool = False,
) -> Callable[[Callable[[Call], dict[str, Part]]], Callable[[Call], dict[str, Part]]]:
    """Register a layer formula.

    Args:
        types: the module classes it serves; subclasses too, as long as they do not override ``forward``.
        features: how many last axes of the output are not batch (may depend on the module and the output).
        candidates: instead of ``features``, for layers with several outputs.
        refuses: returns why a particular call is beyond the formula (it then goes to the fallback), or None.
        replays: whether the formula runs the layer again and needs the random state from before the call.
        observer: sees what the formula needs and a call does not give out.
        postponed: whether it needs as much room as autograd keeps for the layer, and waits until that is let go.
    """

    def register(fn: Callable[[Call], dict[str, Part]]) -> Callable[[Call], dict[str, Part]]:
        for cls in types:
            FORMULAS[cls] = Formula(
                fn, candidates or leading(features), refuses, replays, observer, postponed
            )
        return fn

    return register


def formula_for(module: nn.Module) -> Formula | None:
    """Return the formula of the nearest class whose ``forward`` the module really uses.

    A parametrised layer has none: reading its weight computes it anew, and may change its state (spectral
    normalisation iterates at every look in training mode).
    """
    if hasattr(module, "parametrizations") or hasattr(module, "weight_g") or hasattr(module, "weight_orig"):
        return None
    for cls in type(module).__mro__:
        if cls in FORMULAS:
            return FORMULAS[cls] if type(module).forward is cls.forward else None
    return None
