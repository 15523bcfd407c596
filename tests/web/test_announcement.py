"""What is said when the server is ready."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cockpit.web import announcement as module
from cockpit.web.announcement import announce, has_desktop
from cockpit.web.serving import Serving


@pytest.fixture
def serving(logs: Path) -> Iterator[Serving]:
    with Serving([logs], port=0) as serving:
        yield serving


def test_one_line(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    announce(serving)
    output = capsys.readouterr()
    assert output.out == f"cockpit: {serving.address} (2 runs; Ctrl-C ends it)\n"
    assert output.err == ""


def test_in_the_background(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    serving.start()
    announce(serving)
    assert (
        capsys.readouterr().out
        == f"cockpit: {serving.address} (2 runs; ends with this program, or by .stop())\n"
    )


def test_one_line_for_programs(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    announce(serving, as_json=True)
    (line,) = capsys.readouterr().out.splitlines()
    facts = json.loads(line)
    assert facts["address"] == f"http://127.0.0.1:{facts['port']}/?token={facts['token']}"
    assert (facts["host"], facts["runs"]) == ("127.0.0.1", 2)


def test_no_runs_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Serving([tmp_path], port=0) as serving:
        announce(serving)
    assert f"no runs yet in {tmp_path}" in capsys.readouterr().out


def test_a_loud_warning(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Serving([logs], port=0, host="0.0.0.0") as serving:
        announce(serving, as_json=True)
        token = serving.token
    output = capsys.readouterr()
    assert output.err.count("WARNING") == 3
    assert token not in output.err
    assert len(output.out.splitlines()) == 1
    assert "?token=" in json.loads(output.out)["address"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses for which a browser was opened."""
    found: list[str] = []
    monkeypatch.setattr(module.webbrowser, "open", found.append)
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.run)
    for name in ("SSH_CONNECTION", "CI", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(sys, "platform", "linux")
    return found


def test_the_browser_gets_an_invitation_not_the_token(
    serving: Serving, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    announce(serving)
    (address,) = opened
    assert address.startswith(f"http://127.0.0.1:{serving.port}/?token=")
    assert serving.token not in address


def test_no_browser_where_none_is_wanted(
    serving: Serving, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(serving)  # standard output is no terminal
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    announce(serving, browser=False)
    monkeypatch.setenv("SSH_CONNECTION", "1")
    announce(serving)
    assert opened == []


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", {"DISPLAY": ":10", "SSH_CONNECTION": "10.0.0.1"}, False),
        ("linux", {"DISPLAY": ":0", "CI": "true"}, False),
        ("darwin", {}, True),
        ("darwin", {"SSH_CONNECTION": "10.0.0.1"}, False),
        ("win32", {}, True),
    ],
)
def test_desktops(
    platform: str, variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert has_desktop() is expected
