"""The terminal: what is drawn and where, and that nobody else's output is disturbed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cockpit.render.follow import follow
from cockpit.render.panel import ASCII, Spans
from cockpit.render.terminal import Terminal, postfix
from cockpit.store.record import Record
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from cockpit.testing.runs import fake_run
from render.windows import Fake

LINES: list[Spans] = [[("one", "bold")], [("two", "")]]


@pytest.fixture(autouse=True)
def terminal_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine that runs the tests has a say."""
    for name in ("COLUMNS", "LINES", "NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "fake", steps=60, parameters=4)


def test_redraws_in_place() -> None:
    stream = Fake()
    terminal = Terminal(stream)
    terminal.draw(LINES)
    first = stream.getvalue()
    assert first.startswith("\x1b[1mone\x1b[0m\x1b[K\n")
    terminal.draw([[("three", "")]])
    assert stream.getvalue()[len(first) :] == "\x1b[2A\rthree\x1b[K\n\x1b[J"


def test_starts_afresh_after_a_resize(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Fake()
    terminal = Terminal(stream)
    terminal.draw([[("one", "")]])
    monkeypatch.setenv("COLUMNS", "50")
    terminal.draw([[("one", "")]])
    assert "\x1b[H\x1b[2J" in stream.getvalue()


@pytest.mark.parametrize(
    ("variable", "value", "live"),
    [("TERM", "dumb", False), ("CI", "true", False), ("CI", "0", True), ("TERM", "xterm", True)],
)
def test_draws_only_where_it_can(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, live: bool
) -> None:
    monkeypatch.setenv(variable, value)
    assert Terminal(Fake()).live is live
    assert not Terminal(Fake(tty=False)).live


def test_no_colour_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Fake()
    Terminal(stream).draw(LINES)
    assert "one" in stream.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*m", stream.getvalue())


def test_a_terminal_without_unicode() -> None:
    stream = Fake(encoding="ascii")
    terminal = Terminal(stream)
    assert terminal.blocks == ASCII
    terminal.draw([*LINES, [("Ü…●", "")]])
    assert stream.getvalue().isascii()


def test_gone_and_closed_streams_do_no_harm(finished: Path) -> None:
    class Full(Fake):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    full, closed = Terminal(Full()), Fake()
    full.draw(LINES)
    full.write("more")
    assert "No space" in str(full.failure)
    early = Terminal(closed)
    closed.close()
    for terminal in (Terminal(None), Terminal(closed), early):
        terminal.draw(LINES)
        assert isinstance(terminal.failure, BrokenPipeError)
    assert not Terminal(closed).live
    with pytest.raises(OSError, match="No space"):  # the command says so
        follow(Run(finished), Full(tty=False))


def test_postfix_for_a_progress_bar(finished: Path, tmp_path: Path) -> None:
    class Cockpit:
        run: Path | None = finished

    run = Run(finished)
    expected = {name: float(run.series(name).values[-1]) for name in ("norm_test", "grad_norm")}
    for source in (run, finished, str(finished), Cockpit()):
        assert postfix(source, ["norm_test", "nothing", "grad_norm"]) == expected
    Cockpit.run = None
    assert postfix(Cockpit()) == postfix(tmp_path / "none") == {}
    with Writer(tmp_path / "nan", {}) as writer:
        writer.write([Record(0, "alpha", float("nan")), Record(0, "grad_norm", 2.0)])
    assert postfix(tmp_path / "nan") == {"grad_norm": 2.0}


def test_postfix_goes_with_the_run(tmp_path: Path) -> None:
    with Writer(tmp_path, {}) as writer:
        for step in (0, 5, 6):
            writer.write([Record(step, "grad_norm", float(step))])
            writer.flush(10)
            assert postfix(tmp_path) == {"grad_norm": float(step)}
        writer.rewind(5)
        writer.flush(10)
        assert postfix(tmp_path) == {"grad_norm": 0.0}


def test_cockpit_prints_nothing_while_training(tmp_path: Path) -> None:
    """A progress bar of the user's stays alone: nothing is written, and no stream is replaced."""
    code = """
import sys, torch
from cockpit import Cockpit
streams = sys.stdout, sys.stderr
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Cockpit(model, optimizer, config="full", run=sys.argv[1]) as cockpit:
    for _ in range(3):
        cockpit.backward(model(torch.rand(4, 3)).square().sum(1))
        optimizer.step()
        optimizer.zero_grad()
assert streams == (sys.stdout, sys.stderr)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert Run(tmp_path / "run").steps()[0] == 3
