"""Small pages of text."""

from __future__ import annotations

from cockpit.web.notice import notice


def test_text_stays_text() -> None:
    page = notice("<b>a</b>", "run `<script>` & wait", go_to='./?x="><script>').decode()
    assert "<script>" not in page
    assert "<b>a</b>" not in page
    assert "<code>&lt;script&gt;</code> &amp; wait" in page
    assert 'content="0; url=./?x=&quot;&gt;&lt;script&gt;"' in page


def test_nothing_is_fetched() -> None:
    page = notice("Title", "Text").decode()
    assert "http-equiv" not in page
    assert 'href="data:,"' in page  # or the browser asks for an icon
    assert "src=" not in page
