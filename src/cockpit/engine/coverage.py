r"""Coverage: by which way each parameter's individual gradients are had, decided by trying it on the live graph.

A layer formula is exact only if it sees every use of the parameter, if it knows in which axis the examples lie,
and if no operation mixes examples. None of this can be read off a module tree, so it is *checked*, once for
every new shape of forward pass: two extra backward passes, one with all loss weights one, one with random
weights $w$, give output gradients of every layer and true gradients $\sum_i w_i \nabla\ell_i$ of every parameter.
A formula is used only if the individual gradients it derives from the first pass, weighted with $w$, add up to
the second. For random weights that is as good as a proof (Freivalds' argument), and it also tells which axis
holds the examples. Everything else is served by the fallback, which is exact for any graph.

The one exception is BatchNorm in training mode, which couples examples by design: there the layers below it get
the *row contribution* (what the rows of example i add to the joint gradient), labelled as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cockpit.engine.capture import Capture, Use
from cockpit.engine.fallback import rows
from cockpit.engine.gradients import ExampleGradients
from cockpit.engine.graph import hides_layers
from cockpit.engine.layers.formula import Layout, formula_for
from cockpit.engine.parts import Dense, Part, wide
from cockpit.engine.spread import Path, spreads


class Way(Enum):
    """How a parameter's individual gradients are had."""

    FORMULA = "formula"
    ROWS = "row_contribution"
    SPREAD = "spread"
    VMAP = "vmap"
    LOOP = "loop"
    UNUSED = "unused"
    FROZEN = "frozen"
    NONE = "none"

    @property
    def by_layers(self) -> bool:
        """Whether the gradients come from layer formulas."""
        return self in (Way.FORMULA, Way.ROWS)

    @property
    def by_graph(self) -> bool:
        """Whether they come from extra backward passes."""
        return self in (Way.VMAP, Way.LOOP)

    @property
    def past_layers(self) -> bool:
        """Whether output gradients of layers do not give them."""
        return self.by_graph or self is Way.SPREAD


@dataclass(frozen=True)
class Coverage:
    """The way taken for one parameter, and why."""

    way: Way
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Plan:
    """What was learnt about one shape of forward pass."""

    ways: Mapping[str, Coverage]
    layouts: Mapping[Any, tuple[Layout, ...]] = field(default_factory=dict)
    uses: Mapping[str, int] = field(default_factory=dict)
    checked: bool = True
    unproven: frozenset[str] = frozenset()
    """Parameters whose gradient was rounding when they were checked: nothing is nothing by every formula."""
    finite: bool = True
    """Whether the gradients were finite; if not, nothing was learnt for later."""
    paths: dict[str, Path] = field(default_factory=dict)
    """The way through the graph to where a parameter meets the examples."""
    _served: dict[int, frozenset[str]] = field(default_factory=dict)

    def served_by(self, module: nn.Module, names: Mapping[int, str]) -> frozenset[str]:
        """Return the parameters that a layer's formula serves; ``names`` is a parameter's by its identity."""
        if id(module) not in self._served:
            found = {names[id(p)] for p in module.parameters() if id(p) in names}
            self._served[id(module)] = frozenset(n for n in found if self.ways[n].way.by_layers)
        return self._served[id(module)]

    def used(self, parameters: Iterable[str]) -> list[str]:
        """Return those of the parameters that take part."""
        unused = self.names(Way.UNUSED)
        return [name for name in parameters if name not in unused]

    def names(self, *ways: Way) -> list[str]:
        """Return the parameters that go one of these ways."""
        return [name for name, c in self.ways.items() if c.way in ways]


TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3}
"""Relative deviation up to which a formula counts as confirmed; half precisions get 0.1.

A wrong formula is off by far more. (Many float64 models compute their norms in float32 inside.)
"""
NOTHING = {torch.float64: 1e-10, torch.float32: 1e-5}
"""Share of the whole gradient's norm below which a parameter's gradient is rounding; half precisions 1e-2."""


BATCHNORM = "BatchNorm in training mode couples the examples: row contribution to the joint gradient"
INCOMPLETE = "its layers' formulas do not give the whole gradient: it is used elsewhere too, or examples mix"


def parts_of(
    use: Use,
    grads: tuple[Tensor | None, ...],
    examples: int,
    layouts: tuple[Layout, ...],
    names: Mapping[int, str],
    keep: Tensor | None = None,
) -> Iterable[tuple[str, Part]]:
    """Apply the layer's formula: (qualified parameter name, part) for every parameter we watch."""
    for path, found in use.formula.parts(use.call(grads, examples, layouts, keep)).items():
        owner, _, attribute = path.rpartition(".")
        module = use.module.get_submodule(owner)
        parameter = module._parameters.get(
            attribute
        )  # a parametrised weight is no parameter, and not covered
        if parameter is not None and id(parameter) in names:
            for part in found if isinstance(found, tuple) else (found,):
                yield names[id(parameter)], part


def shape_plan(model: nn.Module, parameters: Mapping[str, Tensor], reason: str) -> Plan:
    """Trust formulas and shapes, where extra backward passes are impossible; ``reason`` says why they are.

    What a formula gives is then compared with the growth of ``.grad`` after the pass (`confirmed`).
    """
    with_formula = {id(p) for m in model.modules() if formula_for(m) is not None for p in m.parameters()}
    ways = {
        name: Coverage(Way.FORMULA, f"checked by its sum only: {reason}")
        if id(p) in with_formula
        else Coverage(Way.NONE, f"no layer formula covers it; the fallback is not possible: {reason}")
        for name, p in parameters.items()
    }
    return Plan(ways, checked=False)


def confirmed(found: Tensor | None, grown: Tensor | None) -> bool:
    """Say whether individual gradients add up to what the backward pass added to ``.grad``."""
    if grown is None:
        return found is None or not bool(found.any())
    if found is None:
        return not bool(grown.any())
    scale = float(found.norm()) + float(grown.norm())
    return float((found - grown).norm()) <= TOLERANCE.get(grown.dtype, 0.1) * scale + 1e-30


class Examination:
    """The two backward passes of one check, and what follows from them."""

    def __init__(self, capture: Capture, losses: Tensor, parameters: Mapping[str, Tensor]) -> None:
        self.capture, self.losses, self.parameters = capture, losses, parameters
        self.examples = len(losses)
        self.names = {id(p): name for name, p in parameters.items()}
        self.weights = probe_weights(losses)
        self.seen: dict[int, tuple[Use, tuple[Tensor | None, ...]]] = {}
        self.layouts: dict[int, tuple[Layout, ...]] = {}
        self.norm = 0.0
        self.unproven: set[str] = set()
        self.dtype = losses.dtype
        """The lowest precision in which anything was computed (autocast leaves losses and gradients in float32)."""

    def plan(self, batchnorm: bool) -> Plan:
        """Run both passes and decide for every parameter."""
        if hides_layers(self.losses):
            raise NotImplementedError("reentrant checkpointing hides its layers from autograd.grad")
        with self.capture.receive(lambda use, grads: self.seen.setdefault(id(use), (use, grads)) and None):
            ones = self._gradients(torch.ones_like(self.losses))
        arrived = [g.dtype for _, grads in self.seen.values() for g in grads if g is not None]
        self.dtype = next((x for x in arrived if x in (torch.float16, torch.bfloat16)), self.dtype)
        with self.capture.receive(self._find_layout):
            weighted = self._gradients(self.weights)
        self.norm = sum(float(wide(g).square().sum()) for g in weighted.values() if g is not None) ** 0.5
        parts, refused = self._parts()
        ways: dict[str, Coverage] = {}
        for name, parameter in self.parameters.items():
            if weighted[name] is None:
                ways[name] = Coverage(Way.UNUSED, "no loss depends on it")
            elif name not in parts:
                ways[name] = Coverage(Way.NONE, refused.get(name, "no layer formula covers it"))
            else:
                g = ExampleGradients(name, parameter, tuple(parts[name]))
                if self._agrees(g, self.weights, weighted[name]):
                    ways[name] = Coverage(Way.FORMULA)
                elif batchnorm and self._agrees(g, None, ones[name]):
                    ways[name] = Coverage(Way.ROWS, BATCHNORM)
                else:
                    ways[name] = Coverage(Way.NONE, INCOMPLETE)
        ways.update(self._spread([n for n, c in ways.items() if c.way is Way.NONE], weighted))
        ways.update(self._by_graph({n: c.reason for n, c in ways.items() if c.way is Way.NONE}, weighted))
        layouts = {
            (*use.key, k): self.layouts[id(use)]
            for use, k in self.capture.numbered()
            if id(use) in self.layouts
        }
        uses = {name: len(found) for name, found in parts.items()}
        unproven = frozenset(n for n in self.unproven if ways[n].way.by_layers)
        return Plan(ways, layouts, uses, unproven=unproven, finite=isfinite(self.norm))

    def _gradients(self, weights: Tensor) -> dict[str, Tensor | None]:
        grads = torch.autograd.grad(
            self.losses, list(self.parameters.values()), weights, retain_graph=True, allow_unused=True
        )
        return dict(zip(self.parameters, grads, strict=True))

    def _find_layout(self, use: Use, grads: tuple[Tensor | None, ...]) -> None:
        """Compare the weighted output gradients with the plain ones, for every way the examples may lie."""
        if id(use) not in self.seen:
            return
        plain = self.seen[id(use)][1]
        best: tuple[float, tuple[Layout, ...]] | None = None
        for layouts in use.candidates(self.examples):
            off = total = 0.0
            for layout, p, w in zip(layouts, plain, grads, strict=False):
                if p is not None and w is not None:
                    expected = wide(p) * layout.expand(self.weights.to(wide(p)), p)
                    off += float((wide(w) - expected).square().sum())
                    total += float(wide(w).square().sum())
            share = off / total if total else 0.0
            if best is None or share < 0.5 * best[0]:
                best = (share, layouts)
            if share < TOLERANCE.get(self.dtype, 0.1) ** 2:
                break
        if best is not None:
            self.layouts[id(use)] = best[1]

    def _parts(self) -> tuple[dict[str, list[Part]], dict[str, str]]:
        parts: dict[str, list[Part]] = {}
        refused: dict[str, str] = {}
        for i, (use, grads) in self.seen.items():
            try:
                if use.refused is not None:
                    raise NotImplementedError(use.refused)
                if i not in self.layouts:
                    raise NotImplementedError("no axis of its layer's output can be the examples")
                for name, part in parts_of(use, grads, self.examples, self.layouts[i], self.names):
                    parts.setdefault(name, []).append(part)
            except Exception as failure:
                for p in use.module.parameters():
                    if id(p) in self.names:
                        refused[self.names[id(p)]] = _short(failure)
        for name in refused:
            parts.pop(name, None)
        return parts, refused

    def _agrees(self, g: ExampleGradients, weights: Tensor | None, truth: Tensor | None) -> bool:
        if truth is None:
            return False
        try:
            found = g.total(weights)
            w2 = 1 if weights is None else weights.square().to(found)
            scale = float((g.norm2() * w2).sum().sqrt()) + float(wide(truth).norm())
        except Exception:
            return False
        off = float((found - wide(truth)).norm())
        rounding, nothing = self._tolerated(truth, scale)
        if off > max(rounding, nothing):
            return False
        if not scale or off > rounding:
            self.unproven.add(g.name)
        return True

    def _tolerated(self, truth: Tensor, scale: float) -> tuple[float, float]:
        """Return how far a gradient may be off by its own rounding, and what is rounding of the whole gradient."""
        dtype = self.dtype if truth.dtype is torch.float32 else truth.dtype
        return TOLERANCE.get(dtype, 0.1) * scale, NOTHING.get(dtype, 1e-2) * self.norm

    def _spread(self, names: list[str], weighted: Mapping[str, Tensor | None]) -> dict[str, Coverage]:
        """Try the rows that arrive where a parameter meets the examples."""
        found = spreads(self.losses, {n: self.parameters[n] for n in names}, self.capture.uses())
        arrived: dict[str, Tensor] = {}

        def note(name: str, grads: tuple[Tensor | None, ...]) -> None:
            if grads[0] is not None:
                arrived[name] = grads[0]

        handles = [s.node.register_prehook(partial(note, name)) for name, s in found.items()]
        try:
            if found:
                self._gradients(torch.ones_like(self.losses))
        finally:
            for handle in handles:
                handle.remove()
        ways: dict[str, Coverage] = {}
        for name, grads in arrived.items():
            try:
                part = found[name].part(name, wide(grads))
            except Exception:  # examples in another axis, a layer whose formula needs more
                continue
            g = ExampleGradients(name, self.parameters[name], (part,))
            if part.examples == self.examples and self._agrees(g, self.weights, weighted[name]):
                ways[name] = Coverage(Way.SPREAD, "met by all examples in a sum or an expansion")
        return ways

    def _by_graph(
        self, reasons: Mapping[str, str], weighted: Mapping[str, Tensor | None]
    ) -> dict[str, Coverage]:
        """Choose between vmap and the loop for what no formula serves, by the same check."""
        parameters = {name: self.parameters[name] for name in reasons}
        totals = {name: torch.zeros_like(wide(p.detach())) for name, p in parameters.items()}
        way, begin = Way.VMAP, 0
        for block, vectorised in rows(self.losses, parameters) if parameters else ():
            n = len(next(iter(block.values())))
            for name, g in block.items():
                totals[name] += Dense(wide(g)).total(self.weights[begin : begin + n])
            begin += n
            way = way if vectorised else Way.LOOP
        for name, total in totals.items():
            truth = wide(weighted[name])  # type: ignore[arg-type]  # unused parameters do not come here
            scale = float(truth.norm()) + float(total.norm())
            if float((total - truth).norm()) > max(self._tolerated(truth, scale)):
                way = Way.LOOP  # a batching rule that is wrong; one pass for each example cannot be
        return {name: Coverage(way, reason) for name, reason in reasons.items()}


def probe_weights(losses: Tensor) -> Tensor:
    """Return fixed, irregular loss weights between ½ and 1 in size, of both signs; no random number is drawn."""
    k = torch.arange(1, len(losses) + 1, dtype=torch.float64)
    size = 0.5 + 0.5 * torch.frac(k * 0.6180339887498949)
    sign = 1 - 2 * (torch.frac(k * 0.4142135623730951) < 0.5).double()
    return (size * sign).to(losses)


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the layers that may normalise with the statistics of the batch."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm)]


def couple_examples(norms: Iterable[_BatchNorm]) -> bool:
    """Say whether some BatchNorm normalises with the statistics of the batch."""
    return any(m.training or m.running_mean is None for m in norms)


def couples_examples(model: nn.Module) -> bool:
    """Say whether some BatchNorm of a model does."""
    return couple_examples(batch_norms(model))


def _short(failure: BaseException) -> str:
    text = str(failure).strip().splitlines()
    return text[0][:200] if text else type(failure).__name__
