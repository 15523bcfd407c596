"""One name through all layers."""

from __future__ import annotations

import pytest

from cockpit.naming import snake_case
from cockpit.registry import quantity_classes


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("Loss", "loss"),
        ("NormTest", "norm_test"),
        ("HessMaxEV", "hess_max_ev"),
        ("TICDiag", "tic_diag"),
        ("TICTrace", "tic_trace"),
        ("GradHist1d", "grad_hist1d"),
        ("MeanGSNR", "mean_gsnr"),
        ("CABS", "cabs"),
        ("A", "a"),
        ("HTTPServer2X", "http_server2_x"),
        ("norm_test", "norm_test"),
        ("", ""),
    ],
)
def test_snake_case(name: str, snake: str) -> None:
    assert snake_case(name) == snake
    assert snake_case(snake) == snake


def test_no_two_classes_share_a_stored_name() -> None:
    classes = [cls.__name__ for cls in quantity_classes().values()]
    assert len({snake_case(name) for name in classes}) == len(classes)
