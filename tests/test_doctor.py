from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from torch import nn

from cockpit.doctor import environment, logs
from cockpit.doctor.check import Check
from cockpit.doctor.command import main
from cockpit.doctor.coverage import MEANING, covered, groups
from cockpit.doctor.target import Target, find_target
from cockpit.engine.coverage.coverage import Way
from cockpit.errors import CockpitError

SCRIPT = """
import torch
from torch import nn

print("imported")

class Scale(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))
    def forward(self, x):
        return x * self.scale

def build():
    return nn.Sequential(nn.Linear(3, 4), Scale(4), nn.Linear(4, 2)), torch.randn(5, 3)

def norm():
    layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    return layers, torch.randn(5, 3)

def alone():
    return nn.Sequential(nn.Linear(3, 4), Scale(4))

def broken():
    raise ValueError("no weights here")

def number():
    return 3

def mismatch():
    return nn.Linear(3, 4), torch.randn(5, 7)

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
    def forward(self, ids, scale):
        return {"a": self.table(ids) * scale, "b": self.table(ids).sum(1)}

def named():
    return Tokens(), {"ids": torch.randint(7, (5, 2)), "scale": 2.0}

frozen = nn.Linear(2, 2).requires_grad_(False)

if __name__ == "__main__":
    raise SystemExit("the training must not start")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "users_script.py"
    path.write_text(SCRIPT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "users_script", raising=False)
    monkeypatch.chdir(tmp_path)
    yield path
    sys.modules.pop("users_script", None)


def state_of(checks: list[Check], name: str) -> Check:
    (found,) = [check for check in checks if check.name == name]
    return found


# -- the environment ----------------------------------------------------------------------------------------


def test_this_environment_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COCKPIT_LOGS", raising=False)
    status = main(["--json"])
    report = json.loads(capsys.readouterr().out)
    names = [check["name"] for check in report["checks"]]
    for name in ("python", "platform", "cockpit", "torch", "devices", "threads", "run folder", "run file"):
        assert name in names
    assert status == (0 if report["ok"] else 1)
    by_name = {check["name"]: check["found"] for check in report["checks"]}
    assert torch.__version__ in by_name["torch"]
    assert sqlite3.sqlite_version in by_name["run file"]
    assert list(tmp_path.iterdir()) == []


def test_text_report_ends_with_a_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok       python:")
    assert "warning" in lines[-1]
    assert max(map(len, lines)) < 80


def test_the_original_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        environment, "installed", lambda name: "1.0.2" if name == "cockpit-for-pytorch" else ""
    )
    found = state_of(list(environment.environment()), "import name")
    assert found.state == "problem"
    assert "pip uninstall cockpit-for-pytorch" in found.advice


def test_a_file_of_that_name_is_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert state_of(list(environment.environment()), "import name").state == "ok"
    (tmp_path / "cockpit.py").touch()
    found = state_of(list(environment.environment()), "import name")
    assert found.state == "warning"
    assert "cockpit.py" in found.found


def test_old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    assert state_of(list(environment.environment()), "torch").state == "problem"


def test_too_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10_000)
    found = state_of(list(environment.environment()), "threads")
    assert found.state == "warning"
    assert "OMP_NUM_THREADS" in found.advice


def test_missing_extras_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "installed", lambda name: "")
    found = state_of(list(environment.environment()), "optional")
    assert found.state == "ok"
    assert "pip install pandas pyarrow" in found.advice


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setenv("COCKPIT_LOGS", str(tmp_path))
    for free, state in ((10**7, "problem"), (5 * 10**8, "warning"), (10**11, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda place, free=free: usage(1, 1, free))
        assert state_of(list(logs.logs()), "disk space").state == state


def test_folder_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").touch()
    monkeypatch.setenv("COCKPIT_LOGS", str(tmp_path / "logs"))
    (found,) = logs.logs()
    assert found.state == "problem"
    assert "COCKPIT_LOGS" in found.advice


def test_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setenv("COCKPIT_LOGS", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(logs.tempfile, "TemporaryDirectory", refuse)
    found = list(logs.logs())
    assert state_of(found, "run folder").state == "problem"
    assert state_of(found, "run file").state == "problem"


def test_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCKPIT_LOGS", str(tmp_path))
    monkeypatch.setattr(logs, "_file_system", lambda place: "nfs4")
    found = state_of(list(logs.logs()), "run file")
    assert found.state == "warning"
    assert "nfs4" in found.found


# -- a model ------------------------------------------------------------------------------------------------


def test_coverage_is_tried(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{script.name}:build", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert err == "imported\n"
    assert report["tried"]
    assert {name: c["way"] for name, c in report["coverage"].items()} == {
        "0.weight": "formula",
        "0.bias": "formula",
        "1.scale": "vmap",
        "2.weight": "formula",
        "2.bias": "formula",
    }
    assert sum(group["weights"] for group in report["groups"]) == 12 + 4 + 4 + 8 + 2


def test_coverage_in_words(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{script.name}:norm"]) == 0
    out = capsys.readouterr().out
    assert "tried on a backward pass over 5 examples" in out
    assert "row_contribution: 2 parameters" in out
    assert "why: BatchNorm" in out
    assert "0.weight, 0.bias" in out


def test_without_inputs_it_is_expected(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{script.name}:alone", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert not report["tried"]
    assert report["coverage"]["0.weight"]["way"] == "expected: formula"
    assert report["coverage"]["1.scale"] == {
        "way": "expected: vmap or loop",
        "reason": "no layer formula for Scale",
    }


def test_inputs_by_name_and_several_outputs(script: Path) -> None:
    found = covered(find_target(f"{script.name}:named"))
    assert found.tried
    assert set(found.ways) == {"table.weight"}
    assert found.ways["table.weight"][0] == "formula"


def test_every_way_has_its_meaning() -> None:
    assert {way.value for way in Way} <= set(MEANING)


def test_repeated_layers_are_named_once() -> None:
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(100)])
    ways = {name: ("formula", "") for name, _ in model.named_parameters()}
    (group,) = groups(model, ways)
    assert group.names == ("*.weight (100)", "*.bias (100)")
    assert group.parameters == 200
    assert group.weights == 600


def test_largest_group_comes_first() -> None:
    model = nn.Sequential(nn.Linear(2, 9), nn.Linear(9, 1))
    ways = {n: ("vmap" if n == "1.bias" else "formula", "") for n, _ in model.named_parameters()}
    assert [(group.way, group.weights) for group in groups(model, dict(reversed(ways.items())))] == [
        ("formula", 36),
        ("vmap", 1),
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("users_script.py:broken", "ValueError: no weights here (users_script.py, line 25)"),
        ("users_script.py:nothing", "has no 'nothing'. It has: frozen, build"),
        ("users_script.py:number", "gives int"),
        ("users_script.py:mismatch", "cannot be called with its inputs"),
        ("users_script.py:frozen", "no trainable parameter"),
        ("absent.py", "absent.py does not exist"),
        ("no_such_module_here:model", "could not be imported"),
        ("torch.nn:Linear", "TypeError"),
    ],
)
def test_mistakes_take_one_line(
    script: Path, name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    line = err.removeprefix("imported\n")
    assert line.startswith("cockpit doctor: error: ")
    assert words in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("model = nn.Linear(1, 1); other = nn.Linear(1, 1)", "model"),
        ("only = nn.Linear(1, 1)\ndef build(): return nn.Linear(2, 2)", "only"),
        ("def get_model(size=3): return nn.Linear(size, 1)\ndef build_model(x): pass", "get_model"),
        ("class Net(nn.Linear):\n    def __init__(self): super().__init__(1, 1)", "Net"),
    ],
)
def test_the_model_is_found(script: Path, text: str, chosen: str) -> None:
    script.write_text(f"from torch import nn\n{text}\n")
    assert find_target(str(script)).name == f"{script}:{chosen}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = nn.Linear(1, 1); b = nn.Linear(1, 1)", "several models could be meant. It has: a, b"),
        ("x = 1", "has no model at its top level"),
        ("raise SystemExit(3)", "ended the program"),
        ("x = 1 / 0", "ZeroDivisionError: division by zero (users_script.py, line 2)"),
    ],
)
def test_the_model_is_not_found(script: Path, text: str, words: str) -> None:
    script.write_text(f"from torch import nn\n{text}\n")
    with pytest.raises(CockpitError) as error:
        find_target(str(script))
    assert words in str(error.value)


def test_inputs_beside_the_model(script: Path) -> None:
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(2, 1)\ndef example_inputs(): return torch.zeros(3, 2)\n"
    )
    assert covered(find_target(str(script))).tried


def test_a_model_that_cannot_be_watched_is_still_described() -> None:
    class Unhelpful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> str:
            return "no tensor"

    with pytest.raises(CockpitError, match="gives no output"):
        covered(Target("t", Unhelpful(), torch.zeros(3, 2)))


def test_started_as_a_program(script: Path) -> None:
    command = [sys.executable, "-m", "cockpit.doctor", f"{script.name}:build"]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "formula: 4 parameters" in done.stdout
