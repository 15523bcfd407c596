from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from cockpit.cli import main
from cockpit.instruments.shelf import all_instruments
from cockpit.store.record import Record
from cockpit.store.writer import Writer


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        with Writer(tmp_path / "logs" / name, {"optimizer": "SGD"}) as writer:
            writer.write([Record(step, "hess_trace", 5.0 + step) for step in range(20)])
            writer.write([Record(step, "hess_trace", 2.0 + step, "0.weight") for step in range(20)])
    return tmp_path / "logs"


def test_one_line_with_the_file(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(runs / "first"), "--instrument", "trace_gauge", "--dpi", "30"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"cockpit: run {runs / 'first'}, file first-trace_gauge.png\n"
    with Image.open("first-trace_gauge.png") as picture:
        assert picture.size == (192, 102)


def test_for_programs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plot", str(runs / "first"), "--screen", "secondary", "-o", "a.svg", "--json"]
    assert main([*arguments, "--compare", str(runs / "second"), "--title", "Two", "--dark"]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": str(runs / "first"), "file": "a.svg"}
    assert Path("a.svg").read_text().startswith("<?xml")


def test_default_names(runs: Path) -> None:
    assert main(["plot", str(runs / "first"), "--screen", "secondary", "--dpi", "20"]) == 0
    assert Path("first-secondary.png").is_file()


def test_views(runs: Path) -> None:
    options = [
        "--scope",
        "0.weight",
        "--step",
        "5",
        "--first",
        "2",
        "--last",
        "9",
        "--log-steps",
        "--size",
        "3x2",
    ]
    assert main(["plot", str(runs / "first"), "--instrument", "trace_gauge", *options, "--dpi", "50"]) == 0
    with Image.open("first-trace_gauge.png") as picture:
        assert picture.size == (150, 100)


def test_gif(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plot", str(runs / "first"), "--instrument", "trace_gauge", "--dpi", "20", "--frames", "3"]
    assert main([*arguments, "--gif", "a.gif", "--fps", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 3
    with Image.open("a.gif") as picture:
        assert picture.n_frames == 3  # type: ignore[attr-defined]


def test_progress_is_for_terminals(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["plot", str(runs / "first"), "--instrument", "trace_gauge", "--dpi", "20", "--frames", "2"]
    main([*arguments, "--gif", "a.gif"])
    assert "\r" not in capsys.readouterr().err
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    main([*arguments, "--gif", "a.gif"])
    assert "frame 1 of 2" in capsys.readouterr().err


def test_list(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(all_instruments())
    assert main(["plot", "--list", "--json"]) == 0
    assert {entry["name"] for entry in json.loads(capsys.readouterr().out)} == set(all_instruments())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which run?"),
        (["nowhere"], "does not exist"),
        (["{run}", "--instrument", "trase_gauge"], "did you mean 'trace_gauge'"),
        (["{run}", "--screen", "third"], "invalid choice"),
        (["{run}", "-o", "a.xyz"], "cannot be written"),
        (["{run}", "-o", "no/such/folder/a.png"], "No such file"),
        (["{run}", "-o", "a.png", "--gif", "a.gif"], "exclude each other"),
        (["{run}", "--gif", "a.png"], "ends in .gif"),
        (["{run}", "--gif", "a.gif", "--step", "3"], "no --step"),
        (["{run}", "--size", "3"], "not a positive number"),
        (["{run}", "--dpi", "-1"], "not a positive number"),
    ],
    ids=str,
)
def test_errors_are_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["plot", *(text.format(run=runs / "first") for text in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("cockpit: error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_without_matplotlib(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("cockpit.render.figure")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", str(runs / "first")]) == 2
    assert capsys.readouterr().err == (
        "cockpit: error: figures need matplotlib: pip install 'cockpit-debugger[plot]'\n"
    )


def test_help_loads_neither_matplotlib_nor_torch() -> None:
    code = (
        "import sys; from cockpit.cli import main; main(['plot', '--help']);"
        "print(sorted({'matplotlib', 'torch', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
