"""The way a grid's rows are computed is chosen by what is exact for it."""

from __future__ import annotations

import pytest
import torch

from cockpit.engine.kernels.rows import power_of_two, prepared
from cockpit.engine.numbers.binning import Grid

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("grid", "double", "way"),
    [
        (Grid(100, -2.0, 2.0), False, "down"),
        (Grid(40, -1.0, 1.0), False, "down"),
        (Grid(60, 0.0, 3.0), False, "down"),
        (Grid(2000, -2.0, 2.0), False, "down"),
        (Grid(10, -0.3, 0.3), False, "wide"),  # a scale that is no float32
        (Grid(10, -20.0, 20.0), False, "down"),
        (Grid(101, -2.0, 2.0), False, "wide"),  # zero is no edge
        (Grid(100, -2.0, 2.0), True, "edges"),  # float64 has numbers between an edge and its guess
        (Grid(10, 0.0, 1e-40), False, "wide"),  # a scale beyond float32
        (Grid(4, 1.0, 1.0 + 2**-23), False, "edges"),  # bins narrower than the numbers are apart
    ],
)
def test_way(grid: Grid, double: bool, way: str) -> None:
    assert prepared(grid, double, CPU).way == way


def test_the_ends_belong_to_the_type() -> None:
    below, above, high = prepared(Grid(10, -0.3, 0.3), False, CPU).table[:3].tolist()
    assert below < -0.3 < torch.nextafter(torch.tensor(below), torch.tensor(1.0)).item()
    assert high < 0.3 < above  # float32(0.3) is above 0.3
    assert torch.nextafter(torch.tensor(high), torch.tensor(1.0)).item() == above
    assert prepared(Grid(10, -0.5, 0.5), False, CPU).table[2] == 0.5


def test_prepared_is_kept() -> None:
    assert prepared(Grid(7, 0.0, 1.0), False, CPU).table is prepared(Grid(7, 0.0, 1.0), False, CPU).table


@pytest.mark.parametrize(("bins", "size"), [(1, 128), (123, 128), (124, 256), (251, 256), (252, 512)])
def test_rows_are_a_power_of_two(bins: int, size: int) -> None:
    assert prepared(Grid(bins, 0.0, 1.0), False, CPU).size == size


def test_power_of_two() -> None:
    assert [power_of_two(n, 4) for n in (1, 4, 5, 8, 9)] == [4, 4, 8, 8, 16]
