"""Every mistake at the door gets an error that says what, where and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cockpit as package
from cockpit import Cockpit, CockpitError, HessTrace, NormTest, Run
from session.loops import batch, losses_of, net, records, sgd


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Cockpit]:
    """Makes a cockpit on the small net, with anything replaced."""

    def make(**settings: Any) -> Cockpit:
        model = net()
        defaults = {"model": model, "optimizer": sgd(model), "run": tmp_path / "r"}
        return Cockpit(**{**defaults, **settings})

    return make


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quantities": ["grad_nrom"]}, ["grad_nrom", "Did you mean 'grad_norm'"]),
        ({"quantities": ["NormTets"]}, ["NormTets", "norm_test"]),
        ({"quantities": ["xyzzy"]}, ["xyzzy", "Known", "norm_test"]),
        ({"config": "economics"}, ["economics", "economy", "business", "full"]),
        ({"config": 3}, ["config", "int", "economy"]),
        ({"config": "economy", "quantities": ["loss"]}, ["config", "quantities", "not both"]),
        ({"quantities": "loss"}, ["list", "quantities=["]),
        ({"quantities": NormTest()}, ["list", "NormTest", "quantities=["]),
        ({"quantities": [3]}, ["3", "quantity"]),
        ({"quantities": [nn.Linear]}, ["Linear", "quantity"]),
        ({"quantities": ["loss", "loss"]}, ["'loss'", "label"]),
        ({"quantities": [HessTrace(), HessTrace("diag_ggn_mc")]}, ["hess_trace", "diag_ggn_mc", "label="]),
        ({"optimizer": "sgd"}, ["optimizer", "str", "torch.optim.Optimizer"]),
        ({"optimizer": []}, ["optimizer", "empty"]),
        ({"optimizer": [3]}, ["optimizer", "int"]),
        ({"model": "net"}, ["model", "str", "torch.nn.Module"]),
        ({"model": nn.ReLU()}, ["ReLU", "no trainable parameter"]),
        ({"run": 3}, ["run", "int", "folder"]),
        ({"step": -1}, ["step", "-1"]),
        ({"step": 1.5}, ["step", "float"]),
        ({"seed": "a"}, ["seed", "str"]),
    ],
)
def test_construction(made: Callable[..., Cockpit], settings: dict[str, Any], words: list[str]):
    with pytest.raises(CockpitError) as caught:
        made(**settings)
    text = str(caught.value)
    assert [word for word in words if word not in text] == []


def test_frozen_model(made: Callable[..., Cockpit]):
    model = net()
    model.requires_grad_(False)
    with pytest.raises(CockpitError, match=r"no trainable parameter .*Unfreeze"):
        made(model=model)


def test_refused_construction_leaves_no_hook(tmp_path: Path):
    """A mistake found late must not leave a half-made cockpit behind."""
    model = net()
    opt = sgd(model)
    with pytest.raises(CockpitError):
        Cockpit(model, opt, quantities=["loss"], run=3)  # type: ignore[arg-type]
    assert not opt._optimizer_step_pre_hooks
    assert not opt._optimizer_step_post_hooks
    assert not any(m._forward_hooks for m in model.modules())


def test_labels_make_two_of_a_class(tmp_path: Path):
    model = net()
    opt = sgd(model)
    both = [NormTest(), NormTest(label="second")]
    with Cockpit(model, opt, quantities=both, run=tmp_path / "r") as cockpit:
        cockpit.backward(losses_of(model, *batch(0)))
        opt.step()
    found = records(tmp_path / "r")
    assert found[0, "norm_test", ""] == found[0, "norm_test:second", ""]


@pytest.mark.parametrize("call", ["backward", "watch"])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x: x.mean(), ["single number", 'reduction="none"']),
        (lambda x: x.unsqueeze(1), ["[6, 1]", "example", "flatten(1)"]),
        (lambda x: x.detach(), ["no gradient", "detached"]),
        (lambda x: x.detach().long(), ["floating point", "int64"]),
        (lambda x: x.tolist(), ["tensor", "list"]),
        (lambda x: 0.5, ["tensor", "float"]),
    ],
    ids=["0-d", "2-d", "detached", "integer", "list", "number"],
)
def test_losses(tmp_path: Path, call: str, wrong: Callable[..., Any], words: list[str]):
    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=["loss"], run=tmp_path / "r") as cockpit:
        losses = losses_of(model, *batch(0))
        enter = cockpit.backward if call == "backward" else lambda x: cockpit.watch(x).__enter__()
        with pytest.raises(CockpitError) as caught:
            enter(wrong(losses))
        text = str(caught.value)
        assert [word for word in [call, *words] if word not in text] == []
        cockpit.backward(losses)  # and the right call still works
        opt.step()
    assert (0, "loss", "") in records(tmp_path / "r")


def test_nested_watch(tmp_path: Path):
    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=["loss", "norm_test"], run=tmp_path / "r") as cockpit:
        losses = losses_of(model, *batch(0))
        with pytest.raises(CockpitError, match="watched already"), cockpit.watch(losses):
            cockpit.backward(losses)
        opt.zero_grad()
        cockpit.backward(losses_of(model, *batch(0)))
        opt.step()
    assert records(tmp_path / "r")[0, "norm_test", ""][1] == "ok"


@pytest.mark.parametrize(
    ("call", "use"),
    [
        ("backward", lambda c, m: c.backward(losses_of(m, *batch(0)))),
        ("watch", lambda c, m: c.watch(losses_of(m, *batch(0))).__enter__()),
        ("log", lambda c, m: c.log(a=1.0)),
    ],
)
def test_use_after_close(tmp_path: Path, call: str, use: Callable[..., Any]):
    model = net()
    cockpit = Cockpit(model, sgd(model), quantities=["loss"], run=tmp_path / "r")
    cockpit.close()
    cockpit.close()
    with pytest.raises(CockpitError, match=rf"^{call}: .*closed.*create a new one"):
        use(cockpit, model)


def test_training_goes_on_after_close(tmp_path: Path):
    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=["loss"], run=tmp_path / "r") as cockpit:
        cockpit.backward(losses_of(model, *batch(0)))
        opt.step()
    losses_of(model, *batch(1)).mean().backward()
    opt.step()
    assert cockpit.step == 1
    assert Run(tmp_path / "r").status == "finished"


@pytest.mark.parametrize("value", ["high", None, [1.0], torch.zeros(2)])
def test_log_wants_numbers(tmp_path: Path, value: Any):
    model = net()
    with (
        Cockpit(model, sgd(model), quantities=["loss"], run=tmp_path / "r") as cockpit,
        pytest.raises(CockpitError, match=r"log\(accuracy=…\).*number"),
    ):
        cockpit.log(accuracy=value)


def test_a_name_makes_a_dated_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COCKPIT_LOGS", raising=False)
    model = net()
    for name in ("mine", None):
        cockpit = Cockpit(model, sgd(model), quantities=["loss"], run=name)
        cockpit.close()
        assert cockpit.run.parent.name == "cockpit_logs"
        assert cockpit.run.name.endswith(name or "run")


def test_attach_passes_errors_on():
    model = net()
    with pytest.raises(CockpitError, match="grad_norm"):
        package.attach(model, sgd(model), quantities=["grad_nrom"])


def test_a_quantity_that_fails_is_a_gap(tmp_path: Path):
    """Our own mistakes, and plugins', never end a training."""

    class Broken(NormTest):
        def compute(self, o: object) -> Any:
            raise ZeroDivisionError("oops")

    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=[Broken(), "loss"], run=tmp_path / "r") as cockpit:
        for t in range(2):
            opt.zero_grad()
            cockpit.backward(losses_of(model, *batch(t)))
            opt.step()
    found = records(tmp_path / "r")
    assert found[1, "broken", ""][1].startswith("failed: ZeroDivisionError: oops")
    assert found[1, "loss", ""][1] == "ok"
    gaps = Run(tmp_path / "r").events("gap")
    assert len(gaps) == 1
    assert "oops" in gaps[0].text


def test_a_schedule_that_fails_is_a_gap(tmp_path: Path):
    model = net()
    opt = sgd(model)
    broken = NormTest(when=lambda step: step / 0 > 1)  # type: ignore[arg-type]
    with Cockpit(model, opt, quantities=[broken, "loss"], run=tmp_path / "r") as cockpit:
        cockpit.backward(losses_of(model, *batch(0)))
        opt.step()
    assert records(tmp_path / "r")[0, "loss", ""][1] == "ok"
    assert "schedule" in Run(tmp_path / "r").events("gap")[0].text


def test_an_unwritable_folder_does_not_end_the_training(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    model = net()
    opt = sgd(model)

    def train() -> None:
        with Cockpit(model, opt, quantities=["loss"], run=blocked / "run") as cockpit:
            cockpit.backward(losses_of(model, *batch(0)))
            opt.step()

    with pytest.warns(RuntimeWarning, match="Training goes on"):
        train()
    assert not torch.equal(model[0].weight, net()[0].weight)
