"""Compile the C kernels once for a machine, and load them; without a compiler, say why and carry on.

The library lies in ``$COCKPIT_CACHE``, else in ``cockpit/native`` of the user's cache folder (``$XDG_CACHE_HOME``),
else in a folder of the user's own among the temporary files. Its name is a digest of the sources, the flags, the
compiler's version and the processor: ``-march=native`` code must not be found by another machine that mounts the same
home folder. It is built beside its final name and renamed, so that processes that build it at the same time do not
disturb each other. ``COCKPIT_NATIVE=0`` turns all of this off.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

FLAGS = (
    *("-std=c99", "-O3", "-march=native", "-fPIC", "-shared"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)
SOURCES = (
    *("histogram.c", "flat.h", "outer.h", "outer_by_column.h", "fused.h", "counted.h"),
    *("vectors.c", "vectors.h", "images.c", "images.h", "seen.c", "for_types.h"),
    *("batch_norm.c", "batch_norm.h", "gelu.c", "gelu.h", "normed.c", "normed.h"),
    *("softmax.c", "softmax.h"),
)
PATIENCE = 60
"""Seconds a compiler may take."""

_HERE = Path(__file__).parent


class UnavailableError(Exception):
    """There is no library, for the reason given."""


def load() -> ctypes.CDLL:
    """Return the library, compiled if this machine's is in none of the folders; else raise `UnavailableError`."""
    if os.environ.get("COCKPIT_NATIVE", "1").strip().lower() in ("0", "false", "off", "no"):
        raise UnavailableError("turned off by COCKPIT_NATIVE")
    compiler = shlex.split(os.environ.get("CC") or "cc") or ["cc"]
    version = _run([*compiler, "--version"])
    name = f"kernels-{_digest(version, *compiler)}.so"
    reasons = []
    for folder in _folders():
        try:
            return ctypes.CDLL(str(_built(compiler, folder, name)))
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
    raise UnavailableError("no usable cache folder: " + "; ".join(reasons))


def _built(compiler: list[str], folder: Path, name: str) -> Path:
    library = folder / name
    if not library.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as scratch:
            fresh = Path(scratch) / name
            files = [str(_HERE / source) for source in SOURCES if source.endswith(".c")]
            _run([*compiler, *FLAGS, "-o", str(fresh), *files, "-lm"])
            ctypes.CDLL(str(fresh))  # what cannot be loaded must not be left for the next process
            fresh.replace(library)
    return library


def _folders() -> Iterator[Path]:
    if named := os.environ.get("COCKPIT_CACHE"):
        yield Path(named)
        return
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(home):
        yield Path(home) / "cockpit" / "native"
    user = getattr(os, "getuid", int)()
    shared = Path(tempfile.gettempdir()) / f"cockpit-native-{user}"
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        found = shared.lstat()
    except OSError:
        return
    if (
        found.st_uid == user and not found.st_mode & 0o022
    ):  # code is loaded from there: nobody else may write it
        yield shared


def _digest(*more: str) -> str:
    digest = hashlib.sha256()
    for source in SOURCES:
        digest.update((_HERE / source).read_bytes())
    for text in (*FLAGS, *more, platform.machine(), platform.system(), _processor()):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:20]


def _processor() -> str:
    """Return what tells processors apart that -march=native compiles differently for."""
    kinds = (
        "vendor_id",
        "cpu family",
        "model",
        "stepping",
        "flags",
        "CPU implementer",
        "CPU part",
        "Features",
        "isa",
    )
    try:
        first = Path("/proc/cpuinfo").read_text().strip().split("\n\n")[0]
    except OSError:
        return platform.processor() + platform.node()
    return "\n".join(line for line in first.splitlines() if line.split(":")[0].strip().startswith(kinds))


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"{command[0]}: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise UnavailableError(f"{command[0]}: {next((s for s in said if 'error' in s), said[0])}")
    return done.stdout
