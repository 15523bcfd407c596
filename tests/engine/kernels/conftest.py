"""The device that kernels run on here, and those tests left out where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cockpit.engine.kernels import language


@pytest.fixture
def device() -> torch.device:
    if not language.available():
        pytest.skip("needs Triton and a GPU, or Triton's interpreter (test_interpreter.py runs it)")
    if not language.INTERPRETED:
        return torch.device("cuda")
    version = tuple(int(part) for part in language.triton.__version__.split(".")[:2])
    if version < (3, 9) and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("older interpreters take arrays of one element for numbers, which NumPy no longer does")
    return torch.device("cpu")
