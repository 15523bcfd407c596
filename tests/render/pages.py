"""Pages read as a browser reads them, and a front end to make them of."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """A page as a browser reads it: its elements, and the text in scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self.texts.append(("", ""))

    def handle_data(self, data: str) -> None:
        tag, text = self.texts.pop() if self.texts else ("", "")
        self.texts.append((tag, text + data))

    def scripts(self) -> list[tuple[dict[str, str | None], str]]:
        """Return attributes and text of every script."""
        attributes = [found for tag, found in self.elements if tag == "script"]
        return list(zip(attributes, [text for tag, text in self.texts if tag == "script"], strict=True))

    def data(self) -> object:
        ((_, text),) = [(one, text) for one, text in self.scripts() if one.get("id") == "cockpit-report"]
        return json.loads(text)

    def addresses(self) -> list[str]:
        """Return everything that a browser would load."""
        names = ("src", "href", "srcset", "action", "data", "poster")
        return [value for _, found in self.elements for name in names if (value := found.get(name))]


def built(folder: Path) -> Path:
    """Write a front end as Vite builds it, with texts that would end a script too early; return its folder."""
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(
        '<!doctype html>\n<html lang="en">\n  <head>\n    <meta charset="utf-8" />\n    <title>Cockpit</title>\n'
        '    <link rel="icon" href="./assets/icon-1.svg" type="image/svg+xml" />\n'
        '    <link rel="modulepreload" crossorigin href="./assets/other.js">\n'
        '    <script type="module" crossorigin src="./assets/index-1.js"></script>\n'
        '    <link rel="stylesheet" crossorigin href="./assets/index-1.css">\n'
        '  </head>\n  <body><div id="app"></div></body>\n</html>\n'
    )
    (folder / "assets" / "index-1.js").write_text(
        r'const a="</script><!--",b=/\\1<\/SCRIPT>/,c="<script>";document.title=a+b+c+"é";'
    )
    (folder / "assets" / "index-1.css").write_text("a::after{content:'</style><b>'}")
    (folder / "assets" / "icon-1.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    return folder
