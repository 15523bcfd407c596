"""The real server, in its own process: one line, raw requests, ticks while a training writes, and the end."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cockpit.errors import CockpitError
from cockpit.web import serve_in_background
from cockpit.web.serving import Serving, serve

VARIABLES = ("COCKPIT_HOST", "COCKPIT_PORT", "COCKPIT_TOKEN", "COCKPIT_PROXY_URL", "COCKPIT_LOGS")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Server:
    """``cockpit show`` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]):
        assert process.stdout is not None
        self.process = process
        self.line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", self.line)
        assert found, self.line or (process.stderr.read() if process.stderr else "")
        self.port, self.token = int(found[1]), found[2]

    def ask(self, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Ask as a program would, with every header as given."""
        given = {"Host": f"localhost:{self.port}", "X-Cockpit-Token": self.token}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def json(self, path: str) -> Any:
        status, _, body = self.ask(path)
        assert status == 200
        return json.loads(body)

    @contextmanager
    def ticks(self) -> Iterator[Iterator[dict[str, int]]]:
        """Listen to the stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with closing(connection):
            headers = {"X-Cockpit-Token": self.token, "Accept-Encoding": "gzip"}
            connection.request("GET", "/api/ticks", headers=headers)
            answer = connection.getresponse()
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert "content-encoding" not in answer.headers
            yield (
                json.loads(line.removeprefix(b"data: "))["runs"]
                for line in answer
                if line.startswith(b"data: ")
            )

    def end(self, number: int = signal.SIGINT) -> tuple[int, str, str, float]:
        """Return the status, what was printed, and how long it took."""
        begun = time.perf_counter()
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=20)
        return self.process.returncode, output, errors, time.perf_counter() - begun


@contextmanager
def show(*arguments: str | Path, **variables: str) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", "cockpit", "show", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )
    try:
        yield Server(process)
    finally:
        process.kill()
        process.communicate()


def test_one_line_and_ctrl_c(logs: Path) -> None:
    with show(logs, "--port", "0") as server:
        assert server.line.endswith("(2 runs; Ctrl-C ends it)\n")
        assert {card["name"] for card in server.json("/api/runs")["runs"]} == {"first", "deep/second"}
        status, output, errors, seconds = server.end()
    assert (status, output, errors) == (0, "", "")
    assert seconds < 3


def test_ctrl_c_with_a_page_open(logs: Path) -> None:
    with show(logs, "--port", "0") as server, server.ticks() as ticks:
        assert len(next(ticks)) == 2
        status, output, errors, seconds = server.end()
        assert list(ticks) == []  # the stream was ended properly
    assert (status, output, errors) == (0, "", "")
    assert seconds < 3


def test_termination(logs: Path) -> None:
    with show(logs, "--port", "0") as server, server.ticks() as ticks:
        next(ticks)
        status, output, errors, _ = server.end(signal.SIGTERM)
    assert (status, output, errors) == (-signal.SIGTERM, "", "")


def test_raw_requests(logs: Path) -> None:
    secret = logs.parent / "secret.txt"
    secret.write_text("secret")
    with show(logs, "--port", "0") as server:
        answers = [
            (200, server.ask("/api/runs")),
            (400, server.ask("/api/runs", Host="evil.example")),  # a name that was made to point here
            (400, server.ask("/api/runs", Host=f"evil.example:{server.port}")),
            (400, server.ask("/", Host="localhost:6116@evil.example")),
            (401, server.ask("/api/runs", X_Cockpit_Token="wrong")),
            (401, server.ask("/", X_Cockpit_Token="wrong")),
            (403, server.ask("/api/runs", Origin="http://evil.example")),
            (403, server.ask("/api/runs", Sec_Fetch_Site="cross-site")),
            (404, server.ask("/../../secret.txt")),
            (404, server.ask("/..%2f..%2fsecret.txt")),
            (404, server.ask("/assets/%2e%2e/%2e%2e/%2e%2e/secret.txt")),
            (404, server.ask(f"//{secret}")),
            (404, server.ask(f"/api/runs/..%2f{logs.name}%2ffirst")),
            (404, server.ask("/api/runs/%00")),
            (404, server.ask("/api/runs/" + "a" * 5000)),
            (
                200,
                server.ask(
                    "/api/runs", Upgrade="websocket", Connection="Upgrade", Sec_WebSocket_Version="13"
                ),
            ),
            (303, server.ask(f"/?token={server.token}", X_Cockpit_Token="")),
        ]
        for expected, (status, headers, body) in answers:
            assert status == expected
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "default-src 'self'" in headers["Content-Security-Policy"]
            assert "Server" not in headers
            assert not [name for name in headers if name.lower().startswith("access-control")]
            assert b"secret" not in body
        status, output, errors, _ = server.end()
    assert server.token not in output + errors
    assert (status, output, errors) == (0, "", "")


def test_cookies_of_two_servers(logs: Path) -> None:
    with show(logs, "--port", "0") as one, show(logs, "--port", "0") as two:
        jar = []
        for server in (one, two):
            _, headers, _ = server.ask(f"/?token={server.token}", X_Cockpit_Token="")
            jar.append(headers["Set-Cookie"].split(";")[0])
        assert jar[0].split("=")[0] != jar[1].split("=")[0]
        for server in (one, two):
            assert server.ask("/api/runs", X_Cockpit_Token="", Cookie="; ".join(jar))[0] == 200
        swapped = [f"{a.split('=')[0]}={b.split('=')[1]}" for a, b in (jar, jar[::-1])]
        for server in (one, two):
            assert server.ask("/api/runs", X_Cockpit_Token="", Cookie="; ".join(swapped))[0] == 401


WRITER = """
import sys, time
from cockpit.store.record import Record
from cockpit.store.writer import Writer
writer = Writer(sys.argv[1])
print("ready", flush=True)
for step, line in enumerate(sys.stdin):
    writer.write([Record(step, "loss", 1.0)])
    writer.flush()
    print(time.time(), flush=True)
"""


def test_ticks_while_a_training_writes_and_is_killed(tmp_path: Path) -> None:
    training = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert training.stdin is not None
    assert training.stdout is not None
    with training, show(tmp_path, "--port", "0") as server, server.ticks() as ticks:
        assert training.stdout.readline() == "ready\n"
        while not (state := next(ticks)):  # the run appears by itself
            pass
        ((id, sequence),) = state.items()
        for step in range(3):
            print(file=training.stdin, flush=True)
            written = float(training.stdout.readline())
            while state[id] == sequence:
                state = next(ticks)
            assert time.time() - written < 1.0
            sequence = state[id]
            card = server.json(f"/api/runs/{id}")
            assert (card["last_step"], card["status"]) == (step, "running")
            assert server.json("/api/sequences")["runs"][id] >= sequence
        training.kill()
        training.wait()
        card = server.json(f"/api/runs/{id}")
        assert (card["last_step"], card["status"]) == (2, "ended without close")
        assert server.json("/api/runs")["runs"][0]["status"] == "ended without close"
        assert server.json(f"/api/runs/{id}/charts/performance_gauge")["chart"]["plots"]
        assert server.end()[0] == 0


def test_ports(logs: Path) -> None:
    with Serving([logs], port=0) as first:
        with show(logs, "--port", "0", COCKPIT_PORT=str(first.port)) as server:
            assert server.port != first.port
        taken = subprocess.run(
            [sys.executable, "-m", "cockpit", "show", str(logs), "--port", str(first.port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (taken.returncode, taken.stdout) == (2, "")
    assert taken.stderr.startswith(f"cockpit: error: port {first.port} is taken")
    assert taken.stderr.count("\n") == 1


def test_variables(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Serving([logs], port=0) as free:
        port = free.port
    monkeypatch.setenv("COCKPIT_PORT", str(port))
    monkeypatch.setenv("COCKPIT_TOKEN", "my own & secret")
    monkeypatch.setenv("COCKPIT_HOST", "localhost")
    with Serving([logs]) as serving:
        assert serving.address == f"http://127.0.0.1:{port}/?token=my%20own%20%26%20secret"
    monkeypatch.setenv("COCKPIT_PROXY_URL", "https://hub.example/user/me/proxy/%PORT%/")
    with Serving([logs], token="t") as serving:
        assert serving.address == f"https://hub.example/user/me/proxy/{port}/?token=t"
        rules = serving._guard._rules
        assert "hub.example" in rules.hosts
        assert rules.origins == {"https://hub.example"}
    monkeypatch.setenv("COCKPIT_PORT", "many")
    with pytest.raises(CockpitError, match="COCKPIT_PORT"):
        Serving([logs])


def test_other_machines_may_come_only_with_a_good_token(logs: Path) -> None:
    with pytest.raises(CockpitError, match="at least 16"):
        Serving([logs], host="0.0.0.0", port=0, token="short")
    with Serving([logs], host="0.0.0.0", port=0) as serving:
        assert not serving.is_local
        assert len(serving.token) >= 43
        assert urlsplit(serving.address).hostname == socket.gethostname().lower()
    with Serving([logs], host="::1", port=0) as serving:
        assert serving.is_local
        assert serving.address.startswith(f"http://[::1]:{serving.port}/")


def test_every_server_has_its_own_token(logs: Path) -> None:
    with Serving([logs], port=0) as one, Serving([logs], port=0) as two:
        assert one.token != two.token
        assert one.token not in repr(one)
        (invited,) = parse_qs(urlsplit(one.invitation()).query)["token"]
        assert invited not in (one.token, two.token)


def test_in_the_background(logs: Path) -> None:
    serving = serve_in_background([logs], port=0)
    split = urlsplit(serving.address)
    connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=10)
    connection.request("GET", "/api/runs", headers={"X-Cockpit-Token": serving.token})
    assert len(json.loads(connection.getresponse().read())["runs"]) == 2
    connection.close()
    assert split.port == serving.port
    serving.stop()
    serving.stop()  # twice is once
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", serving.port), timeout=5).close()


def test_in_the_background_with_a_page_open(logs: Path) -> None:
    with serve_in_background([logs], port=0) as serving:
        connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=10)
        connection.request("GET", "/api/ticks", headers={"X-Cockpit-Token": serving.token})
        answer = connection.getresponse()
        assert answer.readline() == b"retry: 1000\n"
        begun = time.perf_counter()
    assert time.perf_counter() - begun < 3
    assert b"data: " in answer.read()
    connection.close()


def test_serve_says_where(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Serving, "run", Serving.stop)
    serve([logs], port=0)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S{43}\n", capsys.readouterr().out)


def test_looking_needs_no_torch(logs: Path) -> None:
    code = (
        "import sys; from cockpit.web.serving import Serving\n"
        "with Serving(sys.argv[1:], port=0): print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(logs)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_the_command_starts_without_a_server() -> None:
    code = "import sys, cockpit.cli; print({'starlette', 'uvicorn', 'anyio', 'asyncio'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "set()\n"
