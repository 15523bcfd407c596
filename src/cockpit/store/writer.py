"""The writer of a run: the training thread hands records over and goes on, a second thread writes them.

What is promised: `Writer.write` neither waits for the disk nor raises; a record counted in
`Writer.acknowledged` survives ``kill -9``; what is not yet acknowledged is at most a second old, as long as
the disk works. While it does not, records wait in a bounded buffer; the first failure gives one warning.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cockpit.store.codec import pack_json
from cockpit.store.database import refuse_foreign
from cockpit.store.inbox import Given, Inbox, Meta, Noted, Rewind
from cockpit.store.record import Event
from cockpit.store.worker import Trouble, work


class Writer:
    """Writes one run into ``folder/run.db``; an existing run is continued.

    Args:
        folder: the run's folder, made if it does not exist.
        meta: what is known about the run as a whole; see `set_meta`.

    Raises:
        CockpitError: ``run.db`` is there, but not a run of ours or of a newer version.
    """

    def __init__(self, folder: Path, meta: Mapping[str, Any] | None = None):
        self.folder = Path(folder).absolute()  # training may change the working directory
        refuse_foreign(self.folder)
        self._process = os.getpid()
        self._inbox = Inbox()
        self._trouble = Trouble()
        self._warned = False
        self._thread = threading.Thread(
            target=work, args=(self._inbox, self._trouble, self.folder), name="cockpit-writer", daemon=True
        )
        self._thread.start()
        atexit.register(self._at_exit)
        self.set_meta(meta or {})
        self.flush(1.0)  # so that the file is there, and first troubles are known, when training begins

    @property
    def acknowledged(self) -> int:
        """How many records are committed to the file."""
        return self._inbox.acknowledged

    def write(self, records: Iterable[Given]) -> None:
        """Hand over records and columns; of several with the same step, name and scope the last one counts."""
        if self._forked():
            return
        try:
            self._inbox.put(tuple(records))
        except Exception as error:  # whatever the records were: training goes on
            self._trouble.note(f"records that cannot be read: {error!r}")
        self._warn_once()

    def event(self, event: Event) -> None:
        """Hand over an event."""
        if self._forked():
            return
        clean = Event(int(event.step), _text(event.kind), _text(event.text), _text(event.scope))
        self._inbox.put(Noted(clean, pack_json(dict(event.data))))
        self._warn_once()

    def set_meta(self, values: Mapping[str, Any]) -> None:
        """Set keys of the run's meta data; the others keep theirs. What JSON cannot say becomes text."""
        if self._forked():
            return
        self._inbox.put(Meta({_text(key): pack_json(value) for key, value in values.items()}))
        self._warn_once()

    def rewind(self, step: int) -> None:
        """Continue from a checkpoint at ``step``: everything at or beyond it is deleted."""
        if self._forked():
            return
        self._inbox.put(Rewind(int(step)))
        self._warn_once()

    def when_quiet(self, call: Callable[[], None]) -> None:
        """Have something called, in the writing thread, whenever nothing was handed over for a while."""
        self._inbox.quiet = call

    def flush(self, timeout: float | None = 10.0) -> bool:
        """Wait until everything handed over so far is committed; return whether that was done in time."""
        if self._forked():
            return False
        done = self._inbox.flush(timeout)
        self._warn_once()
        return done

    def close(self, timeout: float | None = 30.0) -> None:
        """Write what is left, mark the run as ended and fold everything into one file."""
        if self._forked():
            return
        self._inbox.close()
        self._thread.join(timeout)
        atexit.unregister(self._at_exit)
        self._warn_once()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _forked(self) -> bool:
        """Say whether this is a forked child: it has no writing thread, the file is its parent's."""
        return os.getpid() != self._process

    def _at_exit(self) -> None:
        try:
            self.close()
        except RuntimeWarning:  # warnings are errors here; the process ends anyway
            return

    def _warn_once(self) -> None:
        if self._trouble.text and not self._warned:
            self._warned = True
            warnings.warn(
                f"Cockpit has trouble with the run in {self.folder}: {self._trouble.text}. Training goes on; "
                "what cannot be written waits in a bounded buffer until it can. This is said once.",
                RuntimeWarning,
                stacklevel=3,
            )


def _text(value: object) -> str:
    """Return text that can be stored: lone surrogates have no UTF-8 form."""
    return str(value).encode("utf-8", "replace").decode()
