"""The built front end: a folder of files that Vite wrote, served by name and never by path."""

from __future__ import annotations

import re
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from cockpit.web.notice import notice

DIST = Path(__file__).parent / "dist"

_HASHED = re.compile(r"assets/.+-[\w-]{8,}\.\w+")
"""Names that change with the content, so that a browser may keep the file for ever."""

_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".txt": "text/plain",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
"""Our own list: the machine's may call JavaScript plain text, which browsers then refuse to run."""


class Front:
    """Answers for the files of the front end."""

    def __init__(self, folder: Path = DIST):
        self._folder = folder

    def index(self, _: Request) -> Response:
        """Return the page, or how to build it."""
        if "index.html" in self._files():
            return self._file("index.html")
        text = "The page itself has not been built yet. In a checkout, `make web` does it; then reload."
        more = "Packages come with it built. The data are served all the same, under `api/runs`."
        return Response(notice("Cockpit is running", text, more), 503, media_type="text/html")

    def asset(self, request: Request) -> Response:
        """Return a file by its name."""
        return self._file(request.path_params["name"])

    def _files(self) -> dict[str, Path]:
        """Return all files by name. There are few, and a build may replace them at any time."""
        found = (path for path in self._folder.rglob("*") if path.is_file() and not path.is_symlink())
        return {path.relative_to(self._folder).as_posix(): path for path in found}

    def _file(self, name: str) -> Response:
        path = self._files().get(name)
        if path is None or path.suffix not in _TYPES:
            raise HTTPException(404, "there is no such file")
        keep = {"Cache-Control": "private, max-age=31536000, immutable"} if _HASHED.fullmatch(name) else {}
        return FileResponse(path, headers=keep, media_type=_TYPES[path.suffix])
