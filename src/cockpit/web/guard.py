"""Guard: the outermost layer of the server; decides who may ask anything at all, before any route is looked at.

In this order: the Host must be one of ours (a stranger's page whose name was made to point here has another one), the
method must be one that reads, the request must not come from another site, and it must carry the token. Every answer,
errors included, gets the headers that keep a browser from doing more with it than showing it.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cockpit.errors import CockpitError
from cockpit.web.notice import notice

METHODS = ("GET", "HEAD")
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})

INVITATION = 60.0
"""Seconds for which an invitation can be used."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; font-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class Rules:
    """Whom the guard lets in.

    Attributes:
        token: the secret; whoever knows it may read.
        hosts: names under which the server may be addressed, in addition to those of this machine itself.
        origins: origins of pages that may ask, in addition to the server's own: those of a proxy before it.
        any_address: any numeric address will do as Host; only names can be made to point elsewhere.
    """

    token: str = field(repr=False)
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    any_address: bool = False


class Guard:
    """An ASGI application that answers strangers itself and hands everyone else on."""

    def __init__(self, app: ASGIApp, rules: Rules):
        self.app = app
        self._rules = rules
        self._hosts = LOCAL | {name.lower().strip("[]") for name in rules.hosts}
        # what the cookie holds: harmless in a cookie whatever characters the token has, and not the token itself
        self._pass = hashlib.blake2b(rules.token.encode(), digest_size=32).hexdigest()
        self._invitations: dict[str, float] = {}

    def invite(self) -> str:
        """Return a token that works once, and soon: for the command line of a browser, which others can see."""
        token = secrets.token_urlsafe(32)
        self._invitations[token] = time.monotonic() + INVITATION
        return token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            answer = self._answer(scope)
            await (self.app if answer is None else answer)(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # there is none, so nobody may have one

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a stranger, or to a token in the address; None for those who may go on."""
        headers = Headers(scope=scope)
        host = self._host(headers)
        if host is None:
            return _refusal(scope, 400, "This server does not go by that name.")
        if scope["method"] not in METHODS:
            return _refusal(scope, 405, "This server can only be read from.", {"Allow": ", ".join(METHODS)})
        query = parse_qsl(scope["query_string"].decode("latin-1")) if scope["path"] == "/" else []
        given = [value for key, value in query if key == "token"]
        invited = any(self._is_token(value) for value in given)
        outside = not self._from_here(headers)
        if outside and not (invited and _is_navigation(headers)):
            return _refusal(scope, 403, "Pages of other sites may not ask here.")
        cookie = f"cockpit-{host[1] or 80}"
        if not (invited or self._knows(headers, cookie)):
            return _refusal(scope, 401, "The token is missing or wrong.")
        if not given:
            return None
        for value in given:
            self._invitations.pop(value, None)
        left = urlencode([(key, value) for key, value in query if key != "token"])
        return self._exchange(cookie, f"./?{left}" if left else "./", outside)

    def _host(self, headers: Headers) -> tuple[str, str] | None:
        """Return the name and the port under which the server was addressed, if it may be."""
        given = headers.getlist("host")
        found = _HOST.fullmatch(given[0].lower()) if len(given) == 1 else None
        if found is None:
            return None
        name, port = found[1] or found[2], found[3] or ""
        return (
            (name, port) if name in self._hosts or (self._rules.any_address and _is_address(name)) else None
        )

    def _from_here(self, headers: Headers) -> bool:
        """Say whether a request comes from a page of this server, or from no page at all."""
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return False
        host = headers["host"].lower()
        own = {f"http://{host}", f"https://{host}", *self._rules.origins}
        return all(origin.lower() in own for origin in headers.getlist("origin"))

    def _knows(self, headers: Headers, cookie: str) -> bool:
        """Say whether the token comes in a header or a cookie."""
        pairs = [part.partition("=") for text in headers.getlist("cookie") for part in text.split(";")]
        passes = [value.strip() for key, _, value in pairs if key.strip() == cookie]
        tokens = headers.getlist("x-cockpit-token")
        return any(_same(value, self._pass) for value in passes) or any(
            _same(value, self._rules.token) for value in tokens
        )

    def _is_token(self, given: str) -> bool:
        now = time.monotonic()
        invited = any(_same(given, token) for token, end in self._invitations.items() if now < end)
        return _same(given, self._rules.token) or invited

    def _exchange(self, cookie: str, address: str, outside: bool) -> Response:
        """Give a cookie for the token and go on without it, so that it stays in no address bar and no history.

        Cookies do not tell ports apart, so the name has the port in it. Without a path it is valid from here on
        downwards only, which separates servers behind one proxy.
        """
        headers = {"Set-Cookie": f"{cookie}={self._pass}; HttpOnly; SameSite=Strict", "Location": address}
        if not outside:
            return Response(status_code=303, headers=headers)
        # a redirect would still count as coming from the other site, and be refused: let our own page go there
        del headers["Location"]
        return Response(notice("Cockpit", "One moment …", go_to=address), 200, headers, "text/html")


def _refusal(scope: Scope, status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    if scope["path"] != "/":
        return Response(json.dumps({"error": text}), status, headers, "application/json")
    advice = "Open the whole address that `cockpit show` printed; it ends with `?token=…`."
    if status == 400:
        advice = "If it is right, start the server with `cockpit show --allowed-host NAME`."
    return Response(notice(text, advice), status, headers, "text/html")


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return guarded


def _is_navigation(headers: Headers) -> bool:
    """Say whether somebody followed a link: a whole new page, of which the other site sees nothing."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _same(given: str, secret: str) -> bool:
    return secrets.compare_digest(given.encode(), secret.encode())


def hosts_of(names: Iterable[str]) -> frozenset[str]:
    """Return names as the guard compares them: without port and brackets, in lower case."""
    found = set()
    for name in names:
        match = _HOST.fullmatch(name.strip().lower())
        if match is None:
            raise CockpitError(
                f"{name!r} is not a host: take a name such as node7 or an address such as 10.0.0.7."
            )
        found.add(match[1] or match[2])
    return frozenset(found)
