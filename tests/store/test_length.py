"""How long a run is does not depend on where its numbers lie."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.store.database import open_to_write
from cockpit.store.record import Histogram, Record
from cockpit.store.run import Run
from cockpit.store.tables import Tables

RECORDS = st.lists(
    st.builds(
        Record, st.integers(0, 9), st.sampled_from(["loss", "late"]), st.just(1.0), st.sampled_from(["", "w"])
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(RECORDS, min_size=1, max_size=4), compacted=st.lists(st.booleans(), min_size=4, max_size=4)
)
def test_compaction_changes_nothing(
    parts: list[list[Record]], compacted: list[bool], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where steps are written twice, in any order, and series have steps of their own."""
    folder = tmp_path_factory.mktemp("run")
    steps: dict[tuple[str, str], set[int]] = {}
    with closing(open_to_write(folder)) as db:
        tables = Tables(db)
        for records, also in zip(parts, compacted, strict=False):
            db.execute("BEGIN IMMEDIATE")
            tables.put(records)
            db.execute("COMMIT")
            for record in records:
                steps.setdefault((record.name, record.scope), set()).add(record.step)
            expected = max(map(len, steps.values())), max(map(max, steps.values()))
            assert Run(folder).steps() == expected
            if also:
                db.execute("BEGIN IMMEDIATE")
                tables.compact()
                db.execute("COMMIT")
                assert Run(folder).steps() == expected


def test_arrays_count_too(tmp_path: Path) -> None:
    counts = Histogram(np.arange(3), np.arange(4.0))
    with closing(open_to_write(tmp_path)) as db:
        assert Run(tmp_path).steps() == (0, None)
        db.execute("BEGIN IMMEDIATE")
        Tables(db).put([Record(step, "hist", counts) for step in (3, 3, 5)])
        db.execute("COMMIT")
        assert Run(tmp_path).steps() == (2, 5)
