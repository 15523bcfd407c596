"""The environments: one for this package and torch alone, and one for each peer, made when first needed.

A peer's environment is a folder of packages that goes before the packages of the running Python, so that
all contestants share one torch. What is compiled (SciPy, Matplotlib) lies in a folder of its own, named
after the interpreter, and goes last: where Python has it already, that is taken. Peers are installed
without their dependencies, since those would bring torchvision or another torch; what they need is named
here.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = Path(__file__).parent / ".envs"
SCIPY = ("scipy",)
MATPLOTLIB = ("matplotlib", "contourpy", "kiwisolver", "pillow", "fonttools", "cycler", "pyparsing", "pandas")
MODULES = {"pillow": "PIL", "fonttools": "fontTools"}


class CannotMakeError(Exception):
    """An environment is not there and could not be made; the text says why."""


@dataclass(frozen=True)
class Environment:
    """What is installed, and the contestants that run in it.

    ``configurations`` have schedules, so they are measured at all intervals; ``singles`` at every step.
    """

    name: str
    packages: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    configurations: tuple[str, ...] = ()
    singles: tuple[str, ...] = ()
    idle: bool = False

    @property
    def folder(self) -> Path:
        """Where its packages are."""
        return ENVIRONMENTS / self.name


BACKPACK = ("backpack-for-pytorch==1.7.1", "einops", "unfoldNd")
PRESETS = ("economy", "business", "full")
QUANTITIES = (
    "alpha",
    "cabs",
    "distance",
    "early_stopping",
    "grad_hist1d",
    "grad_hist2d",
    "grad_norm",
    "hess_max_ev",
    "hess_trace",
    "inner_test",
    "loss",
    "mean_gsnr",
    "norm_test",
    "ortho_test",
    "parameters",
    "tic_diag",
    "tic_trace",
    "time",
    "update_size",
)
ORIGINALS = (
    "Alpha",
    "CABS",
    "Distance",
    "EarlyStopping",
    "GradHist1d",
    "GradHist2d",
    "GradNorm",
    "HessMaxEV",
    "HessTrace",
    "InnerTest",
    "Loss",
    "MeanGSNR",
    "NormTest",
    "OrthoTest",
    "Parameters",
    "TICDiag",
    "TICTrace",
    "Time",
    "UpdateSize",
)

ALL = (
    Environment("cockpit", configurations=PRESETS, singles=QUANTITIES, idle=True),
    Environment("torch_func", singles=("norms",)),
    Environment(
        "original",
        (
            "cockpit-for-pytorch==1.0.2",
            *BACKPACK,
            "json-tricks",
            "setuptools<81",
            *("seaborn", "packaging", "python-dateutil", "six"),
        ),
        (*SCIPY, *MATPLOTLIB),
        configurations=PRESETS,
        singles=ORIGINALS,
        idle=True,
    ),
    Environment(
        "backpack",
        (*BACKPACK, "packaging"),
        singles=("BatchGrad", "BatchL2Grad", "SumGradSquared", "DiagGGNExact", "DiagGGNMC", "DiagHessian"),
    ),
    Environment("opacus", ("opacus==1.6.0", "opt_einsum"), SCIPY, singles=("gradient_norms", "ghost_norms")),
    Environment(
        "curvlinops",
        (
            "curvlinops-for-pytorch==3.0.1",
            *BACKPACK,
            *("einconv", "linear_operator", "opt_einsum", "tqdm", "packaging", "jaxtyping", "wadler_lindig"),
        ),
        SCIPY,
        singles=("max_eigenvalue", "trace"),
    ),
    Environment("pyhessian", ("pyhessian==0.1",), singles=("max_eigenvalue", "trace")),
)


def command(
    environment: Environment, install: bool, say: Callable[[str], None]
) -> tuple[list[str], dict[str, str]]:
    """Return how a worker is started in an environment: its command and its variables; make what is missing."""
    if environment.packages:
        _installed(environment.folder, environment.packages, install, say)
    missing = [name for name in environment.compiled if not _importable(name)]
    if missing:
        _installed(compiled_folder(), missing, install, say)
    path = [str(ROOT), str(environment.folder) if environment.packages else str(ROOT / "src")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    return [sys.executable, "-W", "ignore", "-m", "benchmarks.worker", str(compiled_folder())], variables


def compiled_folder() -> Path:
    """Where compiled packages for this interpreter are: another Python must not see them."""
    return ENVIRONMENTS / f"compiled-{sysconfig.get_config_var('SOABI')}"


def _importable(package: str) -> bool:
    return importlib.util.find_spec(MODULES.get(package, package)) is not None


def _installed(
    folder: Path, packages: tuple[str, ...] | list[str], install: bool, say: Callable[[str], None]
) -> None:
    """Install what a folder does not have; a list beside the packages says what it has."""
    record = folder / "installed.txt"
    have = set(record.read_text().split("\n")) if record.exists() else set()
    missing = [name for name in packages if name not in have]
    if not missing:
        return
    if not install:
        raise CannotMakeError("not installed on this machine")
    say(f"installing {', '.join(missing)}")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    pip += ["--upgrade", "--target", str(folder), "--constraint", str(ROOT / "constraints.txt"), *missing]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no message"]
        raise CannotMakeError(f"could not be installed: {lines[-1]}")
    record.write_text("\n".join(sorted(have | set(missing))))
