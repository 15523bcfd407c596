"""The panel: what it says, and that it keeps within its window."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cockpit.render.panel import ASCII, cells, clean, clock, cut, panel, sparkline, summary
from cockpit.render.status import Row, Status, thinned
from cockpit.store.record import Event

WORDS = st.text(max_size=60)


def row(
    title: str = "Alpha", reading: str = "+0.31", heading: str = "Step size", missing: bool = False
) -> Row:
    note = "Not recorded." if missing else "Are we crossing the valley?"
    return Row(title.lower(), heading, title, reading, np.arange(50.0), note, missing)


ROWS = tuple(row(f"Title {k}", f"{k}.5", f"Heading {k // 3}", missing=k == 4) for k in range(11))
STATUS = Status(
    "fmnist", "running", 294, 300, 61.0, 4.8, 0.412, 0.125, ROWS, (Event(7, "gap", "hess_trace: failed"),)
)


def plain(lines: list[list[tuple[str, str]]]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_panel_says_where_the_run_is() -> None:
    lines = plain(panel(STATUS, 100, 60, foot="q ends"))
    text = "\n".join(lines)
    for words in ("fmnist  ● running", "step 294/300", "4.8 steps/s", "1:01", "loss 0.412", "watching 12 %"):
        assert words in text
    assert "0:01 left" in text
    assert [line for line in lines if line.startswith("Heading")] == [f"Heading {k}" for k in range(4)]
    assert re.search(r"Title 0 +0\.5  ▁.*█  Are we crossing the valley\?", text)
    assert re.search(r"Title 4 .*Not recorded\.", text)
    assert "step 7 gap: hess_trace: failed" in text
    assert lines[-1] == "q ends"


@given(
    width=st.integers(20, 200),
    height=st.integers(4, 60),
    title=WORDS,
    reading=WORDS,
    name=WORDS,
    count=st.integers(0, 14),
)
def test_panel_keeps_within_the_window(
    width: int, height: int, title: str, reading: str, name: str, count: int
) -> None:
    rows = tuple(row(title, reading, f"{title}{k // 3}", k == 2) for k in range(count))
    now = replace(STATUS, name=name, rows=rows, events=(Event(10**9, title, name, scope=title),))
    lines = plain(panel(now, width, height))
    assert len(lines) <= height
    assert max(map(cells, lines)) <= width
    assert all(line.isprintable() for line in lines)


def test_little_room_leaves_out_what_matters_least() -> None:
    def has(height: int) -> tuple[bool, ...]:
        lines = plain(panel(STATUS, 100, height))
        return "" in lines, "Heading 0" in lines, "events" in lines, " Title 10" in "\n".join(lines)

    assert has(40) == (True, True, True, True)
    assert has(20) == (False, True, True, True)
    assert has(17) == (False, False, True, True)
    assert has(14) == (False, False, False, True)
    assert has(9) == (False, False, False, False)
    assert "more instruments" in plain(panel(STATUS, 100, 9))[-1]
    assert "Title 0" in "\n".join(plain(panel(STATUS, 30, 14)))


def test_one_line() -> None:
    line = summary(STATUS, 200)
    assert line.startswith(
        "fmnist running, step 294/300, 4.8 steps/s, 1:01, loss 0.412, watching 12 %, Title 0 0.5"
    )
    assert len(summary(STATUS, 60)) <= 60


def test_texts_of_a_run_command_no_terminal() -> None:
    assert clean("a\x1b]0;title\x07b\u202ec\nd") == "a?]0;title?b?c d"
    lines = panel(replace(STATUS, name="\x1b[2Jx", rows=(row("\x1b[31mred"),)), 80, 30)
    assert "\x1b" not in "".join(plain(lines))
    assert "\x1b" not in summary(replace(STATUS, name="\x1b[2Jx"), 80)


def test_cut_and_cells() -> None:
    assert [cells(text) for text in ("abc", "日本", "e\u0301")] == [3, 4, 1]
    assert [cut("abcdef", width) for width in (6, 4, 0)] == ["abcdef", "abc…", ""]
    assert cells(cut("日本語日本語", 6)) <= 6


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 61, 3600, 36_061)] == ["0:00", "1:00", "1:01", "1:00:00", "10:01:01"]


def test_sparkline_shows_the_course() -> None:
    assert sparkline(np.array([0.0, 7.0]), 10) == "▁█"
    assert sparkline(np.array([0.1, 0.1, 0.1]) * 3, 10) == "▁▁▁"
    assert sparkline(np.array([0.0, np.nan, 7.0]), 10) == "▁ █"
    assert sparkline(np.full(4, np.nan), 2) == "  "
    assert sparkline(np.empty(0), 10) == ""
    assert sparkline(np.arange(1000.0), 8, ASCII) == ASCII
    assert thinned(np.array([1.0, np.nan, 3.0, 3.0]), 2).tolist() == [0.0, 1.0]
