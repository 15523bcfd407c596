"""The panel and the script in one terminal: whose turn it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cockpit.launch.live import Live, Stream
from cockpit.render.terminal import Terminal
from cockpit.testing.runs import fake_run
from render.windows import Fake

Show = Callable[[], Live]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "fake", steps=20, parameters=2)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """The terminal."""
    for name in ("COLUMNS", "LINES", "NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("cockpit.launch.live.OFTEN", 0.02)
    return Fake()


@pytest.fixture
def show(stream: Fake, run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Show]:
    """Draws a panel; in the test itself, as pytest puts other streams there before it."""
    shown: list[Live] = []

    def begin() -> Live:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        shown.append(Live(Terminal(stream)))
        shown[0].stand_between()
        shown[0].show(run)
        assert drawn(stream)
        return shown[0]

    yield begin
    shown[0].close()
    assert shown[0]._thread is not None
    shown[0]._thread.join(10)


def drawn(stream: Fake, within: float = 10.0) -> bool:
    """Say whether the panel is drawn after all that was written so far."""
    before, end = len(stream.getvalue()), time.monotonic() + within
    while time.monotonic() < end:
        if "fake" in stream.getvalue()[before:]:
            return True
        time.sleep(0.01)
    return False


def test_erased_before_a_write_and_drawn_after(show: Show, stream: Fake) -> None:
    live = show()
    with live.lock:
        before = stream.getvalue()
        print("hello")
        after = stream.getvalue()[len(before) :]
    assert after.startswith("\x1b[")
    assert after.endswith("A\r\x1b[Jhello\n")
    assert drawn(stream)


def test_a_line_that_was_begun_is_not_torn(show: Show, stream: Fake) -> None:
    show()
    print("epoch 1 ...", end="")
    assert not drawn(stream, 0.3)
    sys.stderr.writelines([" done", "\n"])
    assert drawn(stream)
    assert "epoch 1 ... done\n" in stream.getvalue()


def test_colours_are_no_movement(show: Show, stream: Fake) -> None:
    show()
    print("\x1b[1;31mred\x1b[0m\r\n", end="")
    assert drawn(stream)


@pytest.mark.parametrize("text", ["\rbar", "a\b", "\x1b[2A", "\x1b[?25l", "\x1b7"])
def test_gone_for_good_when_the_script_draws(show: Show, stream: Fake, text: str) -> None:
    show()
    print(text)
    assert not drawn(stream, 0.3)


def test_gone_when_somebody_may_write_past_it(show: Show, stream: Fake) -> None:
    show()
    assert sys.stdout.encoding == "utf-8"
    assert sys.stdout.isatty()
    assert drawn(stream)
    with pytest.raises(OSError, match="fileno"):
        sys.stdout.fileno()
    assert not drawn(stream, 0.3)


def test_closed_it_leaves_nothing_behind(show: Show, stream: Fake) -> None:
    live = show()
    kept = sys.stderr
    assert isinstance(kept, Stream)
    live.close()
    assert stream.getvalue().endswith("\x1b[J")
    assert (sys.stdout, sys.stderr) == (stream, stream)
    kept.write("late\n")
    assert stream.getvalue().endswith("\x1b[Jlate\n")


def test_a_stream_that_the_script_put_there_stays(show: Show, stream: Fake) -> None:
    live = show()
    other = Fake()
    sys.stdout = other
    live.close()
    assert sys.stdout is other
    assert sys.stderr is stream
