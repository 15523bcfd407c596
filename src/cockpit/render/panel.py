"""The panel of a run as lines of styled text: laid out for a width and a height, written by the terminal."""

from __future__ import annotations

import unicodedata

from cockpit.instruments.chart import Floats
from cockpit.render.status import Row, Status, thinned
from cockpit.store.record import Event

Span = tuple[str, str]
"""A text and its style, one of `STYLES`."""
Spans = list[Span]
"""A line."""

STYLES = {
    "": "",
    "bold": "1",
    "dim": "2",
    "bad": "31",
    "good": "32",
    "value": "1",
    "first": "34",
    "second": "33",
    "third": "32",
    "neutral": "36",
}
"""The styles as terminals know them; all of the sixteen colours, which every one has and users choose."""
HEADINGS = ("first", "second", "third", "neutral")
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", "_.-~=+*#"
HARMLESS = ("resumed", "rewind", "log")
"""Events that need nobody's attention."""
TITLE, CURVE, NOTE = 28, 32, 24
"""Cells: the most for a title and for a curve, the fewest for a note worth showing."""


def panel(status: Status, width: int, height: int, blocks: str = BLOCKS, foot: str = "") -> list[Spans]:
    """Return at most ``height`` lines, none longer than ``width`` cells; what matters least is left out first."""
    head = _head(status, width, blocks)
    events = (
        [[("events", "bold")], *(_event(event, width) for event in status.events)] if status.events else []
    )
    last: list[Spans] = [[(cut(foot, width), "dim")]] if foot else []
    for airy, headings, kept in (
        (True, True, events),
        (False, True, events),
        (False, False, events),
        (False, False, []),
    ):
        gap: list[Spans] = [[]] if airy else []
        body = _body(status.rows, width, blocks, headings, airy)
        lines = [*head, *gap, *body, *gap * bool(kept), *kept, *gap * bool(last), *last]
        if len(lines) <= height:
            return lines
    room = max(0, height - len(head) - 1)
    more = f"{len(body) - room} more instruments: make the window higher" if room < len(body) else ""
    return [*head, *body[:room], [(cut(more, width), "dim")]][:height]


def summary(status: Status, width: int) -> str:
    """Return the same in one line of plain text: as much as fits."""
    parts = [f"{clean(status.name)} {status.life}", *facts(status)]
    parts += [f"{clean(row.title)} {clean(row.reading)}" for row in status.rows if row.reading]
    line = parts[0]
    for part in parts[1:]:
        if cells(line) + cells(part) + 2 <= width:
            line += f", {part}"
    return cut(line, width)


def sparkline(heights: Floats, places: int, blocks: str = BLOCKS) -> str:
    """Draw heights as a line of blocks; a gap is a blank."""
    top = len(blocks) - 1
    return "".join(" " if h != h else blocks[round(h * top)] for h in thinned(heights, places).tolist())


def facts(status: Status) -> list[str]:
    """Return what is known, in words."""
    of = f"/{status.total:,}" if status.total else ""
    known = (
        (status.step, "step {:,}" + of),
        (status.rate, "{:.3g} steps/s"),
        (None if status.seconds is None else clock(status.seconds), "{}"),
        (status.loss, "loss {:.4g}"),
        (None if status.overhead is None else _percent(status.overhead), "watching {} %"),
    )
    return [form.format(value) for value, form in known if value is not None]


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.2g}"


def clock(seconds: float) -> str:
    """Write hours, minutes and seconds, the hours only if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def percent(share: float) -> str:
    """Write a share in percent, or a dash."""
    return f"{100 * share:.1f} %" if share == share else "-"


def cells(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def cut(text: str, width: int) -> str:
    """Return the beginning of a text that fits; dots stand for the rest."""
    if cells(text) <= width:
        return text
    while text and cells(text) > width - 1:
        text = text[:-1]
    return text.rstrip() + "…" if width > 0 else ""


def clean(text: str) -> str:
    """Return a text from a run without anything that moves the cursor or else commands a terminal."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


def _head(status: Status, width: int, blocks: str) -> list[Spans]:
    tone = {"running": "good", "finished": "dim"}.get(status.life, "bad")
    name = cut(clean(status.name), max(8, width - len(status.life) - 4))
    dot = "●" if blocks == BLOCKS else "*"
    lines: list[Spans] = [[(name, "bold"), (f"  {dot} {status.life}", tone)]]
    if status.total and status.step is not None:
        lines.append(_progress(status, width, blocks))
    line = ""
    for fact in facts(status):
        if line and cells(line) + cells(fact) + 3 > width:
            lines.append([(line, "")])
            line = ""
        line += ("   " if line else "") + cut(fact, width)
    return [*lines, [(line, "")]] if line else lines


def _progress(status: Status, width: int, blocks: str) -> Spans:
    assert status.total
    share = min(1.0, (status.step or 0) / status.total)
    left = f"{clock(status.seconds * (1 / share - 1))} left" if status.seconds and 0 < share < 1 else ""
    room = max(4, min(TITLE + CURVE, width - 13))
    full = round(room * share)
    return [
        (blocks[-1] * full, "neutral"),
        (blocks[0] * (room - full), "dim"),
        (f"  {left}"[: width - room], ""),
    ]


def _body(rows: tuple[Row, ...], width: int, blocks: str, headings: bool, airy: bool) -> list[Spans]:
    titles = max((min(TITLE, cells(clean(row.title))) for row in rows), default=0)
    titles = min(titles, max(10, width // 3))
    values = min(max((cells(clean(row.reading)) for row in rows), default=0), max(6, width // 3))
    left = width - titles - values - 5
    curve = min(CURVE, left if left < NOTE + 18 else 2 * left // 5)
    lines: list[Spans] = []
    order = list(dict.fromkeys(row.heading for row in rows))
    for row, before in zip(rows, [None, *rows], strict=False):
        tone = HEADINGS[min(order.index(row.heading), len(HEADINGS) - 1)]
        if headings and (before is None or before.heading != row.heading):
            lines += [[]] if airy and before is not None else []
            lines.append([(cut(clean(row.heading), width), tone)])
        lines.append(_line(row, width, (titles, values, curve), blocks, tone))
    return lines


def _line(row: Row, width: int, columns: tuple[int, int, int], blocks: str, tone: str) -> Spans:
    titles, values, curve = columns
    title, value = cut(clean(row.title), titles), cut(clean(row.reading) or "-", values)
    line: Spans = [(f" {title}{' ' * (titles - cells(title))}  ", "dim" if row.missing else "")]
    line.append((f"{' ' * (values - cells(value))}{value}  ", "dim" if row.missing else "value"))
    if row.missing:
        line.append((cut(clean(row.note), width - titles - values - 5), "dim"))
    elif curve >= 4:
        line.append((sparkline(row.course, curve, blocks).ljust(curve), tone))
        room = width - titles - values - curve - 7
        if room >= NOTE:
            line.append((f"  {cut(clean(row.note), room)}", "dim"))
    return line


def _event(event: Event, width: int) -> Spans:
    place = f" {clean(event.scope)}" if event.scope else ""
    text = cut(f" {clean(event.kind)}{place}: {clean(event.text)}", width - len(f" step {event.step:,}"))
    return [(f" step {event.step:,}", ""), (text, "dim" if event.kind in HARMLESS else "bad")]
