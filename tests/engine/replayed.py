"""Trainings watched by replays, of graphs on a GPU and of scripts on a CPU, and in the ordinary ways."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit import Cockpit, Histogram, attach
from cockpit.engine.scripts import recorder
from cockpit.engine.tapes.replay import Replay
from cockpit.engine.tapes.tape import Tape
from cockpit.presets import ECONOMY
from session.loops import Records, differences, records

CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
)
needs_cuda = pytest.mark.parametrize("device", [CUDA], indirect=True)
DEVICE = "cpu"
FIRST_ORDER = [*ECONOMY, "grad_hist2d", "mean_gsnr", "cabs", "early_stopping"]


@pytest.fixture(params=["cpu", CUDA], autouse=True)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where to train."""
    monkeypatch.setattr(sys.modules[__name__], "DEVICE", request.param)
    monkeypatch.setattr(recorder, "KEPT", 2**30)
    return str(request.param)


class Words(nn.Module):
    """A table of words, averaged, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(11, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        ids = (x.flatten(1)[:, :7].abs() * 5).long().clamp_max(10)
        found: Tensor = self.out(self.table(ids).mean(1))
        return found


class Deep(nn.Module):
    """Layers of all sizes, one of them used twice, and a parameter of no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.into, self.twice = nn.Linear(36, 8), nn.Linear(8, 8)
        self.table, self.out = nn.Embedding(11, 8), nn.Linear(8, 3, bias=False)
        self.shift = nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        ids = (x.flatten(1)[:, :7].abs() * 5).long().clamp_max(10)
        y = self.into(torch.tanh(self.norm(self.conv(x))).flatten(1)) + self.table(ids).mean(1) + self.shift
        found: Tensor = self.out(torch.tanh(self.twice(torch.tanh(self.twice(y)))))
        return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(50, 8), nn.Tanh(), nn.Linear(8, 3)),
    "conv": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)),
    "in_place": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, 3)
    ),
    "batch_norm": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)
    ),
    "layer_norm": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(50, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)
    ),
    "embedding": Words,
    "deep": Deep,
}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


OPTIMIZERS = {"sgd": sgd, "momentum": momentum, "adam": adam}


def built(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(0)
        return MODELS[name]().to(DEVICE, dtype)


def batch(step: int, n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(100 + step)
    x, y = torch.randn(n, 2, 5, 5, generator=g, dtype=torch.float64), torch.randint(3, (n,), generator=g)
    return x.to(DEVICE, dtype), y.to(DEVICE)


def losses_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


Between = Callable[[nn.Module, torch.optim.Optimizer, int], object]


def nothing(model: nn.Module, opt: torch.optim.Optimizer, step: int) -> None:
    """Between backward pass and step, nobody does anything."""


class Training:
    """A training watched in one of three ways: ``replayed``, ``eager`` (no recordings), ``plain`` (no shortcuts).

    Its backward passes are ours (``backward``), watched in a block with losses or without (``watched``, ``blind``), or
    noticed (``attached``).
    """

    @staticmethod
    def objective(losses: Tensor, step: int) -> Tensor:
        """Make one of the losses, where the pass is watched with them."""
        return losses.mean()

    def __init__(
        self,
        folder: Path | None,
        way: str = "replayed",
        model: str = "mlp",
        optimizer: str = "sgd",
        quantities: Sequence[Any] | None = FIRST_ORDER,
        dtype: torch.dtype = torch.float64,
        entry: str = "backward",
        **settings: Any,
    ) -> None:
        self.folder, self.dtype, self.entry, self.t = folder, dtype, entry, 0
        self.model = built(model, dtype)
        self.opt = OPTIMIZERS[optimizer](self.model)
        self.cockpit: Cockpit | None = None
        if folder is not None:
            self.cockpit = (attach if entry == "attached" else Cockpit)(
                self.model,
                self.opt,
                quantities=quantities,
                run=folder,
                fast=way != "plain",
                **settings,
            )
            if way != "replayed":
                self.cockpit._engine.passes.watch.tapes.give_up(RuntimeError("nothing is to be recorded"))
                self.cockpit._engine.curvatures.tapes = None
                self.cockpit._engine.motion.foresee = lambda parameters: None  # recordings wait for steps

    def step(self, sizes: Sequence[int] = (8,), between: Between = nothing) -> None:
        self.opt.zero_grad()
        x, y = batch(self.t, sum(sizes), self.dtype)
        for part, target in zip(x.split(list(sizes)), y.split(list(sizes)), strict=True):
            losses = losses_of(self.model, part, target)
            if self.cockpit is None or self.entry == "attached":
                losses.mean().backward()
            elif self.entry == "blind":
                with self.cockpit.watch():
                    losses.mean().backward()
            elif self.entry == "watched":
                with self.cockpit.watch(losses):
                    self.objective(losses, self.t).backward()
            else:
                self.cockpit.backward(losses)
        between(self.model, self.opt, self.t)
        self.opt.step()
        self.t += 1

    def run(self, sizes: Sequence[Sequence[int]] = ((8,),) * 8, between: Between = nothing) -> Records:
        for each in sizes:
            self.step(each, between)
        assert self.cockpit is not None
        assert self.folder is not None
        self.cockpit.close()
        return records(self.folder)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[Tape]:
    """The tapes that were run, in order."""
    ran: list[Tape] = []
    end = Replay.end

    def counted(self: Replay, losses: Tensor) -> None:
        end(self, losses)
        ran.append(self.tape)

    monkeypatch.setattr(Replay, "end", counted)
    return ran


def without_histograms(found: Records) -> Records:
    return {key: value for key, value in found.items() if not isinstance(value[0], Histogram)}


def apart(found: Records, expected: Records, rtol: float = 1e-8) -> list[str]:
    """What differs; of two histograms, more than two elements next to an edge."""
    wrong = differences(*(without_histograms(each) for each in (found, expected)), rtol=rtol)
    for key in {**found, **expected}:
        a, b = found.get(key, (None, ""))[0], expected.get(key, (None, ""))[0]
        if isinstance(a, Histogram) or isinstance(b, Histogram):
            if not (isinstance(a, Histogram) and isinstance(b, Histogram)):
                wrong.append(f"{key}: only one of them is a histogram")
            elif a.total != b.total or np.abs(a.counts - b.counts).sum() > 2:
                wrong.append(f"{key}: other counts")
    return wrong


def compare(folder: Path, *args: Any, runs: dict[str, Any] | None = None, **settings: Any) -> Records:
    """Train in all three ways; return the replayed records."""
    found = {
        way: Training(folder / way, way, *args, **settings).run(**(runs or {}))
        for way in ("replayed", "eager", "plain")
    }
    assert apart(found["replayed"], found["eager"]) == []
    assert apart(found["replayed"], found["plain"]) == []
    return found["replayed"]


@contextmanager
def repeatable() -> Iterator[None]:
    before = torch.backends.cudnn.deterministic, torch.are_deterministic_algorithms_enabled()
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before[0]


def same_with_and_without(folder: Path, model: str, optimizer: str, **settings: Any) -> None:
    """Train in single precision, replayed and alone: both models are the same to the bit."""
    watched = Training(folder, "replayed", model, optimizer, dtype=torch.float32, **settings)
    alone = Training(None, "replayed", model, optimizer, dtype=torch.float32)
    with repeatable():
        for _ in range(8):
            watched.step()
            alone.step()
    assert watched.cockpit is not None
    watched.cockpit.close()
    for (name, a), b in zip(
        watched.model.state_dict().items(), alone.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name
