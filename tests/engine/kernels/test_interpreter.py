"""Without a GPU the kernels are tested in Triton's interpreter, which must be chosen before Triton is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cockpit.engine.kernels.language import INTERPRETED


@pytest.mark.skipif(INTERPRETED, reason="runs the others")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_pass_their_tests_in_the_interpreter(request: pytest.FixtureRequest) -> None:
    here = Path(__file__).parent
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-rs",
        "-m",
        request.config.option.markexpr,  # slow ones, if those are run
        str(here),
    ]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for name in [k for k in environment if k.startswith("PYTEST_")]:
        del environment[name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
