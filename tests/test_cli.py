"""The command ``cockpit``: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cockpit.cli import main
from cockpit.store.record import Record
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from cockpit.version import __version__


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs and something broken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COCKPIT_LOGS", raising=False)
    folder = tmp_path / "cockpit_logs"
    with Writer(folder / "first", {"optimizer": "SGD", "config": "economy"}) as writer:
        writer.write([Record(step, "loss", 1.0) for step in range(0, 20, 2)])
    Writer(folder / "second", {"optimizer": {"name": "Adam"}}).close()
    (folder / "broken").mkdir()
    (folder / "broken" / "run.db").write_text("nothing like a database" * 50)
    return folder


def test_list_for_people(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    head, broken, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["name", "started", "steps"]
    assert "unreadable" in broken
    assert [word in first for word in ("first", "10", "18", "finished", "SGD", "economy")] == [True] * 6
    assert "Adam" in second


def test_list_for_programs(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(logs), "--json"]) == 0
    broken, first, _ = json.loads(capsys.readouterr().out)
    assert (first["name"], first["steps"], first["last_step"], first["status"]) == (
        "first",
        10,
        18,
        "finished",
    )
    assert "not a run" in broken["error"]


def test_list_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path)]) == 0
    assert "no runs" in capsys.readouterr().err
    assert main(["list", str(tmp_path), "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


@pytest.mark.parametrize("form", ["csv", "jsonl", "original"])
def test_export_to_standard_output_and_to_a_file(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    assert main(["export", str(logs / "first"), "--format", form]) == 0
    text = capsys.readouterr().out
    target = tmp_path / "out"
    assert (
        main(["export", str(logs / "first" / "run.db"), "--format", form, "-o", str(target), "--json"]) == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert target.read_text().splitlines() == text.splitlines()
    assert facts["file"] == str(target)
    assert facts["steps" if form == "original" else "records"] == 10
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_a_failed_export_leaves_the_old_file(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    target = tmp_path / "out"
    target.write_text("precious")
    assert main(["export", str(logs / "first"), "--format", "parquet", "-o", str(target)]) == 2
    assert "pip install" in capsys.readouterr().err
    assert target.read_text() == "precious"


def test_import(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.json").write_text('{"0": {"Loss": 1.5, "GradNorm": [3.0, 4.0]}}')
    assert main(["import", "old", "--json"]) == 0  # the original's functions take the path without its ending
    facts = json.loads(capsys.readouterr().out)
    assert facts["records"] == 4
    assert facts["run"].endswith("-old")
    assert Run(facts["run"]).series("grad_norm").values[0] == 5.0
    assert main(["import", "old.json", "--run", str(tmp_path / "mine")]) == 0
    assert Run(tmp_path / "mine").names() == ["loss", "grad_norm"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "nowhere"],
        ["export", "."],
        ["export", "{run}", "--format", "xml"],
        ["export", "{run}", "--format", "parquet"],
        ["export", "{run}", "--json"],
        ["export", "{run}", "-o", "no/such/folder/file"],
        ["import", "nowhere.json"],
        ["list", "nowhere"],
        ["fly"],
        [],
    ],
    ids=" ".join,
)
def test_errors_are_one_line_on_standard_error(
    logs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main([word.format(run=logs / "first") for word in arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("cockpit: error: ")
    assert output.err.count("\n") == 1


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"cockpit {__version__}\n"
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in ("list", "export", "import", "demo", "doctor"))


def command(*arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cockpit", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        writer.write([Record(step, "loss", 1.0) for step in range(20_000)])
    process = command("export", str(tmp_path))
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "step,name,scope,value,status\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(20) == 141


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``cockpit`` made of the real command and a demo of our own."""
    package = tmp_path / "cockpit"
    package.mkdir()
    source = Path(sys.modules["cockpit.cli"].__file__ or "").parent
    files = ("cli.py", "__main__.py", "errors.py", "naming.py", "presets.py", "version.py")
    for name in (*files, "instruments", "render", "store"):
        (package / name).symlink_to(source / name)
    (package / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return package


def test_demo_and_doctor_are_children_that_get_everything_else(stage: Path) -> None:
    (stage / "demo.py").write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    (stage / "doctor.py").write_text("import os; os.kill(os.getpid(), 9)")
    process = command("demo", "--steps", "3", "--json", "--help", cwd=stage.parent)
    output, errors = process.communicate(timeout=20)
    assert (output, errors) == ("['--steps', '3', '--json', '--help']\n", "")
    assert process.returncode == 7
    process = command("doctor", cwd=stage.parent)
    process.communicate(timeout=20)
    assert process.returncode == 128 + 9


def test_ctrl_c_ends_with_130_after_the_child_has_ended(stage: Path) -> None:
    (stage / "demo.py").write_text(
        "import time\n"
        "print('ready', flush=True)\n"
        "try:\n    time.sleep(30)\n"
        "except KeyboardInterrupt:\n    time.sleep(0.5)\n    print('tidied up', flush=True)\n"
    )
    process = command("demo", cwd=stage.parent, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert (output, errors) == ("tidied up\n", "")
    assert process.returncode == 130
