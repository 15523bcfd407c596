"""Finding a place to listen: this machine's own addresses, and a port that nobody else has."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_address

from cockpit.errors import CockpitError

PORT = 6116
PORTS = 100
"""Where ports are looked for when none was named: from the first one on, so many."""

_TAKEN = (errno.EADDRINUSE, errno.EACCES)


def is_local(host: str) -> bool:
    """Say whether only this machine can reach a server at this address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_everywhere(host: str) -> bool:
    """Say whether it stands for all addresses of this machine."""
    return host in ("0.0.0.0", "::", "")


def listen(host: str, port: int | None) -> list[socket.socket]:
    """Return sockets that listen on one port.

    On this machine's own address it is IPv4 and IPv6: otherwise somebody else could take the other one of them and wait
    for those who type ``localhost``.

    Args:
        host: an address or a name.
        port: the port; 0 for any free one, None for the first free one from 6116 on.

    Raises:
        CockpitError: the port is taken or none, or the address is none of this machine.
    """
    if port is not None and not 0 <= port < 2**16:
        raise CockpitError(f"{port} is not a port: they go from 0 to {2**16 - 1}.")
    hosts = ["127.0.0.1", "::1"] if host.lower() in ("localhost", "127.0.0.1") else [host]
    for candidate in _candidates(port):
        try:
            return _listen_on(hosts, candidate)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise CockpitError(f"cannot listen on {host}: {error.strerror}.") from error
    if port:
        raise CockpitError(f"port {port} is taken. Name another one, or leave it to Cockpit: --port 0.")
    raise CockpitError(f"no free port from {PORT} to {PORT + PORTS - 1}. Name one: --port N.")


def _candidates(port: int | None) -> Iterator[int]:
    if port is None:
        yield from range(PORT, PORT + PORTS)
    else:
        yield from [port] * (1 if port else 20)  # any free one may be taken on the other address


def _listen_on(hosts: list[str], port: int) -> list[socket.socket]:
    found: list[socket.socket] = []
    with ExitStack() as undo:
        for host in hosts:
            try:
                one = _bound(host, port)
            except OSError as error:
                if found and error.errno not in _TAKEN:
                    continue  # this machine has no IPv6
                raise
            undo.callback(one.close)
            found.append(one)
            port = one.getsockname()[1]
        undo.pop_all()
    return found


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise OSError(errno.EADDRNOTAVAIL, f"{error.strerror}: {host}") from error
    one = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        one.listen(128)  # only now is the port really ours
        one.setblocking(False)
    except BaseException:
        one.close()
        raise
    return one
