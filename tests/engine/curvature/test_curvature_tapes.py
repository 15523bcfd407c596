"""Which micro-batches have their curvature replayed, and that whoever is not like them goes the ordinary way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine.curvature import curvature_tapes
from cockpit.engine.curvature.curvature_tapes import KINDS, MISSES, REPEATS, CurvatureTapes, Kind
from cockpit.engine.curvature.hessian import HessianProduct
from cockpit.engine.curvature.step_curvature import Curvatures
from cockpit.engine.derivatives import lean
from cockpit.errors import Gap
from cockpit.quantities.hess_trace import HessTrace
from cockpit.quantities.tic_diag import TICDiag
from cockpit.schedule import every
from curvature_problems import Cube
from engine import replayed
from engine.replayed import Between, Training, apart, device, nothing, same_with_and_without  # noqa: F401
from session.loops import Records

QUICK = ["hess_max_ev", "tic_diag"]
NEVER_EXAMINED = ["hess_max_ev"]
FIRST = REPEATS + 1
"""The micro-batch that is recorded; one earlier is not counted, when it is not known how many a step has."""


class Hidden(nn.Module):
    """Two layers and a function of what is between them."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.into, self.out, self.function = nn.Linear(50, 6), nn.Linear(6, 3), function

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.function(self.into(x.flatten(1))))
        return found


@pytest.fixture
def went(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each micro-batch that may be replayed whether it was, in order."""
    found: list[bool] = []
    replayed_ = Curvatures._replayed

    def noted(self: Curvatures, *args: Any) -> bool:
        found.append(replayed_(self, *args))
        return found[-1]

    monkeypatch.setattr(Curvatures, "_replayed", noted)
    return found


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Tensor], Tensor]], str]:
    """Return the name of a new model with some function in it."""
    return lambda function: monkeypatch.setitem(replayed.MODELS, "new", lambda: Hidden(function)) or "new"


def kinds_of(training: Training) -> list[Kind]:
    assert training.cockpit is not None
    tapes = training.cockpit._engine.curvatures.tapes
    return [] if tapes is None else list(tapes._kinds.values())


def both(
    folder: Path,
    model: str,
    sizes: Sequence[Sequence[int]] = ((8,),) * 8,
    between: Between = nothing,
    quantities: Sequence[Any] = QUICK,
) -> list[Kind]:
    """Train replayed and plainly, compare all records; return what is known of the kinds of micro-batches."""
    found: dict[str, Records] = {}
    kinds: list[Kind] = []
    for way in ("replayed", "plain"):
        training = Training(folder / way, way, model, quantities=quantities)
        between(training.model, training.opt, -1)
        for each in sizes:
            training.step(each, between)
        kinds += kinds_of(training)
        found[way] = training.run(())
        assert kinds_of(training) == [], "nothing is known when it is closed"
    assert apart(found["replayed"], found["plain"]) == []
    return kinds


@pytest.mark.parametrize("quantity", ["hess_max_ev", "tic_diag"])
def test_recorded_after_some_repeats(tmp_path: Path, went: list[bool], quantity: str) -> None:
    (kind,) = both(tmp_path, "mlp", [(8,)] * 9, quantities=[quantity])
    assert went == [False] * FIRST + [True] * 3 + [quantity == "hess_max_ev"], "the loss is examined again"
    assert kind.tape is not None
    assert kind.refused == ""


def test_another_size_goes_the_ordinary_way(tmp_path: Path, went: list[bool]) -> None:
    first, second = both(tmp_path, "batch_norm", [(8,)] * 6 + [(5,)] + [(8,)] * 2, quantities=NEVER_EXAMINED)
    assert went[FIRST:] == [True, False, True, True]
    assert first.tape is not None
    assert second.tape is None
    assert second.subjects == 1


def slopes(model: nn.Module, opt: torch.optim.Optimizer, step: int) -> None:
    """From some step on, every forward pass has another setting, but for one."""
    model.function.negative_slope = 0.1 if step in (10, *range(-1, 5)) else 0.2 + 0.01 * step


@pytest.mark.parametrize("more", [MISSES, MISSES + 1])
def test_too_many_that_differ(tmp_path: Path, went: list[bool], hidden: Any, more: int) -> None:
    (kind,) = both(tmp_path, hidden(nn.LeakyReLU(0.1)), [(8,)] * (12 + more), slopes, NEVER_EXAMINED)
    assert went[FIRST:] == [True] + [False] * 5 + [True] + [False] * more
    assert (kind.tape is None) == (more > MISSES)
    assert kind.refused == ("every micro-batch is another" if more > MISSES else "")


@pytest.mark.parametrize("broken", ["formula", "comparison"])
def test_a_replay_that_gives_something_else_is_refused(
    tmp_path: Path, went: list[bool], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    if broken == "comparison":
        monkeypatch.setattr(curvature_tapes, "agree", lambda found, truth: False)
    else:
        addmm = lean.LEAN["AddmmBackward0"]

        def wrong(*args: Any) -> Any:
            return tuple(g if g is None else 1.05 * g for g in addmm(*args))

        monkeypatch.setitem(lean.LEAN, "AddmmBackward0", wrong)
    (kind,) = both(tmp_path, "mlp")
    assert kind.refused == "RuntimeError: a replay does not give what the ordinary way gives"
    assert kind.tape is None
    assert not any(went)


def hooked(factor: Callable[[], float]) -> Callable[[Tensor], Tensor]:
    """Return tanh with gradients that the user changes."""

    def call(x: Tensor) -> Tensor:
        y = x.tanh()
        y.register_hook(lambda g: factor() * g)
        return y

    return call


def test_models_that_are_not_recorded(tmp_path: Path, went: list[bool], hidden: Any) -> None:
    (kind,) = both(tmp_path, hidden(Cube.apply))
    assert "CubeBackward is written in Python" in kind.refused
    assert not any(went)


def attention(causal: bool = False) -> Callable[[Tensor], Tensor]:
    """Return attention between three tokens of two features, whose gates are written in Python."""

    def call(x: Tensor) -> Tensor:
        tokens = x.unflatten(1, (1, 3, 2))
        found = F.scaled_dot_product_attention(tokens, 2 * tokens, tokens.tanh(), is_causal=causal)
        return found.flatten(1)

    return call


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("quantity", ["hess_max_ev", "tic_diag", "hess_trace"])
def test_attention_is_recorded(
    tmp_path: Path, went: list[bool], hidden: Any, quantity: str, causal: bool
) -> None:
    (kind,) = both(tmp_path, hidden(attention(causal)), quantities=[quantity])
    assert kind.refused == ""
    assert went[FIRST:].count(True) >= 3


def test_attention_with_another_mask_is_not_like_it(tmp_path: Path, went: list[bool], hidden: Any) -> None:
    causal = [False]

    def between(model: nn.Module, opt: torch.optim.Optimizer, step: int) -> None:
        causal[0] = step == 6

    def call(x: Tensor) -> Tensor:
        return attention(causal[0])(x)

    (kind,) = both(tmp_path, hidden(call), between=between, quantities=NEVER_EXAMINED)
    assert kind.tape is not None
    assert went[FIRST:] == [True, True, False]


@pytest.mark.parametrize(("before", "after"), [(1.0, 0.5), (1.002, 1.002), (0.5, 0.5)])
def test_gradients_that_the_user_changes_go_the_ordinary_way(
    tmp_path: Path, went: list[bool], hidden: Any, before: float, after: float
) -> None:
    now = {}

    def between(model: nn.Module, opt: torch.optim.Optimizer, step: int) -> None:
        now["factor"] = before if step < 5 else after

    assert both(tmp_path, hidden(hooked(lambda: now["factor"])), between=between) == []
    assert not any(went)


def test_hooks_on_parameters_end_replays(tmp_path: Path, went: list[bool], hidden: Any) -> None:
    def between(model: nn.Module, opt: torch.optim.Optimizer, step: int) -> None:
        if step == 5:
            next(model.parameters()).register_hook(lambda g: 0.5 * g)

    both(tmp_path, hidden(nn.Tanh()), between=between)
    assert went == [False] * FIRST + [True], "the micro-batches before"


def test_masks_of_dropout_are_the_forward_passes_own(tmp_path: Path, went: list[bool], hidden: Any) -> None:
    def seeded(model: nn.Module, opt: torch.optim.Optimizer, step: int) -> None:
        torch.manual_seed(step + 1)

    with torch.random.fork_rng():
        both(tmp_path, hidden(nn.Sequential(nn.Tanh(), nn.Dropout(0.4))), between=seeded)
    assert went[FIRST:] == [True] * (7 - FIRST)


@pytest.mark.parametrize(("model", "optimizer"), [("in_place", "sgd"), ("batch_norm", "momentum")])
def test_training_is_the_same_to_the_bit(
    tmp_path: Path, went: list[bool], model: str, optimizer: str
) -> None:
    same_with_and_without(tmp_path, model, optimizer, quantities=QUICK)
    assert went[FIRST:] == [True] * (7 - FIRST)


def test_micro_batches_are_never_recorded(tmp_path: Path, went: list[bool]) -> None:
    assert all(kind.tape is None for kind in both(tmp_path, "mlp", [(4, 4)] * 7))
    assert not any(went)


def test_examinations_go_on(tmp_path: Path, went: list[bool]) -> None:
    seen = []
    for way in ("replayed", "eager"):
        training = Training(tmp_path / way, way, "in_place", quantities=["hess_trace"])
        for _ in range(20):
            training.step()
        assert training.cockpit is not None
        curvatures = training.cockpit._engine.curvatures
        (learnt,) = curvatures.measuring._learnt.values()
        assert learnt.agreement is not None
        seen.append((curvatures.measuring.kinds._turns, learnt.agreement))
        training.run(())
    assert seen[0] == seen[1]
    assert list(seen[0][0].values()) == [20]
    assert [k for k, each in enumerate(went) if not each] == [0, 1, 2, 3, 7, 15]


def test_a_recording_that_fails_is_given_up(
    tmp_path: Path, went: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> bool:
        raise ValueError("nothing fits")

    monkeypatch.setattr(curvature_tapes.CurvatureTape, "fits", fails)
    (kind,) = both(tmp_path, "mlp")
    assert kind.tape is None
    assert kind.refused == "ValueError: nothing fits"
    assert not any(went)


def test_kinds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    tapes = CurvatureTapes(lambda: pytest.fail("nothing is recorded"))
    kinds = [tapes.kind(k, None) for k in range(KINDS)]
    assert tapes.kind(0, None) is kinds[0]
    assert kinds[0].subjects == 2
    tapes.kind("one more", None)
    assert len(tapes._kinds) == 1
    kind = tapes.kind(0, None)
    kind.subjects = FIRST
    assert tapes.due(kind)
    monkeypatch.setattr(curvature_tapes, "MOST", 0)
    assert not tapes.due(kind)
    tapes.forget()
    assert tapes.kind(0, None).subjects == 1


def test_what_no_micro_batch_has_stays_a_gap(
    tmp_path: Path, went: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: HessianProduct, *_: Any) -> None:
        raise Gap("no_double_backward: not here")

    monkeypatch.setattr(HessianProduct, "__init__", refused)
    (kind,) = both(tmp_path, "mlp", quantities=["hess_max_ev", "tic_diag"])
    assert went[FIRST:] == [True] * (7 - FIRST)
    assert {str(gap) for gap in kind.gaps.values()} == {"no_double_backward: not here"}


def test_error_bars_that_are_asked_for_at_some_steps(tmp_path: Path, went: list[bool]) -> None:
    """Both quantities rest on the same diagonal; only one of them asks how sure it is."""
    sometimes = [TICDiag(curvature="diag_h_auto"), HessTrace(when=every(3))]
    kinds = both(tmp_path, "mlp", [(8,)] * 20, quantities=sometimes)
    assert [kind.tape is not None for kind in kinds] == [True, True]
    assert any(went)
