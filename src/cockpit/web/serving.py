"""Serving: a server for some runs, from the first free port to the last open connection."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import uvicorn

from cockpit.errors import CockpitError
from cockpit.web.app import make_app
from cockpit.web.guard import Guard, Rules, hosts_of
from cockpit.web.library import Library
from cockpit.web.sockets import is_everywhere, is_local, listen
from cockpit.web.ticks import Ticks

Paths = Sequence[str | os.PathLike[str]]

LENGTH = 16
"""Characters that a token of one's own must have at least, where others can reach the server."""


class Serving:
    """A server that listens but does not answer before `run` or `start`.

    What is not given comes from the variables ``COCKPIT_HOST``, ``COCKPIT_PORT``, ``COCKPIT_TOKEN`` and
    ``COCKPIT_PROXY_URL``.

    Args:
        paths: runs, or folders of runs; none: the folder of named runs.
        host: the address to listen on; default: this machine only.
        port: the port; 0: any free one; default: the first free one from 6116 on.
        token: the secret in the address; default: a new one.
        allowed_hosts: further names under which the server may be addressed.

    Attributes:
        address: what to open, token included.
        host: the address it listens on.
        port: the port it listens on.
        is_local: whether only this machine can reach it.
    """

    def __init__(
        self,
        paths: Paths = (),
        *,
        host: str | None = None,
        port: int | None = None,
        token: str | None = None,
        allowed_hosts: Sequence[str] = (),
    ):
        self.library = Library(paths)
        self.host = host or os.environ.get("COCKPIT_HOST") or "127.0.0.1"
        self.is_local = is_local(self.host)
        self.token = token or os.environ.get("COCKPIT_TOKEN") or secrets.token_urlsafe(32)
        if not self.is_local and len(self.token) < LENGTH:
            raise CockpitError(f"a token that others could guess: take at least {LENGTH} characters.")
        allowed = hosts_of(allowed_hosts)
        self._sockets = listen(self.host, _port() if port is None else port)
        self.port = int(self._sockets[0].getsockname()[1])
        proxy = os.environ.get("COCKPIT_PROXY_URL", "").replace("%PORT%", str(self.port))
        self._place = proxy or f"http://{_bracketed(self._name())}:{self.port}/"
        self._ticks = Ticks(self.library.sequences)
        self._guard = Guard(make_app(self.library, self._ticks), self._rules(allowed, proxy))
        self._server = _Server(self._guard, self._ticks)
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """What to open, token included."""
        return self._with(self.token)

    @property
    def in_background(self) -> bool:
        """Whether it answers in a thread of its own."""
        return self._thread is not None

    def __repr__(self) -> str:
        return f"Serving({self._place!r})"  # without the token: it may end up in a log

    def invitation(self) -> str:
        """Return an address that works once, within a minute."""
        return self._with(self._guard.invite())

    def run(self) -> None:
        """Answer until Ctrl-C."""
        self._look_ahead()
        try:
            self._server.run(self._sockets)
        except KeyboardInterrupt:  # uvicorn has ended everything and raises it once more
            return
        finally:
            self._close()

    def start(self) -> None:
        """Answer in a thread that ends with the process, or with `stop`."""
        self._look_ahead()
        self._thread = threading.Thread(
            target=self._server.run, args=(self._sockets,), name="cockpit-server", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the thread has ended."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.5)  # a join without end would not be interrupted on every system

    def stop(self) -> None:
        """End the server; do nothing if it has ended."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(5.0)
        self._close()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _look_ahead(self) -> None:
        """Read the newest run while the browser starts: a page of a million steps is then there at once."""
        threading.Thread(target=self.library.read_newest, name="cockpit-look-ahead", daemon=True).start()

    def _close(self) -> None:
        for one in self._sockets:
            one.close()

    def _name(self) -> str:
        """Return the name under which the server is opened."""
        if is_everywhere(self.host):
            return socket.gethostname()
        return "127.0.0.1" if self.host.lower() == "localhost" else self.host

    def _with(self, token: str) -> str:
        return f"{self._place}{'&' if '?' in self._place else '?'}token={quote(token, safe='')}"

    def _rules(self, allowed: frozenset[str], proxy: str) -> Rules:
        before = urlsplit(proxy)
        hosts = allowed | {self._name(), before.hostname or "localhost"}
        origins = frozenset({f"{before.scheme}://{before.netloc}".lower()} if proxy else ())
        return Rules(self.token, hosts, origins, any_address=is_everywhere(self.host))


class _Server(uvicorn.Server):
    """Ends open streams by itself when it is asked to end, instead of waiting for pages to go."""

    def __init__(self, app: Guard, ticks: Ticks):
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # not every odd request of a stranger
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._ticks = ticks

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ticks.close()
        await super().shutdown(sockets)


def serve(paths: Paths = (), announce: Callable[[Serving], None] | None = None, **options: Any) -> None:
    """Show runs on a page until Ctrl-C.

    Args:
        paths: runs, or folders of runs; none: the folder of named runs.
        announce: called when the server listens; default: print the address.
        options: those of `Serving`.
    """
    serving = Serving(paths, **options)
    if announce is None:
        print(serving.address, flush=True)
    else:
        announce(serving)
    serving.run()


def serve_in_background(paths: Paths = (), **options: Any) -> Serving:
    """Show runs on a page while the program goes on: for notebooks. ``.address`` is what to open, ``.stop()`` ends it.

    Args:
        paths: runs, or folders of runs; none: the folder of named runs.
        options: those of `Serving`.
    """
    serving = Serving(paths, **options)
    serving.start()
    return serving


def _port() -> int | None:
    """Return the port that the environment names."""
    text = os.environ.get("COCKPIT_PORT")
    try:
        return int(text) if text else None
    except ValueError as error:
        raise CockpitError(f"COCKPIT_PORT must be a number, not {text!r}.") from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
