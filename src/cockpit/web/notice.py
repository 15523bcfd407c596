"""Small pages that need no front end: what is wrong, and what to do."""

from __future__ import annotations

from html import escape

_STYLE = (
    "body{font:17px/1.5 system-ui,sans-serif;max-width:34em;margin:15vh auto;padding:0 1.5em;"
    "color:#1d2733;background:#f6f7f9}h1{font-size:1.3em}code{background:#e4e8ee;padding:.1em .35em;"
    "border-radius:.3em}@media(prefers-color-scheme:dark){body{color:#dce3ec;background:#12171e}"
    "code{background:#26303c}}"
)


def notice(title: str, *paragraphs: str, go_to: str | None = None) -> bytes:
    """Return a page of plain text; what stands between backquotes is set as code.

    Args:
        title: the heading.
        paragraphs: what to say.
        go_to: a relative address that the browser goes to at once.
    """
    refresh = "" if go_to is None else f'<meta http-equiv="refresh" content="0; url={escape(go_to)}">'
    body = "".join(f"<p>{_with_code(text)}</p>" for text in paragraphs)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{refresh}'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    ).encode()


def _with_code(text: str) -> str:
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if k % 2 else part for k, part in enumerate(parts))
