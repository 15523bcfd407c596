"""The page of the docs that explains every instrument, made of their docstrings.

python -m cockpit.instruments.handbook > docs/instruments.md
"""

from __future__ import annotations

import textwrap

from cockpit.instruments.instrument import Instrument
from cockpit.instruments.screens import SCREENS
from cockpit.instruments.shelf import all_instruments

INTRODUCTION = """\
# Instruments

Each instrument answers one question about a training and is drawn alike on the page, in figures, in a notebook and in
a report. It reads [quantities](quantities.md) of a run and computes nothing costly, so it can be pointed at any run,
old or growing. Those marked *by layer* can be asked for a single parameter, many of them for a whole layer; those
marked *at a moment* show one step at a time.

This page is made of the instruments' own docstrings (`python -m cockpit.instruments.handbook`), which are also the help
texts on the page.
"""


def handbook() -> str:
    """Return the page, as Markdown: the instruments of each screen in their order, then the others."""
    shelf = all_instruments()
    parts, done = [INTRODUCTION], set()
    for screen in SCREENS:
        parts.append(f"## {screen.title}\n")
        for row in screen.rows:
            for column in row:
                for name in column.instruments:
                    parts.append(_section(shelf[name]))
                    done.add(name)
    others = [
        one for name, one in shelf.items() if name not in done and type(one).__module__.startswith("cockpit.")
    ]
    if others:
        parts += ["## On no screen\n", *map(_section, others)]
    return "\n".join(parts)


def _section(instrument: Instrument) -> str:
    reads = ", ".join(f"`{name}`" for name in instrument.reads)
    marks = [
        word
        for word, there in (("at a moment", instrument.moment), ("by layer", instrument.layered))
        if there
    ]
    return "\n".join(
        [
            f"### `{instrument.name}`: {instrument.title}\n",
            _wrapped(f"**{instrument.question}** {instrument.summary}") + "\n",
            f"Reads {reads}." + (f" *{', '.join(marks).capitalize()}.*" if marks else "") + "\n",
            *(_wrapped(paragraph) + "\n" for paragraph in instrument.reading.split("\n\n")),
        ]
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    print(handbook(), end="")
