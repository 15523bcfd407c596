"""Steps replayed from a recording: the numbers of the ordinary way, the training untouched, no wait for the device."""

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

from cockpit import Cockpit, Histogram, Run
from cockpit.engine import derived, native
from cockpit.engine import tapes as tapes_module
from cockpit.engine.capture import Use
from cockpit.engine.recorder import Recorder
from cockpit.engine.replay import Replay
from cockpit.engine.tape import Tape
from cockpit.engine.tapes import MOST, REPEATS
from cockpit.engine.transfer import Transfer
from cockpit.presets import ECONOMY
from engine.recorded import NotedRecorder, noted
from session.loops import Records, differences, records

CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
)
needs_cuda = pytest.mark.parametrize("device", [CUDA], indirect=True)
DEVICE = "cpu"
FIRST_ORDER = [*ECONOMY, "grad_hist2d", "mean_gsnr", "cabs", "early_stopping"]


@pytest.fixture(params=["cpu", CUDA], autouse=True)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where to train; on a CPU operations are noted and repeated as a graph would do."""
    monkeypatch.setattr(sys.modules[__name__], "DEVICE", request.param)
    if request.param == "cpu":
        monkeypatch.setattr(Recorder, "serves", NotedRecorder.serves)
        monkeypatch.setattr(tapes_module, "Recorder", NotedRecorder)
        for module, name in ((native, "count"), (native, "count_outer"), (derived, "_squares")):
            monkeypatch.setattr(module, name, noted(getattr(module, name)))
        monkeypatch.setattr(Transfer, "_sent", lambda self, flat: None if flat is None else flat.clone())
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
    """A training watched in one of three ways: ``replayed``, ``eager`` (no recordings), ``plain`` (no shortcuts)."""

    def __init__(
        self,
        folder: Path | None,
        way: str = "replayed",
        model: str = "mlp",
        optimizer: str = "sgd",
        quantities: Sequence[Any] | None = FIRST_ORDER,
        dtype: torch.dtype = torch.float64,
        **settings: Any,
    ) -> None:
        self.folder, self.dtype, self.t = folder, dtype, 0
        self.model = built(model, dtype)
        self.opt = OPTIMIZERS[optimizer](self.model)
        self.cockpit: Cockpit | None = None
        if folder is not None:
            self.cockpit = Cockpit(
                self.model,
                self.opt,
                quantities=quantities,
                run=folder,
                fast=way != "plain",
                **settings,
            )
            if way != "replayed":
                self.cockpit._engine.watch.tapes.give_up(RuntimeError("nothing is to be recorded"))

    def step(self, sizes: Sequence[int] = (8,), between: Between = nothing) -> None:
        self.opt.zero_grad()
        x, y = batch(self.t, sum(sizes), self.dtype)
        for part, target in zip(x.split(list(sizes)), y.split(list(sizes)), strict=True):
            losses = losses_of(self.model, part, target)
            if self.cockpit is None:
                losses.mean().backward()
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


# -- the same numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_numbers_are_those_of_the_ordinary_way(
    model: str, optimizer: str, tmp_path: Path, replays: list[Tape]
) -> None:
    found = compare(tmp_path, model, optimizer)
    assert len(replays) >= 8 - REPEATS - 2, "the later steps are replayed"
    assert {t for t, name, _ in found if name == "alpha"} == set(range(7))
    assert found[6, "alpha.slope_end", ""][0] != 0


def test_curvature_beside_a_recording(tmp_path: Path, replays: list[Tape]) -> None:
    curved = ["hess_trace", "tic_diag", "tic_trace"]
    compare(tmp_path, "mlp", "sgd", quantities=[*FIRST_ORDER, *curved])
    assert replays


def test_single_precision(tmp_path: Path, replays: list[Tape]) -> None:
    found = {
        way: Training(tmp_path / way, way, "conv", "adam", dtype=torch.float32).run()
        for way in ("replayed", "eager")
    }
    assert replays
    assert apart(found["replayed"], found["eager"], rtol=1e-3) == []


def test_a_smaller_last_batch(tmp_path: Path, replays: list[Tape]) -> None:
    """Each size has a recording of its own; the step before carries over from one to the other."""
    compare(tmp_path, "conv", "sgd", runs={"sizes": [(8,), (8,), (8,), (5,)] * 4})
    assert len({id(tape) for tape in replays}) == 2


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_batch_that_comes_once(optimizer: str, tmp_path: Path, replays: list[Tape]) -> None:
    compare(tmp_path, "mlp", optimizer, runs={"sizes": [(8,)] * 6 + [(3,)] + [(8,)] * 3})
    assert len({id(tape) for tape in replays}) == 1


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_learning_rate_schedule(optimizer: str, tmp_path: Path, replays: list[Tape]) -> None:
    def schedule(model: nn.Module, opt: torch.optim.Optimizer, step: int) -> None:
        opt.param_groups[0]["lr"] = 0.1 / (1 + step)

    compare(tmp_path, "mlp", optimizer, runs={"between": schedule})
    assert len({id(tape) for tape in replays}) == 1, "rates are no part of a recording"


def test_clipping_in_the_middle(tmp_path: Path, replays: list[Tape]) -> None:
    """A gap once, then recordings that measure the step."""

    def clip(model: nn.Module, opt: torch.optim.Optimizer, step: int) -> None:
        if step >= 6:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    runs = {"sizes": [(8,)] * 12, "between": clip}
    found = Training(tmp_path / "replayed", "replayed").run(**runs)
    expected = Training(tmp_path / "plain", "plain").run(**runs)
    for name in ("alpha", "update_size"):
        assert found[6, name, ""][1].startswith("clipped")
        for records_of in (found, expected):
            for key in [k for k in records_of if k[0] == 6 and k[1].split(".")[0] == name]:
                del records_of[key]
    assert apart(found, expected) == []
    assert len({id(tape) for tape in replays}) == 2


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_quantities_that_are_due_now_and_then(optimizer: str, tmp_path: Path, replays: list[Tape]) -> None:
    runs = {"sizes": [(8,)] * 14}
    compare(tmp_path, "mlp", optimizer, None, runs=runs, config="economy", when=lambda t: t % 3 != 1)
    assert replays


@pytest.mark.parametrize("quantities", [FIRST_ORDER, ["norm_test", "grad_norm", "loss"]], ids=["all", "few"])
def test_a_second_micro_batch_that_was_not_expected(
    quantities: list[str], tmp_path: Path, replays: list[Tape]
) -> None:
    """All examples count, or the step is a gap: never the first micro-batch for the whole."""
    sizes = [(8,)] * 6 + [(8, 4)] + [(8,)] * 2
    found = Training(tmp_path / "replayed", "replayed", quantities=quantities).run(sizes)
    expected = Training(tmp_path / "plain", "plain", quantities=quantities).run(sizes)
    assert replays
    for (step, name, scope), (value, _) in expected.items():
        if scope or isinstance(value, Histogram):
            continue
        got, why = found.get((step, name, scope), (float("nan"), "missing"))
        gap = got != got and why != "ok" and step in (5, 6)
        assert gap or got == pytest.approx(value, rel=1e-8, nan_ok=True), (step, name)


def test_micro_batches_are_never_recorded(tmp_path: Path, replays: list[Tape]) -> None:
    compare(tmp_path, "mlp", "sgd", runs={"sizes": [(4, 4)] * 6})
    assert replays == []


@pytest.mark.parametrize(
    "quantities",
    [["update_size", "norm_test"], ["norm_test"], ["alpha"], ["distance", "inner_test"]],
    ids="+".join,
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_few_quantities(quantities: list[str], optimizer: str, tmp_path: Path, replays: list[Tape]) -> None:
    compare(tmp_path, "mlp", optimizer, quantities=quantities)
    assert replays, "recorded, whatever is asked for"


# -- the training is untouched --------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_training_is_the_same_to_the_bit(
    model: str, optimizer: str, tmp_path: Path, replays: list[Tape]
) -> None:
    watched = Training(tmp_path, "replayed", model, optimizer, dtype=torch.float32)
    alone = Training(None, "replayed", model, optimizer, dtype=torch.float32)
    with repeatable():
        for _ in range(8):
            watched.step()
            alone.step()
    assert watched.cockpit is not None
    watched.cockpit.close()
    assert replays
    for (name, a), b in zip(
        watched.model.state_dict().items(), alone.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name


@contextmanager
def repeatable() -> Iterator[None]:
    before = torch.backends.cudnn.deterministic, torch.are_deterministic_algorithms_enabled()
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before[0]


@needs_cuda
def test_no_random_number_is_drawn(tmp_path: Path, replays: list[Tape]) -> None:
    training = Training(tmp_path)
    cpu, device = torch.random.get_rng_state(), torch.cuda.get_rng_state()
    training.run()
    assert replays
    assert torch.equal(torch.random.get_rng_state(), cpu)
    assert torch.equal(torch.cuda.get_rng_state(), device)


@needs_cuda
def test_dropout_goes_on_as_without(tmp_path: Path) -> None:
    """Recording and replaying do not move the stream that the model draws from."""
    finals = []
    for folder in (None, tmp_path):
        training = Training(folder)
        training.model.insert(3, nn.Dropout(0.5))  # type: ignore[operator]
        with torch.random.fork_rng():
            torch.manual_seed(3)
            for _ in range(8):
                training.step()
        if training.cockpit is not None:
            training.cockpit.close()
        finals.append(torch.cat([p.detach().flatten() for p in training.model.parameters()]))
    assert torch.equal(*finals)


# -- recordings come and go -----------------------------------------------------------------------------


def test_parameters_that_were_moved(tmp_path: Path, replays: list[Tape]) -> None:
    """New addresses: the recordings are dropped and made again."""

    def move(model: nn.Module, opt: torch.optim.Optimizer, step: int) -> None:
        if step == 6:
            for p in model.parameters():
                p.data = p.data.clone()

    compare(tmp_path, "mlp", "momentum", runs={"sizes": [(8,)] * 12, "between": move})
    assert len({id(tape) for tape in replays}) == 2


def test_recordings_are_bounded(tmp_path: Path, replays: list[Tape]) -> None:
    training = Training(tmp_path, quantities=["norm_test", "loss"])
    assert training.cockpit is not None
    for n in range(2, 2 + MOST + 3):
        for _ in range(REPEATS + 3):
            training.step((n,))
    held = training.cockpit._engine.watch.tapes._tapes
    assert len(held) == MOST
    assert len({id(tape) for tape in replays}) == MOST
    training.cockpit.close()


def test_a_step_is_recorded_only_when_it_has_come_before(tmp_path: Path, replays: list[Tape]) -> None:
    training = Training(tmp_path, quantities=["norm_test", "loss"])
    counts = []
    for _ in range(REPEATS + 3):
        training.step()
        counts.append(len(replays))
    assert counts[: REPEATS + 1] == [0] * (REPEATS + 1), "the first step shows its kind, then it comes twice"
    assert counts[-1] > 0
    assert training.cockpit is not None
    training.cockpit.close()


def test_a_recording_that_fails_is_no_harm(
    tmp_path: Path, replays: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Tape, *args: Any) -> None:
        raise RuntimeError("cannot be captured")

    expected = Training(tmp_path / "eager", "eager").run()
    monkeypatch.setattr(tapes_module.Tape, "_ended", fails)
    training = Training(tmp_path / "replayed")
    found = training.run()
    assert replays == []
    assert training.cockpit is not None
    assert "cannot be captured" in str(training.cockpit._engine.watch.tapes.failure)
    assert apart(found, expected) == []


# -- no wait --------------------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["mlp", "conv", "layer_norm"])
def test_a_watched_step_does_not_wait_for_the_device(
    model: str, optimizer: str, tmp_path: Path, replays: list[Tape]
) -> None:
    training = Training(tmp_path, "replayed", model, optimizer, quantities=ECONOMY, dtype=torch.float32)
    x, y = batch(0, 8, torch.float32)
    assert training.cockpit is not None

    def step() -> None:
        training.opt.zero_grad()
        assert training.cockpit is not None
        training.cockpit.backward(losses_of(training.model, x, y))
        training.opt.step()

    for _ in range(REPEATS + 6):
        step()
    assert replays
    torch.cuda.synchronize()
    before = len(replays)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    training.cockpit.close()
    assert len(replays) == before + 5
    found = records(tmp_path)
    assert {status for (_, name, _), (_, status) in found.items() if name == "norm_test"} == {"ok"}


# -- a pass in segments ---------------------------------------------------------------------------------


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


MODELS["deep"] = Deep


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even small steps are cut into segments."""
    monkeypatch.setattr(tapes_module, "SMALL", 1)


@pytest.mark.parametrize(("memory", "segments"), [(10**9, 1), (32 * 1024, 4)])
@pytest.mark.parametrize(
    "quantities", [FIRST_ORDER, [*ECONOMY, "hess_trace", "tic_diag"]], ids=["first", "curved"]
)
@pytest.mark.usefixtures("cut")
def test_segments_of_a_plain_step(
    memory: int, segments: int, quantities: list[str], tmp_path: Path, replays: list[Tape]
) -> None:
    compare(tmp_path, "deep", "sgd", memory=memory, quantities=quantities)
    assert len(replays) >= 8 - REPEATS - 2
    assert replays[0].cut
    assert replays[0].loose == {"twice.weight", "twice.bias", "shift"}
    assert len(replays[0].segments) >= segments


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.usefixtures("cut")
def test_segments_keep_nothing_until_the_optimiser_has_moved(
    optimizer: str, tmp_path: Path, replays: list[Tape]
) -> None:
    found = compare(tmp_path, "deep", optimizer, memory=10 * 1024)
    assert replays
    assert replays[0].cut
    assert replays[0].loose > {"twice.weight", "twice.bias", "shift"}, "the largest calls as well"
    assert found[7, "update_size", ""][1] == "ok"
    assert found[6, "alpha", ""][1].startswith("too_large")


def test_loose_calls_of_a_whole_step(
    tmp_path: Path, replays: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cockpit.engine.recording.Recording._is_loose", lambda self, use, names, size: use.name == "into"
    )
    for optimizer in OPTIMIZERS:
        found = compare(tmp_path / optimizer, "deep", optimizer)
        assert replays[-1].loose == {"into.weight", "into.bias", "shift"}
        assert found[6, "alpha", ""][0] == found[6, "alpha", ""][0]


@pytest.mark.usefixtures("cut")
def test_segments_leave_the_training_alone(tmp_path: Path, replays: list[Tape]) -> None:
    watched = Training(tmp_path, "replayed", "deep", "adam", dtype=torch.float32, memory=32 * 1024)
    alone = Training(None, "replayed", "deep", "adam", dtype=torch.float32)
    with repeatable():
        for _ in range(8):
            watched.step()
            alone.step()
    assert replays
    for a, b in zip(watched.model.state_dict().values(), alone.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.usefixtures("cut")
def test_a_pass_that_leaves_the_recorded_way(
    tmp_path: Path, replays: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step is lost, which is said; then the ordinary way."""
    settings: dict[str, Any] = {"model": "deep", "memory": 32 * 1024}
    expected = Training(tmp_path / "eager", "eager", **settings).run([(8,)] * 10)
    segment_of, calls = Replay._segment_of, 0

    def astray(self: Replay, use: Use) -> int | None:
        nonlocal calls
        calls += 1
        if calls == 10:
            raise RuntimeError("another way")
        return segment_of(self, use)

    monkeypatch.setattr(Replay, "_segment_of", astray)
    training = Training(tmp_path / "replayed", **settings)
    found = training.run([(8,)] * 10)
    assert len(replays) == 1
    lost = REPEATS + 3
    assert (lost, "norm_test", "") not in found
    kept = {key: value for key, value in found.items() if key[0] not in (lost - 1, lost, lost + 1)}
    assert apart(kept, {key: value for key, value in expected.items() if key in kept}) == []
    assert {step for step, *_ in kept} == {step for step, *_ in expected} - {lost - 1, lost, lost + 1}
    assert any("another way" in event.text for event in Run(tmp_path / "replayed").events())
