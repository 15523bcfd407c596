"""Following a run: in real terminals, where nothing can be drawn, and that it ends as one expects."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from cockpit.errors import CockpitError
from cockpit.render.follow import Watch, chosen, follow
from cockpit.render.status import Status
from cockpit.store.database import open_to_write
from cockpit.store.points import Points
from cockpit.store.read import read_numbers
from cockpit.store.record import Record
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from cockpit.testing.runs import fake_run
from render.windows import Fake, Window


@pytest.fixture(autouse=True)
def terminal_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine that runs the tests has a say."""
    for name in ("COLUMNS", "LINES", "NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "fake", steps=60, parameters=4)


def test_plain_line_of_a_finished_run(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    stream = Fake(tty=False)
    follow(Run(finished), stream)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("fake finished, step 59")
    assert "\x1b" not in line
    assert "\r" not in line
    assert len(line) < 90


def test_json_for_programs(finished: Path) -> None:
    stream = Fake()
    follow(Run(finished), stream, for_programs=True)
    said = json.loads(stream.getvalue())
    assert (said["life"], said["step"]) == ("finished", 59)
    assert set(said["readings"]) >= {"alpha_gauge", "max_ev_gauge", "performance_gauge"}


def test_lines_follow_a_growing_run(tmp_path: Path) -> None:
    writer = Writer(tmp_path, {"started": time.time()})
    stream = Fake(tty=False)

    class Steps:
        """Grows the run while its lines are written, and ends it after the fourth."""

        def __init__(self) -> None:
            self.step = 0

        def __call__(self, _: float) -> None:
            self.step += 1
            writer.write([Record(self.step, "loss", 1.0 / self.step)])
            writer.flush(10)
            if self.step == 4:
                writer.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cockpit.render.follow.time.sleep", Steps())
        patch.setattr("cockpit.render.follow.PATIENCE", 0)
        patch.setattr("cockpit.render.follow.Watch", partial(Watch, rest=0.0))
        follow(Run(tmp_path), stream, every=0.0)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert "step 3" in lines[3]
    assert "finished" in lines[4]
    assert "loss 0.25" in lines[4]


def test_watch_reads_instruments_only_when_the_run_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(run: Run, now: float) -> Status:
        calls.append(now)
        return Status("n", run.status, run.steps()[1], seconds=5.0)

    monkeypatch.setattr("cockpit.render.follow.status", counted)
    monkeypatch.setattr("cockpit.render.follow.PATIENCE", 0)
    with Writer(tmp_path, {}) as writer:
        watch = Watch(Run(tmp_path), rest=0.0)
        for step in range(3):
            writer.write([Record(step, "loss", 1.0)])
            writer.flush(10)
            assert watch.status().step == step
            watch.status()
        assert len(calls) == 3
        assert (watch.status().seconds or 0) >= 5.0
    assert watch.status().life == "finished"
    slow = Watch(Run(tmp_path), rest=60.0)
    slow.status()
    assert len(calls) == 5


def test_watch_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def spy(db: sqlite3.Connection, series: Sequence[int], since: int) -> list[Points]:
        asked.append(since)
        return read_numbers(db, series, since)

    monkeypatch.setattr("cockpit.store.run.read_numbers", spy)
    monkeypatch.setattr("cockpit.render.follow.PATIENCE", 0)
    with Writer(tmp_path, {}) as writer:
        writer.write([Record(step, "loss", 1.0) for step in range(200)])
        writer.flush(10)
        watch = Watch(Run(tmp_path), rest=0.0)
        watch.status()
        assert asked
        asked.clear()
        writer.write([Record(200, "loss", 2.0)])
        writer.flush(10)
        assert watch.status().loss == 2.0
        assert asked
        assert min(asked) > 100


def test_a_file_made_this_moment_is_no_dead_run(tmp_path: Path) -> None:
    open_to_write(tmp_path).close()  # what a writer does before its first transaction
    assert Watch(Run(tmp_path)).status().life == "running"


def test_the_run_to_follow(finished: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        Writer(folder, {}).close()
    os.utime(folders[0] / "run.db", (time.time() + 60, time.time() + 60))
    assert chosen([], tmp_path).path == folders[0]
    assert chosen([tmp_path], finished).path == folders[0]
    assert chosen([folders[1]], tmp_path).path == folders[1]
    assert chosen([folders[1] / "run.db"], tmp_path).path == folders[1]
    with pytest.raises(CockpitError, match="no runs in"):
        chosen([], tmp_path / "empty")
    with pytest.raises(CockpitError, match="does not exist"):
        chosen([tmp_path / "empty"], tmp_path)


@pytest.fixture
def windows() -> Iterator[Callable[..., Window]]:
    opened: list[Window] = []

    def window(*command: str, columns: int = 100, lines: int = 40, **variables: str) -> Window:
        opened.append(Window(list(command), columns, lines, **variables))
        return opened[-1]

    yield window
    for one in opened:
        if one.child.poll() is None:
            one.child.kill()
            one.child.wait()
        os.close(one.master)


def grown(writer: Writer, step: int) -> None:
    writer.write([Record(step, "loss", 1.0 / (step + 1)), Record(step, "grad_norm", float(step))])
    writer.flush(10)


def shows(words: str) -> Callable[[list[str]], bool]:
    return lambda lines: words in "\n".join(lines)


def drawn(words: str) -> Callable[[list[str]], bool]:
    """Wait for words in a panel that is there down to its last line: a screen may be read in mid-drawing."""
    return lambda lines: (
        words in "\n".join(lines) and lines[-2:-1] == ["q ends this view; the training goes on"]
    )


def test_window_follows_a_run_to_its_end(tmp_path: Path, windows: Callable[..., Window]) -> None:
    with Writer(tmp_path / "mine", {"started": time.time()}) as writer:
        grown(writer, 0)
        window = windows("show", "--terminal", str(tmp_path / "mine"))
        window.until(shows("step 0"))
        for step in range(1, 30):
            grown(writer, step)
        lines = window.until(
            lambda now: drawn("step 29")(now) and any(re.search(r"▁▁?▂", line) for line in now)
        )
        assert lines[0] == "mine  ● running"
        assert sum(line.startswith("mine") for line in lines) == 1  # redrawn in place, not below each other
        window.resize(60, 20)
        os.killpg(window.child.pid, signal.SIGWINCH)
        lines = window.until(lambda now: max(map(len, now)) < 60 and len(now) <= 20 and drawn("step 29")(now))
        assert lines[0] == "mine  ● running"
    assert window.ended() == 0
    lines = window.screen()
    assert lines[0] == "mine  ● finished"
    assert "q ends" not in "\n".join(lines)


@pytest.mark.parametrize(("key", "status"), [(b"q", 0), (b"\x03", 0)])
def test_q_and_ctrl_c_end_the_view(
    tmp_path: Path, windows: Callable[..., Window], key: bytes, status: int
) -> None:
    with Writer(tmp_path, {"started": time.time()}) as writer:
        grown(writer, 0)
        window = windows("show", "--terminal", str(tmp_path), columns=40, lines=12, TERM="screen")
        window.until(shows("step 0"))
        before = termios.tcgetattr(window.master)
        os.write(window.master, key)
        assert window.ended() == status
        assert "Traceback" not in window.text
        after = termios.tcgetattr(window.master)
        assert after[3] & termios.ECHO  # what is typed is seen again
        assert not before[3] & termios.ECHO
        assert max(map(len, window.screen())) < 40
        assert len(window.screen()) <= 12


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"CI": "true", "TERM": "xterm"}])
def test_window_that_cannot_redraw(
    finished: Path, windows: Callable[..., Window], variables: dict[str, str]
) -> None:
    window = windows("show", "--terminal", str(finished), **variables)
    assert window.ended() == 0
    assert "\x1b" not in window.text
    assert window.text.startswith("fake finished, step 59")
    assert window.text.count("\n") == 1


@pytest.mark.parametrize(
    ("where", "statuses", "error"),
    [
        ("| true", ("0", "141"), ""),
        (">&-", ("141",), ""),
        ("2>&- >/dev/null", ("0",), ""),
        (">/dev/full", ("2",), "cockpit: error: [Errno 28] No space left on device\n"),
    ],
)
def test_streams_that_take_nothing(finished: Path, where: str, statuses: tuple[str, ...], error: str) -> None:
    if "full" in where and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    command = f"'{sys.executable}' -m cockpit show --terminal '{finished}' {where}; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() in statuses
    assert done.stderr == error
