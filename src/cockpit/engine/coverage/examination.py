r"""Examination: by which way each parameter's individual gradients can be had, found by trying it on the live graph.

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

from collections.abc import Mapping
from functools import partial
from math import isfinite

import torch
from torch import Tensor

from cockpit.engine.coverage.coverage import TOLERANCE, Coverage, Plan, Way, parts_of
from cockpit.engine.coverage.fallback import rows
from cockpit.engine.coverage.spread import spreads
from cockpit.engine.derivatives.graph import hides_layers
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense, Part
from cockpit.engine.layers.formula import Layout
from cockpit.engine.numbers.precision import wide
from cockpit.engine.seeing.capture import Capture
from cockpit.engine.seeing.use import Use

NOTHING = {torch.float64: 1e-10, torch.float32: 1e-5}
"""Share of the whole gradient's norm below which a parameter's gradient is rounding; half precisions 1e-2."""
BATCHNORM = "BatchNorm in training mode couples the examples: row contribution to the joint gradient"
INCOMPLETE = "its layers' formulas do not give the whole gradient: it is used elsewhere too, or examples mix"


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


def _short(failure: BaseException) -> str:
    text = str(failure).strip().splitlines()
    return text[0][:200] if text else type(failure).__name__
