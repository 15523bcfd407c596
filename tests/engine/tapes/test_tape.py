"""Steps replayed from a recording: the numbers of the ordinary way, the training untouched, no wait for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cockpit import Cockpit, Histogram
from cockpit.engine.tapes import tapes as tapes_module
from cockpit.engine.tapes.tape import Tape
from cockpit.engine.tapes.tapes import MOST, REPEATS
from cockpit.presets import ECONOMY
from engine.replayed import (
    FIRST_ORDER,
    MODELS,
    OPTIMIZERS,
    Training,
    apart,
    batch,
    compare,
    device,
    losses_of,
    needs_cuda,
    replays,
    same_with_and_without,
)
from session.loops import records

__all__ = ["device", "replays"]  # fixtures


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
    same_with_and_without(tmp_path, model, optimizer)
    assert replays


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
    held = training.cockpit._engine.passes.watch.tapes._tapes
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
    assert "cannot be captured" in str(training.cockpit._engine.passes.watch.tapes.failure)
    assert apart(found, expected) == []


# -- no wait --------------------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["mlp", "conv", "layer_norm"])
@pytest.mark.parametrize("entry", ["backward", "attached"])
def test_a_watched_step_does_not_wait_for_the_device(
    entry: str, model: str, optimizer: str, tmp_path: Path, replays: list[Tape]
) -> None:
    settings: dict[str, Any] = {"quantities": ECONOMY, "dtype": torch.float32, "entry": entry}
    training = Training(tmp_path, "replayed", model, optimizer, **settings)
    x, y = batch(0, 8, torch.float32)
    assert training.cockpit is not None

    def step() -> None:
        training.opt.zero_grad()
        assert training.cockpit is not None
        losses = losses_of(training.model, x, y)
        losses.mean().backward() if entry == "attached" else training.cockpit.backward(losses)
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


def test_the_plain_way_records_nothing(tmp_path: Path, replays: list[Tape]) -> None:
    training = Training(tmp_path, "replayed", quantities=["norm_test", "hess_trace"])
    assert training.cockpit is not None
    training.cockpit.close()
    plain = Cockpit(
        training.model, training.opt, quantities=["norm_test"], run=tmp_path / "plain", fast=False
    )
    training.cockpit = plain
    for _ in range(8):
        training.step()
    plain.close()
    assert replays == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU copies more")
@pytest.mark.parametrize(("memory", "bound"), [(1000, None), (None, 1000), (10**6, None)])
def test_large_steps_are_not_recorded_on_a_cpu(
    memory: int | None,
    bound: int | None,
    tmp_path: Path,
    replays: list[Tape],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if bound is not None:
        monkeypatch.setattr(tapes_module, "ON_CPU", bound)
    compare(tmp_path, "mlp", "sgd", ["norm_test", "grad_hist1d"], memory=memory)
    assert bool(replays) == (memory == 10**6)
