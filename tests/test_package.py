"""The package's own names: lazy, complete, and without torch where runs are only read."""

from __future__ import annotations

import doctest
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

import cockpit
from cockpit import naming, schedule
from cockpit.registry import quantity_classes


def python(code: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *more], capture_output=True, text=True, timeout=120, check=False
    )


def test_everything_announced_is_there() -> None:
    assert len(set(cockpit.__all__)) == len(cockpit.__all__)
    for name in cockpit.__all__:
        assert getattr(cockpit, name) is not None
    assert set(cockpit._HOME) == set(cockpit.__all__) - {"__version__"}


def test_star_import() -> None:
    names: dict[str, object] = {}
    exec("from cockpit import *", names)
    assert set(cockpit.__all__) <= set(names)


@pytest.mark.parametrize("name", sorted(quantity_classes()))
def test_every_quantity_is_a_name_of_the_package(name: str) -> None:
    cls = quantity_classes()[name]
    assert getattr(cockpit, cls.__name__) is cls


@pytest.mark.parametrize(
    "name", ["NormTset", "norm_test_", "Noise", "Bins", "nonsense", "_private", "Sgd", "__bool__"]
)
def test_other_names_are_not(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'cockpit' has no attribute '{name}'"):
        getattr(cockpit, name)
    assert not hasattr(cockpit, name)


def test_reading_a_run_does_not_import_torch() -> None:
    """Nor do the names one meets on the way."""
    code = (
        "import sys, cockpit; cockpit.Run; cockpit.Series; cockpit.Event; cockpit.every; cockpit.CockpitError;"
        "assert 'torch' not in sys.modules; cockpit.Cockpit; assert 'torch' in sys.modules; print('done')"
    )
    done = python(code)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, cockpit; print(sorted({'torch', 'numpy', 'sqlite3', 'pandas'} & set(sys.modules)))"
    assert python(code).stdout == "[]\n"


def test_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cockpit", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout == f"cockpit {cockpit.__version__}\n"
    try:
        installed = version("cockpit-debugger")
    except PackageNotFoundError:
        return
    assert installed == cockpit.__version__


@pytest.mark.parametrize(("module", "examples"), [(schedule, 5), (naming, 1)])
def test_examples_in_docstrings(module: object, examples: int) -> None:
    assert doctest.testmod(module, raise_on_error=True) == (0, examples)  # type: ignore[arg-type]
