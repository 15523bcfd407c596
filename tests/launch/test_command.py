"""``cockpit run``: the script runs as under python itself, and a run is there afterwards."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from cockpit.launch.command import split
from cockpit.store.run import Run, find_runs
from render.windows import Window

TRAINING = """
import sys, time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters())
for k in range(int(sys.argv[1])):
    loss = nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(sys.argv[3].encode().decode("unicode_escape").format(k, loss.item()), end="", flush=True)
    time.sleep(float(sys.argv[2]))
print([p.detach().numpy().tobytes().hex() for p in model.parameters()][-1], torch.rand(1).item().hex())
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, and no variable of the machine that runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in ("COCKPIT_LOGS", "COCKPIT_DISABLED", "NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    source = str(Path(sys.modules["cockpit"].__file__ or "").parents[1])
    monkeypatch.setenv("PYTHONPATH", source)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TERM", "xterm")
    return tmp_path


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return name


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)


def cockpit_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "cockpit", "run", *arguments)


def own(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if line.startswith("cockpit: ")]


def script_errors(errors: str) -> str:
    return "".join(line for line in errors.splitlines(True) if not line.startswith("cockpit: "))


def test_a_training_is_the_same_and_there_is_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write("train.py", TRAINING)
    monkeypatch.setattr(sys, "argv", [script, "12", "0", r"{} {}\n"])
    with torch.random.fork_rng():
        runpy.run_path(script, run_name="__main__")
    plain = capsys.readouterr().out
    assert plain.count("\n") == 13
    watched = cockpit_run("--every", "2", script, "12", "0", r"{} {}\n")
    assert (watched.stdout, watched.returncode) == (plain, 0)
    begin, end = own(watched.stderr)
    (folder,) = find_runs(Path("cockpit_logs"))
    assert begin.startswith("cockpit: watching Sequential with Adam")
    assert end.startswith("cockpit: 12 steps in 0:0")
    assert str(folder) in begin
    assert str(folder) in end
    assert watched.stderr.count("\n") == 2
    run = Run(folder)
    assert folder.name.endswith("-train")
    assert run.status == "finished"
    assert run.series("grad_norm").steps.tolist() == [0, 2, 4, 6, 8, 10]
    assert (run.series("grad_norm").values > 0).all()
    assert run.meta["ended"]


SEEN = """
import sys, os, __main__
print(sys.argv, sys.path[0], __name__, __file__, __main__.__dict__ is globals(), "torch" in sys.modules)
print(__spec__ and __spec__.name, __doc__, sorted(k for k in globals() if k not in ("__annotations__", "sys", "os")))
import beside
"""


def test_a_script_sees_what_it_would_see() -> None:
    script = write("inner/seen.py", '"""Words."""' + SEEN)
    write("inner/beside.py", "print('beside')")
    arguments = (script, "--run", "x", "-m", "--help")
    assert cockpit_run("--quiet", *arguments).stdout == python(*arguments).stdout


def test_a_module_sees_what_it_would_see() -> None:
    write("pack/__init__.py", "")
    write("pack/seen.py", SEEN)
    write("beside.py", "print('beside')")
    arguments = ("-m", "pack.seen", "--lr", "3")
    watched, plain = cockpit_run(*arguments), python(*arguments)
    assert watched.stdout == plain.stdout
    assert watched.returncode == 0
    assert own(watched.stderr) == ["cockpit: nothing was watched: the script did not import torch"]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("import sys\nsys.exit(7)", 7),
        ("raise SystemExit('no')", 1),
        ("def f():\n    1 / 0\ntry:\n    f()\nexcept ZeroDivisionError as e:\n    raise KeyError(3) from e", 1),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", -15),
        ("this is no python", 1),
        ("import threading, time\nx = 1\n"
         "threading.Thread(target=lambda: (time.sleep(.2), print(x))).start()", 0),
    ],
)  # fmt: skip
def test_it_ends_as_it_would_end(text: str, status: int) -> None:
    script = write("ends.py", text)
    watched, plain = cockpit_run(script), python(script)
    assert watched.returncode == plain.returncode == status
    assert watched.stdout == plain.stdout
    assert script_errors(watched.stderr) == plain.stderr


def test_ctrl_c_is_the_scripts() -> None:
    text = """
    import time
    print("ready", flush=True)
    try:
        time.sleep(30)
    except KeyboardInterrupt:
        print("saved")
        {}
    """
    for then, status in (("raise SystemExit(5)", 5), ("raise", -signal.SIGINT)):
        script = write("long.py", text.format(then))
        command = [sys.executable, "-m", "cockpit", "run", script]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.1)
        os.killpg(child.pid, signal.SIGINT)
        output, errors = child.communicate(timeout=20)
        assert (output, child.returncode) == ("saved\n", status)
        assert ("KeyboardInterrupt" in errors) == (then == "raise")
        assert "launch" not in errors


def test_disabled_and_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    script = write("hello.py", "print('hello')")
    for arguments, word in (
        (["missing.py"], "can't open missing.py"),
        ([], "name a script"),
        (["-m"], "name a script"),
        (["--every", "0", script], "at least 1"),
        (["--steps", "3", script], "--steps"),
    ):
        ended = cockpit_run(*arguments)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert word in ended.stderr
        assert ended.stderr.count("\n") == 1
    monkeypatch.setenv("COCKPIT_DISABLED", "1")
    ended = cockpit_run(script)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("hello\n", "", 0)


def test_what_follows_the_script_is_its_own() -> None:
    assert split(["--run", "a", "x.py", "--run", "b"]) == (["--run", "a"], "x.py", ["--run", "b"], False)
    assert split(["--quiet", "-m", "p.q", "-m"]) == (["--quiet"], "p.q", ["-m"], True)
    assert split(["--every=2", "--", "-odd.py"]) == (["--every=2"], "-odd.py", [], False)


def test_a_panel_below_whole_output() -> None:
    script = write("train.py", TRAINING)
    window = Window(["run", script, "60", "0.05", r"line {} has value {}\n"], 100, 40)
    with_panel = window.until(lambda lines: any("Gradient Norm" in line for line in lines))
    place = next(k for k, line in enumerate(with_panel) if "running" in line)
    assert any("line" in line for line in with_panel[:place])
    assert not any("has value" in line for line in with_panel[place:])
    last = window.until(lambda lines: any("steps in" in line for line in lines))
    assert window.ended() == 0
    assert not any("running" in line for line in last)
    text = "\n".join(last)
    assert [f"line {k} has value" in text for k in range(40, 60)] == [True] * 20
    assert "cockpit: 60 steps" in text


def test_no_panel_beside_a_progress_bar() -> None:
    script = write("train.py", TRAINING)
    window = Window(["run", script, "30", "0.05", r"\rbar {} {}"], 100, 40)
    last = window.until(lambda lines: any("steps in" in line for line in lines))
    assert window.ended() == 0
    assert "running" not in window.text
    assert window.text.count("\rbar ") == 30
    assert any(line.startswith("bar 29") for line in last)
