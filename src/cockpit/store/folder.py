"""Where a run lives: a name becomes a dated folder of its own, a path is taken as it is."""

from __future__ import annotations

import os
import re
from datetime import datetime
from itertools import count
from pathlib import Path

LOGS = "cockpit_logs"
"""The folder for named runs, in the working directory; the variable ``COCKPIT_LOGS`` replaces it."""


def logs_folder() -> Path:
    """Return the folder in which named runs are kept."""
    return Path(os.environ.get("COCKPIT_LOGS") or LOGS)


def run_folder(run: str | os.PathLike[str] | None, now: float) -> Path:
    """Return the folder of a run; a folder for a name is new, and made at once so that no one else takes it.

    A name (no path separator, no existing folder) becomes ``cockpit_logs/<YYYYmmdd-HHMMSS>-<name>/``, with
    ``-2``, ``-3``, … appended where that exists; ``now`` is Unix time. A path is used as it is, and so
    continues the run in it.
    """
    if run is not None and not _is_name(run):
        return Path(run).expanduser()
    # characters that some file systems refuse, and lengths that they cut
    name = re.sub(r'[<>:"|?*\x00-\x1f\x7f]', "-", str(run or "run"))[:100].rstrip(". ") or "run"
    logs, time = logs_folder(), datetime.fromtimestamp(now)
    for number in count(1):
        folder = logs / f"{time:%Y%m%d-%H%M%S}-{name}{f'-{number}' if number > 1 else ''}"
        try:
            _make_logs(logs)
            folder.mkdir()
        except FileExistsError:
            if folder.exists():
                continue
            return folder  # the logs folder itself is a file; the writer will say that it cannot write
        except OSError:
            return folder  # read-only, for example; the writer will say that it cannot write
        return folder
    raise AssertionError("unreachable")


def _is_name(run: str | os.PathLike[str]) -> bool:
    separators = {os.sep, os.altsep or os.sep}
    return isinstance(run, str) and not separators & set(run) and not os.path.isdir(run)


def _make_logs(logs: Path) -> None:
    """Make the folder for named runs, and keep it out of version control when it is new."""
    if not logs.exists():
        logs.mkdir(parents=True, exist_ok=True)
        (logs / ".gitignore").write_text("*\n", encoding="utf-8")
