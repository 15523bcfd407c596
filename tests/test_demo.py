from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

from cockpit import Cockpit, Run
from cockpit.data import CLASSES, fashion_mnist
from cockpit.demo import training
from cockpit.demo.command import main
from cockpit.demo.panel import Panel
from cockpit.demo.summary import findings, typical
from cockpit.demo.training import Moment, network, watched_quantities
from cockpit.store.record import Event, Histogram, Record
from cockpit.store.writer import Writer


class Terminal(io.StringIO):
    encoding = "utf-8"

    def __init__(self, tty: bool = True) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


def moment(step: int, steps: int = 10) -> Moment:
    return Moment(step, steps, 2.0 / step, 0.1 * step, float(step))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A run with known readings."""
    writer = Writer(tmp_path / "run", {"coverage": {"w": {"way": "formula", "reason": ""}}})
    edges = np.linspace(-2, 2, 3)
    for step in range(20):
        writer.write(
            [
                Record(step, "alpha", 0.5 if step > 5 else -0.9),
                Record(step, "norm_test", 1.5),
                Record(step, "hess_max_ev", 8.0),
                Record(step, "hess_trace", 32.0),
                Record(step, "learning_rate", 0.1),
                Record(step, "grad_hist1d", Histogram(np.array([60, 30]), edges, underflow=4, overflow=6)),
            ]
        )
    writer.close()
    return tmp_path / "run"


def test_bundled_data() -> None:
    train, test = fashion_mnist()
    assert train.images.shape == (3000, 28, 28)
    assert test.images.shape == (1000, 28, 28)
    assert train.images.dtype == np.uint8
    assert np.bincount(train.labels).tolist() == [300] * len(CLASSES)
    assert np.bincount(test.labels).tolist() == [100] * len(CLASSES)


def test_data_needs_no_torch() -> None:
    code = "import sys, cockpit.data; cockpit.data.fashion_mnist(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_schedule_watches_about_fifty_steps() -> None:
    for steps, expected in ((300, 50), (20, 20), (1000, 50)):
        assert {sum(q.when(t) for t in range(steps)) for q in watched_quantities("full", steps)} == {expected}
    assert len(watched_quantities("economy", 300)) < len(watched_quantities("full", 300))


def test_summary_speaks_of_the_last_readings(recorded: Path) -> None:
    run = Run(recorded)
    assert typical(run, "alpha") == 0.5
    assert np.isnan(typical(run, "nothing"))
    said = {f.quantity: f for f in findings(run)}
    assert "+0.50" in said["alpha"].sentence
    assert "beyond" in said["alpha"].sentence
    assert "1.50 times" in said["norm_test"].sentence
    assert "larger batch" in said["norm_test"].sentence
    assert "2/8 = 0.25 (it is 0.1 now)" in said["hess_max_ev"].sentence
    assert "25 %" in said["hess_trace"].sentence
    assert said["grad_hist1d"].value == pytest.approx(0.1)
    assert "1 of 1 parameters (1 by formula)" in said["coverage"].sentence
    assert "gap" not in said


@pytest.mark.parametrize(
    ("alpha", "words"), [(-0.9, "short"), (-0.3, "before"), (0.0, "about at"), (0.7, "beyond"), (2.0, "long")]
)
def test_each_step_length_has_its_sentence(tmp_path: Path, alpha: float, words: str) -> None:
    writer = Writer(tmp_path, {})
    writer.write([Record(0, "alpha", alpha)])
    writer.close()
    (finding,) = findings(Run(tmp_path))
    assert words in finding.sentence


def test_summary_names_gaps(tmp_path: Path) -> None:
    writer = Writer(tmp_path, {})
    writer.event(Event(3, "gap", "hess_trace: failed"))
    writer.close()
    (finding,) = findings(Run(tmp_path))
    assert "step 3: hess_trace: failed" in finding.sentence


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that can redraw, 90 columns wide."""
    for name, value in (("COLUMNS", "90"), ("LINES", "40"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("wide")
def test_panel_redraws_in_place(recorded: Path) -> None:
    stream = Terminal()
    panel = Panel(stream, recorded)
    panel.show(moment(1))
    first = stream.getvalue()
    panel.show(moment(2))  # too soon after the other
    assert stream.getvalue() == first
    panel.show(moment(10))
    second = stream.getvalue()[len(first) :]
    lines = first.count("\n")
    assert second.startswith(f"\x1b[{lines}A")
    assert abs(second.count("\n") - lines) <= 1
    assert "step 10/10" in second
    assert "loss 0.2" in second
    assert "Curvature" in second
    panel.close()
    assert stream.getvalue().count("step 10/10") == 2


@pytest.mark.usefixtures("wide")
def test_panel_says_how_long_it_will_take(recorded: Path) -> None:
    stream = Terminal()
    Panel(stream, recorded).show(moment(1))
    assert "0:09 left" in stream.getvalue()
    assert "step 1/10" in stream.getvalue()


@pytest.mark.usefixtures("wide")
def test_panel_of_a_stream_that_is_gone(recorded: Path) -> None:
    for stream in (None, Terminal()):
        panel = Panel(stream, recorded)
        if stream is not None:
            stream.close()
        panel.show(moment(10))
        panel.close()


def test_plain_rows_without_a_terminal(recorded: Path) -> None:
    stream = Terminal(tty=False)
    panel = Panel(stream, recorded)
    for step in range(1, 101):
        panel.show(moment(step, 100))
    text = stream.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    rows = text.splitlines()
    assert len(rows) == 11
    assert rows[0].split()[:4] == ["step", "loss", "accuracy", "alpha"]
    assert rows[-1].split()[0] == "100/100"
    assert max(map(len, rows)) < 80


def test_panel_without_a_run_yet(tmp_path: Path) -> None:
    stream = Terminal(tty=False)
    Panel(stream, tmp_path / "not_there").show(moment(10))
    assert stream.getvalue().splitlines()[1].split()[-4:] == ["-", "-", "-", "0:00"]


def test_json_is_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status = main(["--steps", "3", "--batch-size", "8", "--config", "economy", "--json", "--run", "mine"])
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert status == 0
    assert report["steps"] == 3
    assert not report["interrupted"]
    assert "3/3" in err
    run = Run(tmp_path / report["run"])
    assert run.path.name.endswith("-mine")
    assert run.series("valid_accuracy").values[-1] == report["accuracy"]
    assert len(run.series("grad_norm")) == 3
    assert run.status == "finished"
    assert {f["quantity"] for f in report["findings"]} >= {"alpha", "norm_test", "grad_hist1d", "coverage"}


def test_full_configuration_ends_with_all_instruments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--steps", "2", "--batch-size", "4", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for words in (
        "step length:",
        "gradient noise:",
        "sharpness:",
        "curvature:",
        "gradient values:",
        "coverage:",
    ):
        assert words in out
    for verb in ("show --terminal", "export", "doctor"):
        assert f"cockpit {verb} " in out
    assert "1/2" not in out


def test_interrupt_keeps_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "measured_accuracy", stop)
    assert main(["--steps", "2", "--batch-size", "4", "--config", "economy", "--run", "./here"]) == 130
    assert "Stopped after" in capsys.readouterr().out
    assert len(Run(tmp_path / "here").series("loss")) == 1


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_from_outside(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "cockpit.demo",
        "--steps",
        "100000",
        "--config",
        "economy",
        "--run",
        "./here",
    ]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        deadline = time.monotonic() + 120
        while not (tmp_path / "here" / "run.db").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=120)
    assert child.returncode == 130
    assert "Traceback" not in err
    assert Run(tmp_path / "here").status == "finished"


def test_the_page_stays_until_ctrl_c(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "cockpit.demo",
        "--steps",
        "2",
        "--config",
        "economy",
        "--show",
        "--quiet",
    ]
    environment = {**os.environ, "COCKPIT_PORT": "0", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--run", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as demo:
        assert demo.stdout is not None
        lines = iter(demo.stdout.readline, "")
        address = next(line for line in lines if line.startswith("cockpit: http")).split()[1]
        assert any("stays there until Ctrl-C" in line for line in lines)
        place, token = address.split("?token=")
        request = urllib.request.Request(f"{place}api/runs", headers={"X-Cockpit-Token": token})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert [run["name"] for run in json.load(answer)["runs"]] == ["run"]
        demo.send_signal(signal.SIGINT)
        assert demo.wait(20) == 0


@pytest.mark.parametrize(
    "wrong", [["--steps", "0"], ["--batch-size", "x"], ["--config", "first"], ["--what"]]
)
def test_mistakes_take_one_line(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(wrong)
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_watching_does_not_change_the_training(tmp_path: Path) -> None:
    def trained(watched: bool) -> list[float]:
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        quantities = watched_quantities("full", 2) if watched else []
        with Cockpit(model, optimizer, quantities=quantities, run=tmp_path / str(watched)) as cockpit:
            training.train(cockpit, model, optimizer, 3, 4, lambda moment: None)
        return [float(p.detach().double().sum()) for p in model.parameters()]

    assert trained(True) == trained(False)
