"""`cockpit bench`: a table for people, JSON for programs, one line for mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cockpit.bench.command import main

SCRIPT = """
import torch
from torch import nn
print("imported")

def build():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.ones(5, 4)

def alone():
    return nn.Linear(2, 2)
"""
FAST = ["--rounds", "2", "--seconds", "0", "--only", "norm_test", "grad_norm"]


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "benched_script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_json(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{script}:build", "--json", *FAST]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert "imported" in err
    assert report["examples"] == 5
    assert list(report["costs"]) == ["untracked", "grad_norm", "norm_test"]
    assert report["reasons"] == {}
    cost = report["costs"]["norm_test"]
    assert cost["process"]["median"] > 1
    assert cost["process_ms"] > 0
    assert cost["peak_ratio"] >= 1
    assert cost["gaps"] == []
    assert (
        report["costs"]["untracked"]["process"]["median"] == report["costs"]["untracked"]["peak_ratio"] == 1
    )


def test_table(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{script}:build", *FAST]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "5 examples" in lines[0]
    assert [line.split()[0] for line in lines if "×" in line] == ["untracked", "grad_norm", "norm_test"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["SCRIPT:alone"], "inputs are needed"),
        (["SCRIPT:build", "--only", "norm_tset"], "there is no 'norm_tset' to measure"),
        (["absent.py"], "absent.py does not exist"),
    ],
)
def test_mistakes_take_one_line(
    script: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([a.replace("SCRIPT", script) for a in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("cockpit bench: error: ")
    assert words in err.splitlines()[-1]


def test_started_by_the_command(script: str) -> None:
    command = [sys.executable, "-m", "cockpit", "bench", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "cockpit bench" in done.stdout
