"""What must be known about a measurement beside its numbers: the machine, the versions, the day, the revision."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.environments import ROOT
from cockpit.version import __version__


def machine(device: str) -> dict[str, object]:
    """Describe where and with what something is measured."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "device": device_name(device),
        "processor": _processor(),
        "cores": cores,
        "threads": 1,
        "clock": "synchronised wall time" if device.startswith("cuda") else "processor time of one thread",
        "memory": _memory(device),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device.startswith("cuda") else None,
        "cockpit": __version__,
        "revision": _revision(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def device_name(device: str) -> str:
    """Return what is measured: the name of a GPU, or CPU."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def file_name(device: str) -> str:
    """Return a name for the file of results: `cpu`, `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", device_name(device).lower()).strip("-")


def _memory(device: str) -> str:
    if device.startswith("cuda"):
        return "torch.cuda.max_memory_allocated over a step"
    return "largest running sum of the allocations of tensors over a step, from the profiler's memory events"


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    found = (
        re.search(r"^model name\s*: (.*)$", information.read_text(), re.M) if information.exists() else None
    )
    return found.group(1) if found else platform.processor()


def _revision() -> str:
    """Return the commit, with a plus sign if files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short", "HEAD")
    return commit + ("+" if commit and git("status", "--porcelain", "--", "src") else "") or "unknown"
