"""Where a server listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from cockpit.errors import CockpitError
from cockpit.web import sockets
from cockpit.web.sockets import is_everywhere, is_local, listen


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def open_at(stack: ExitStack, host: str, port: int | None) -> int:
    """Listen until the test ends, and return the port."""
    found = listen(host, port)
    for one in found:
        stack.callback(one.close)
    ports = {one.getsockname()[1] for one in found}
    assert len(ports) == 1
    return int(ports.pop())


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_this_machine_only_under_both_addresses(stack: ExitStack) -> None:
    found = listen("127.0.0.1", 0)
    for one in found:
        stack.callback(one.close)
    assert [one.getsockname()[0] for one in found] == (["127.0.0.1", "::1"] if has_ipv6() else ["127.0.0.1"])
    assert all(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for one in found)


def test_the_next_free_port(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    free = open_at(stack, "127.0.0.1", 0)
    monkeypatch.setattr(sockets, "PORT", free)
    assert free < open_at(stack, "127.0.0.1", None) < free + sockets.PORTS
    monkeypatch.setattr(sockets, "PORTS", 1)
    with pytest.raises(CockpitError, match=f"no free port from {free} to {free}"):
        listen("127.0.0.1", None)


def test_a_named_port_is_that_or_none(stack: ExitStack) -> None:
    taken = open_at(stack, "127.0.0.1", 0)
    with pytest.raises(CockpitError, match=f"port {taken} is taken"):
        listen("127.0.0.1", taken)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_nobody_waits_at_the_other_address(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever types localhost may be sent to ::1."""
    other = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
    port = other.getsockname()[1]
    with pytest.raises(CockpitError, match="is taken"):
        listen("localhost", port)
    monkeypatch.setattr(sockets, "PORT", port)
    assert open_at(stack, "localhost", None) > port


def test_a_machine_without_ipv6(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = sockets._bound

    def without(host: str, port: int) -> socket.socket:
        if ":" in host:
            raise OSError(97, "Address family not supported by protocol")
        return bound(host, port)

    monkeypatch.setattr(sockets, "_bound", without)
    assert open_at(stack, "127.0.0.1", 0) > 0


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-name.invalid"])
def test_addresses_of_others(host: str) -> None:
    with pytest.raises(CockpitError, match=f"cannot listen on {host}"):
        listen(host, 0)


@pytest.mark.parametrize("port", [-1, 65536])
def test_numbers_that_are_no_ports(port: int) -> None:
    with pytest.raises(CockpitError, match="not a port"):
        listen("127.0.0.1", port)


def test_who_can_reach_it() -> None:
    assert [is_local(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST")] == [
        True
    ] * 5
    assert [is_local(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example")] == [False] * 4
    assert [is_everywhere(host) for host in ("0.0.0.0", "::", "127.0.0.1")] == [True, True, False]
