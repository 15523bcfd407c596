"""The routes of the page: runs, charts, layers and ticks as JSON, and the built front end. All of them only read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from cockpit.instruments.chart import View
from cockpit.instruments.layers import layer_tree
from cockpit.instruments.overview import run_card, run_page
from cockpit.instruments.shelf import all_instruments
from cockpit.render.page import chart_json, json_text
from cockpit.store.cached import CachedRun
from cockpit.web.front import DIST, Front
from cockpit.web.library import Entry, Library, reason
from cockpit.web.ticks import Ticks

POINTS = (10, 10_000)
"""How many points of a series may be asked for, at least and at most."""


def make_app(library: Library, ticks: Ticks, dist: Path = DIST) -> Starlette:
    """Return the application. It trusts whoever asks: serve it behind a `Guard` only."""
    api, front = Api(library, ticks), Front(dist)
    routes = [
        Route("/", front.index),
        Route("/api/runs", api.runs),
        Route("/api/runs/{id}", api.run),
        Route("/api/runs/{id}/charts/{instrument}", api.chart),
        Route("/api/runs/{id}/layers", api.layers),
        Route("/api/sequences", api.sequences),
        Route("/api/ticks", api.ticks),
        Route("/{name:path}", front.asset),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=1)],
        exception_handlers={HTTPException: _refused},
    )


class Api:
    """What can be asked about the runs of a library."""

    def __init__(self, library: Library, ticks: Ticks):
        self._library = library
        self._ticks = ticks
        self._cards: dict[str, tuple[object, dict[str, Any]]] = {}

    def runs(self, _: Request) -> Response:
        """Return a card for every run, the newest first."""
        cards = [self._card(entry) for entry in self._library.entries().values()]
        cards.sort(key=_started, reverse=True)
        return _json({"runs": cards})

    def run(self, request: Request) -> Response:
        """Return everything about a run but its numbers."""
        entry = self._entry(request)
        try:
            if entry.run is None:
                return _json(_broken(entry, entry.broken))
            return _json(run_page(entry.run, entry.id) | {"name": entry.name})
        except Exception as error:  # a damaged file: say so on its page
            return _json(_broken(entry, reason(error, entry.path)))

    def chart(self, request: Request) -> Response:
        """Return what an instrument shows of a run."""
        # the number before drawing: what comes meanwhile makes the page ask again
        run, sequence = self._run(request)
        instrument = all_instruments().get(request.path_params["instrument"])
        if instrument is None:
            raise HTTPException(404, "there is no such instrument")
        least, most = POINTS
        view = View(
            _whole(request, "step"),
            _whole(request, "first"),
            _whole(request, "last"),
            min(max(_whole(request, "points") or View.points, least), most),
            request.query_params.get("scope", ""),
        )
        key, state = (run.path, instrument.name, view), run.state
        known = self._library.memory.get(key)
        if known is not None and known[0] == state:
            return Response(known[1], media_type="application/json")
        chart = instrument.drawn(run, view, lambda error: reason(error, run.path))
        answer = _json({"sequence": sequence, "chart": chart_json(chart)})
        if not chart.missing:  # what failed may go well the next time
            self._library.memory.put(key, (state, answer.body), len(answer.body) + 500)
        return answer

    def layers(self, request: Request) -> Response:
        """Return the layers of a run, conspicuous ones first."""
        (run, sequence), step = self._run(request), _whole(request, "step")
        try:
            return _json({"sequence": sequence, "layers": layer_tree(run, step)})
        except Exception as error:  # a damaged file
            raise HTTPException(503, reason(error, run.path)) from error

    def sequences(self, _: Request) -> Response:
        """Return the sequence number of every run, for pages that cannot listen."""
        return _json({"runs": self._library.sequences()})

    async def ticks(self, request: Request) -> Response:
        """Return a stream of server-sent events."""
        kind, headers = "text/event-stream", {"X-Accel-Buffering": "no"}
        if request.method == "HEAD":  # a body that never ends would keep the answer from ending
            return Response(headers=headers, media_type=kind)
        if self._ticks.full:
            return Response(status_code=204)  # to which a browser does not come back
        return StreamingResponse(
            self._ticks.stream(request.headers.get("last-event-id", "")), headers=headers, media_type=kind
        )

    def _entry(self, request: Request) -> Entry:
        entry = self._library.entries().get(request.path_params["id"])
        if entry is None:
            raise HTTPException(404, "there is no such run")
        return entry

    def _run(self, request: Request) -> tuple[CachedRun, int]:
        """Return a run, and its sequence number as of now."""
        entry = self._entry(request)
        if entry.run is None:
            raise HTTPException(404, entry.broken)
        try:
            return entry.run, entry.run.sequence
        except Exception as error:  # deleted a moment ago, or damaged
            raise HTTPException(503, reason(error, entry.path)) from error

    def _card(self, entry: Entry) -> dict[str, Any]:
        try:
            if entry.run is None:
                return _broken_card(entry, entry.broken)
            state = (entry.run.sequence, entry.run.status)
            known = self._cards.get(entry.id)
            if known is None or known[0] != state:
                known = self._cards[entry.id] = (
                    state,
                    run_card(entry.run, entry.id) | {"name": entry.name, "broken": ""},
                )
            return known[1]
        except Exception as error:  # a damaged file: the other runs are shown
            return _broken_card(entry, reason(error, entry.path))


def _started(card: dict[str, Any]) -> float:
    """Return when a run began; a damaged file may say anything."""
    when = card["started"]
    return when if isinstance(when, int | float) else 0.0


def _broken_card(entry: Entry, why: str) -> dict[str, Any]:
    """Return the card of a run that cannot be read."""
    numbers = dict.fromkeys(("started", "ended", "last_step", "loss", "overhead"))
    words = dict.fromkeys(("config", "model", "optimizer", "device"), "")
    known = {"status": "unreadable", "steps": 0, "sequence": 0, "hyperparameters": {}, "broken": why}
    return {"id": entry.id, "name": entry.name} | numbers | words | known


def _broken(entry: Entry, why: str) -> dict[str, Any]:
    """Return the page of a run that cannot be read."""
    lists: dict[str, Any] = {
        key: [] for key in ("parameters", "quantities", "events", "findings", "instruments", "screens")
    }
    return _broken_card(entry, why) | lists | {"versions": {}}


def _whole(request: Request, name: str) -> int | None:
    """Return a parameter that is a whole number."""
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 2**63
    if not -(2**63) < number < 2**63:
        raise HTTPException(400, f"{name} must be a whole number")
    return number


def _json(value: object, status: int = 200) -> Response:
    return Response(json_text(value), status, media_type="application/json")


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)
