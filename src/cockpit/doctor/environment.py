"""The environment: interpreter, torch, processors, packages that are in the way or optional."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

import cockpit
from cockpit.doctor.check import Check
from cockpit.engine import kernels, native
from cockpit.version import __version__

ORIGINAL = "cockpit-for-pytorch"
EXTRAS = {"pandas": "Run.to_pandas", "pyarrow": "cockpit export --format parquet"}


def environment() -> Iterator[Check]:
    """Look at everything but the place runs are written to."""
    yield _python()
    yield Check("platform", "ok", f"{platform.platform()}")
    yield Check("cockpit", "ok", f"{__version__} in {Path(cockpit.__file__).parent}")
    yield _shadow()
    yield _torch()
    yield _devices()
    yield _threads()
    yield _kernels()
    yield _extras()


def _python() -> Check:
    return Check("python", "ok", f"{platform.python_version()} ({sys.executable})")


def _shadow() -> Check:
    """Two distributions that install a package called cockpit overwrite each other."""
    version = installed(ORIGINAL)
    if version:
        found = f"{ORIGINAL} {version} is installed as well; it brings an import package called cockpit too"
        advice = (
            f"Give it an environment of its own: pip uninstall {ORIGINAL}, and install cockpit-debugger anew."
        )
        return Check("import name", "problem", found, advice)
    here = Path.cwd()
    for place in (here / "cockpit.py", here / "cockpit" / "__init__.py"):
        if place.exists() and not place.samefile(cockpit.__file__):
            found = f"scripts in this folder import {place.relative_to(here)} in place of the package"
            return Check("import name", "warning", found, "Rename it.")
    return Check("import name", "ok", "nothing else is called cockpit")


def _torch() -> Check:
    found = f"{torch.__version__}"
    numbers = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
    if numbers < (2, 6):
        return Check(
            "torch", "problem", found, "Cockpit needs torch 2.6 or newer: pip install --upgrade torch"
        )
    return Check("torch", "ok", found)


def _devices() -> Check:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
        return Check("devices", "ok", f"CUDA {torch.version.cuda}: {', '.join(names)}")
    if torch.version.cuda:
        found = f"CPU only: torch is built for CUDA {torch.version.cuda} but finds no usable GPU"
        return Check("devices", "warning", found, "Fine without a GPU; else look at what nvidia-smi says.")
    if torch.backends.mps.is_available():
        return Check("devices", "ok", "MPS (Apple GPU; without float64, so some statistics are less exact)")
    return Check("devices", "ok", "CPU only (this torch is built for it)")


def _threads() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    library = "MKL" if torch.backends.mkl.is_available() else "a library other than MKL"
    setting = os.environ.get("OMP_NUM_THREADS", "not set")
    found = f"{threads} for {cores} usable cores ({library}; OMP_NUM_THREADS: {setting})"
    if threads > cores:
        advice = f"Threads that wait for a core are slow: set OMP_NUM_THREADS={cores}."
        return Check("threads", "warning", found, advice)
    return Check("threads", "ok", found)


def _kernels() -> Check:
    """How histograms are counted: compiled when first needed, which is slow to find out in mid-training."""
    found = f"histograms on the CPU: {native.status()}"
    if torch.cuda.is_available():
        found += f"; on the GPU: by {'Triton' if kernels.available() else 'torch (no Triton)'}"
    if native.status().startswith("by torch"):
        return Check("kernels", "warning", found, "A C compiler (cc) makes them some ten times faster.")
    return Check("kernels", "ok", found)


def _extras() -> Check:
    found, missing = [], []
    for name, use in EXTRAS.items():
        version = installed(name)
        found.append(f"{name} {version}" if version else f"no {name} (for {use})")
        missing += [] if version else [name]
    advice = f"If you want them: pip install {' '.join(missing)}" if missing else ""
    return Check("optional", "ok", ", ".join(found), advice)


def installed(distribution: str) -> str:
    """Return the version of an installed distribution, or nothing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
