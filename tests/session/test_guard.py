"""Guards: what fails inside is told, what ends the program passes."""

from __future__ import annotations

import pytest

from cockpit.session.guard import Guard


def test_what_fails_is_told_and_does_not_get_out() -> None:
    told: list[tuple[str, Exception]] = []
    failure = ValueError("oh")
    with Guard(lambda doing, what: told.append((doing, what)), "trying"):
        raise failure
    assert told == [("trying", failure)]


def test_nothing_is_told_where_nothing_fails() -> None:
    told: list[object] = []
    with Guard(lambda *what: told.append(what), "trying"):
        pass
    assert told == []


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_the_end_of_the_program_passes(end: type[BaseException]) -> None:
    told: list[object] = []
    with pytest.raises(end), Guard(lambda *what: told.append(what), "trying"):
        raise end
    assert told == []
