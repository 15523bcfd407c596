"""The front end in one piece: its page with script, styles and data inside, which opens without server and network."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from cockpit.errors import CockpitError
from cockpit.render.page import json_text

_SCRIPT = re.compile(r'<script\b[^>]*\bsrc="([^"]+)"[^>]*>\s*</script>')
_LINK = re.compile(r'<link\b[^>]*?\bhref="([^"]+)"[^>]*>')


def front_end() -> Path:
    """Return the folder of the built front end."""
    return Path(str(files("cockpit"))) / "web" / "dist"


def single_page(
    data: dict[str, Any], dist: Path | None = None, compact: bool = False, title: str = ""
) -> str:
    """Return one HTML page with everything inside.

    A policy in the page forbids it to load or send anything and to run any script but its own, whatever stands in the
    data.

    Args:
        data: what the front end shows instead of asking a server.
        dist: the built front end; the one of this package if None.
        compact: without rail and large header, for a notebook's cell.
        title: of the page.
    """
    dist = dist or front_end()
    index = dist / "index.html"
    if not index.is_file():
        raise CockpitError(
            f"the front end is not built: {index} is missing. It comes with installed packages; in a checkout, "
            "build it with: make web"
        )
    page, scripts = index.read_text(encoding="utf-8"), []

    def script(found: re.Match[str]) -> str:
        # "<!--" and "</script" would end the script, or hide its end; the escapes mean the same in all its strings
        code = _asset(dist, found[1]).decode()
        code = re.sub(r"</(script)", r"<\\/\1", code, flags=re.IGNORECASE).replace("<!--", r"\x3C!--")
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        scripts.append(f"'sha256-{digest}'")
        return f'<script type="module">{code}</script>'

    def link(found: re.Match[str]) -> str:
        if 'rel="stylesheet"' in found[0]:
            styles = _asset(dist, found[1]).decode().replace("</", r"<\/")
            return f"<style>{styles}</style>"
        if 'rel="icon"' not in found[0]:
            return ""  # hints to load early what is here already
        return (
            found[0]
            if found[1].startswith("data:")
            else found[0].replace(found[1], _data_url(dist, found[1]))
        )

    # the links first: the script's text is nothing to search in
    page = _SCRIPT.sub(script, _LINK.sub(link, page))
    policy = (
        f"default-src 'none'; script-src {' '.join(scripts)}; "
        "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    block = f'<script type="application/json" id="cockpit-report">{embedded(data)}</script>'
    if compact:
        page = page.replace("<html", "<html data-compact", 1)
    if title:
        page = re.sub(r"<title>.*?</title>", lambda _: f"<title>{_text(title)}</title>", page, count=1)
    head = f'<head><meta http-equiv="Content-Security-Policy" content="{policy}">'
    return page.replace("<head>", head, 1).replace("</head>", f"{block}</head>", 1)


def embedded(data: Any) -> str:
    """Return data as JSON to stand inside of a page: no "<" begins a tag."""
    return json_text(data).replace("<", "\\u003c")


def _asset(dist: Path, address: str) -> bytes:
    return (dist / address.removeprefix("./").removeprefix("/")).read_bytes()


def _data_url(dist: Path, address: str) -> str:
    kind = mimetypes.guess_type(address)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(_asset(dist, address)).decode()}"


def _text(title: str) -> str:
    return title.replace("&", "&amp;").replace("<", "&lt;")
