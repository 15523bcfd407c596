"""Nobody gets in who should not, whatever the route: the routes are taken from the application itself."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from cockpit.errors import CockpitError
from cockpit.web.guard import Guard, Rules, hosts_of

TOKEN = "a-token-for-tests-only"
LOCAL = "http://localhost:6116"


def paths(guard: Guard) -> list[str]:
    """Every route of the application, with something in the place of its parameters."""
    assert isinstance(guard.app, Starlette)
    assert all(isinstance(route, Route) for route in guard.app.routes)
    filled = {"{id}": "612d58a30decf083", "{instrument}": "alpha_gauge", "{name:path}": "index.html"}
    found = []
    for route in guard.app.routes:
        assert isinstance(route, Route)
        path = route.path
        for name, value in filled.items():
            path = path.replace(name, value)
        assert "{" not in path, "a new parameter: say above what stands in its place"
        found.append(path)
    assert len(found) >= 8
    return found


def is_guarded(answer: Any) -> bool:
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "cache-control" in answer.headers
    assert not [name for name in answer.headers if name.startswith("access-control")]
    return True


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_without_token(stranger: TestClient, guard: Guard, method: str) -> None:
    for path in paths(guard):
        answer = stranger.request(method, path)
        assert (answer.status_code, is_guarded(answer)) == (401, True), path


@pytest.mark.parametrize(
    "wrong",
    [
        {"X-Cockpit-Token": "wrong"},
        {"X-Cockpit-Token": ""},
        {"X-Cockpit-Token": TOKEN + "x"},
        {"X-Cockpit-Token": TOKEN[:-1]},
        {"X-Cockpit-Token": "ä".encode()},
        {"Cookie": "cockpit-6116=wrong"},
        {"Cookie": f"cockpit-6116={TOKEN}"},
        {"Cookie": f"cockpit-6117={Guard(PlainTextResponse(), Rules(TOKEN))._pass}"},
        {"Cookie": "cockpit-6116="},
        {"Cookie": ";;;=;"},
        {"Authorization": f"Bearer {TOKEN}"},
    ],
    ids=str,
)
def test_wrong_token(stranger: TestClient, guard: Guard, wrong: dict[str, Any]) -> None:
    for path in paths(guard):
        answer = stranger.get(path, headers=wrong)
        assert (answer.status_code, is_guarded(answer)) == (401, True), path


def test_a_token_in_the_address_is_for_the_first_page_only(stranger: TestClient, guard: Guard) -> None:
    for path in paths(guard):
        assert stranger.get(path, params={"token": "wrong"}).status_code == 401, path
        if path != "/":
            assert stranger.get(path, params={"token": TOKEN}).status_code == 401, path


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:6116",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1.",
        "127.0.0.2",
        "0.0.0.0:6116",
        "192.168.0.1",
        "localhost:6116:6116",
        "localhost:port",
        "user@localhost",
        "localhost/",
        "localhost#",
        "local host",
        "[::1",
        "[::2]",
        "::1",
        "",
        "localhost, evil.example",
    ],
)
def test_foreign_and_malformed_hosts(client: TestClient, guard: Guard, host: str) -> None:
    for path in paths(guard):
        answer = client.get(path, headers={"Host": host})
        assert (answer.status_code, is_guarded(answer)) == (400, True), path


@pytest.mark.parametrize("headers", [[], [(b"host", b"localhost"), (b"host", b"evil.example")]], ids=str)
def test_no_host_and_two_hosts(guard: Guard, headers: list[tuple[bytes, bytes]]) -> None:
    assert asyncio.run(_status(guard, [*headers, (b"x-cockpit-token", TOKEN.encode())])) == 400


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:6116", "[::1]:80", "[::1]"])
def test_own_hosts(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "X"])
def test_only_reading(client: TestClient, guard: Guard, method: str) -> None:
    for path in paths(guard):
        answer = client.request(method, path)
        assert (answer.status_code, is_guarded(answer)) == (405, True), path
        assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:9999"},
        {"Origin": "http://localhost"},
        {"Origin": "http://localhost:6116.evil.example"},
        {"Origin": "http://evil.example/localhost:6116"},
        {"Origin": "null"},
        {"Origin": ""},
    ],
    ids=str,
)
def test_other_sites(client: TestClient, guard: Guard, headers: dict[str, str]) -> None:
    for path in paths(guard):
        answer = client.get(path, headers=headers)
        assert (answer.status_code, is_guarded(answer)) == (403, True), path


def test_other_sites_cannot_use_the_token_but_for_a_link(client: TestClient) -> None:
    linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (
        client.get("/", params={"token": TOKEN}, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    )
    assert client.get("/", headers=linked).status_code == 403
    answer = client.get("/", params={"token": TOKEN}, headers=linked)
    # not by a redirect: the browser would count that one as coming from the other site as well
    assert (answer.status_code, is_guarded(answer)) == (200, True)
    assert 'http-equiv="refresh" content="0; url=./"' in answer.text
    assert "SameSite=Strict" in answer.headers["set-cookie"]
    assert TOKEN not in answer.text


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": LOCAL}]
)
def test_own_pages(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/api/runs", headers=headers).status_code == 200


def test_the_token_becomes_a_cookie(stranger: TestClient) -> None:
    answer = stranger.get("/", params={"token": TOKEN, "more": "a&b"})
    assert (answer.status_code, answer.headers["location"]) == (303, "./?more=a%26b")
    assert is_guarded(answer)
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert name.startswith("cockpit-6116=")
    assert attributes == ["HttpOnly", "SameSite=Strict"]
    assert TOKEN not in str(answer.headers)
    assert stranger.get("/").status_code == 200  # the cookie does it
    assert stranger.get("/api/runs").status_code == 200
    assert stranger.get("/", params={"token": "an-old-one"}).headers["location"] == "./"


def test_nobody_is_sent_elsewhere(stranger: TestClient) -> None:
    for path in ("//evil.example/", "/\\evil.example", "/%0d%0aLocation:%20http://evil.example"):
        answer = stranger.get(f"{LOCAL}{path}", params={"token": TOKEN})
        assert answer.status_code in (303, 401)
        assert answer.headers.get("location", "./") == "./"
    answer = stranger.get("/", params={"token": TOKEN, "\r\nX": "//evil.example"})
    assert answer.headers["location"].startswith("./?")
    assert "\n" not in answer.headers["location"]


def test_an_invitation_works_once(
    stranger: TestClient, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = guard.invite()
    assert token != TOKEN
    assert stranger.get("/api/runs", headers={"X-Cockpit-Token": token}).status_code == 401
    assert stranger.get("/", params={"token": token}).status_code == 303
    stranger.cookies.clear()
    assert stranger.get("/", params={"token": token}).status_code == 401
    late = guard.invite()
    monkeypatch.setattr("cockpit.web.guard.time.monotonic", lambda: 1e12)
    assert stranger.get("/", params={"token": late}).status_code == 401


def test_servers_on_two_ports_keep_separate_cookies() -> None:
    """Browsers send the cookies of all ports of a host to each of them."""
    jar: dict[str, str] = {}
    servers = {port: Guard(PlainTextResponse("in"), Rules(f"secret of {port}")) for port in (6116, 6117)}
    for port, server in servers.items():
        client = TestClient(server, base_url=f"http://localhost:{port}", follow_redirects=False)
        cookie = client.get("/", params={"token": f"secret of {port}"}).headers["set-cookie"]
        name, _, value = cookie.split(";")[0].partition("=")
        jar[name] = value
    assert len(jar) == 2
    cookies = "; ".join(f"{name}={value}" for name, value in jar.items())
    for port, server in servers.items():
        client = TestClient(server, base_url=f"http://localhost:{port}")
        assert client.get("/", headers={"Cookie": cookies}).text == "in"


def test_rules_for_more_hosts() -> None:
    rules = Rules(TOKEN, hosts_of(["Node7.cluster", "hub.example:8443", "[fe80::1]"]), any_address=True)
    assert rules.hosts == {"node7.cluster", "hub.example", "fe80::1"}
    client = TestClient(Guard(PlainTextResponse("in"), rules), headers={"X-Cockpit-Token": TOKEN})
    for host in ("node7.cluster:6116", "HUB.example", "[fe80::1]:6116", "10.0.0.7:6116", "[2001:db8::1]"):
        assert client.get("/", headers={"Host": host}).text == "in", host
    for host in ("other.cluster", "10.0.0.7.evil.example"):
        assert client.get("/", headers={"Host": host}).status_code == 400, host
    assert TOKEN not in repr(rules)


@pytest.mark.parametrize("name", ["not a host", "https://hub.example", "", "*", "hub.example/path"])
def test_names_that_are_no_hosts(name: str) -> None:
    with pytest.raises(CockpitError, match="not a host"):
        hosts_of(["localhost", name])


def test_origin_of_a_proxy() -> None:
    rules = Rules(TOKEN, origins=frozenset({"https://hub.example"}))
    client = TestClient(Guard(PlainTextResponse("in"), rules), LOCAL, headers={"X-Cockpit-Token": TOKEN})
    assert client.get("/", headers={"Origin": "https://hub.example"}).text == "in"
    assert client.get("/", headers={"Origin": "https://hub.example.evil"}).status_code == 403


def test_web_sockets_are_closed(guard: Guard) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/api/ticks", "headers": [(b"x-cockpit-token", TOKEN.encode())]}
    asyncio.run(guard(scope, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_errors_of_the_application_are_guarded() -> None:
    def broken(_: Request) -> Response:
        raise RuntimeError("a fault")

    app = Guard(Starlette(routes=[Route("/", broken)]), Rules(TOKEN))
    client = TestClient(app, LOCAL, raise_server_exceptions=False, headers={"X-Cockpit-Token": TOKEN})
    for path, status in (("/", 500), ("/nothing", 404)):
        answer = client.get(path)
        assert (answer.status_code, is_guarded(answer)) == (status, True)
        assert answer.headers["cache-control"] == "no-store"


def test_everything_that_is_answered_is_guarded(client: TestClient, guard: Guard) -> None:
    for path in paths(guard):
        assert is_guarded(client.head(path)), path


def test_the_token_is_in_no_log(stranger: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "uvicorn")
    caplog.set_level(logging.DEBUG, "starlette")
    for token in (TOKEN, "wrong"):
        stranger.get("/", params={"token": token})
    ours = [
        record for record in caplog.records if not record.name.startswith("httpx")
    ]  # the client's own log
    assert TOKEN not in " ".join(record.getMessage() for record in ours)


async def _status(guard: Guard, headers: list[tuple[bytes, bytes]]) -> int:
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    scope = {"type": "http", "method": "GET", "path": "/api/runs", "query_string": b"", "headers": headers}
    await guard(scope, receive, send)
    return statuses[0]
