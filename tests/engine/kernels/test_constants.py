"""Constants on a device are uploaded once; while a graph is captured, a kernel writes them."""

from __future__ import annotations

import pytest
import torch

from cockpit.engine.kernels import constants
from cockpit.engine.kernels.constants import constant

CPU = torch.device("cpu")


def test_they_are_kept() -> None:
    x = constant((1, -2, 3), torch.int32, CPU)
    assert x.tolist() == [1, -2, 3]
    assert x.dtype == torch.int32
    assert constant((1, -2, 3), torch.int32, CPU) is x
    assert constant((1, -2, 3), torch.float64, CPU) is not x


@pytest.mark.parametrize(
    ("values", "dtype"), [((0, 5, -7), torch.int32), ((0.1, -1e300, 2.0), torch.float64)]
)
def test_those_written_by_a_kernel_are_the_same(values: tuple[float, ...], dtype: torch.dtype) -> None:
    assert torch.equal(constants._written(values, dtype, CPU), torch.tensor(values, dtype=dtype))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_capture_has_its_own() -> None:
    device, values = torch.device("cuda", torch.cuda.current_device()), tuple(range(1000, 1300))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = constant(values, torch.int32, device)
    assert (values, torch.int32, device) not in constants._UPLOADED
    outside = constant(values, torch.int32, device)
    graph.replay()
    assert torch.equal(inside, outside)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        assert constant(values, torch.int32, device) is outside
        torch.zeros(1, device=device)  # torch warns of graphs that are empty
