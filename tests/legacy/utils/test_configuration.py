from __future__ import annotations

import pytest

from cockpit.legacy.utils.configuration import configuration, quantities_cls_for_configuration
from cockpit.legacy.utils.schedules import linear

ECONOMY = ["Alpha", "Distance", "GradHist1d", "GradNorm", "InnerTest"]
ECONOMY += ["Loss", "NormTest", "OrthoTest", "UpdateSize"]


@pytest.mark.parametrize(
    ("label", "more"),
    [
        ("economy", []),
        ("business", ["TICDiag", "HessTrace"]),
        ("full", ["TICDiag", "HessTrace", "HessMaxEV", "GradHist2d"]),
    ],
)
def test_configurations(label: str, more: list[str]) -> None:
    classes = quantities_cls_for_configuration(label)
    assert [cls.__name__ for cls in classes] == ECONOMY + more
    assert [type(q) for q in configuration(label)] == classes


def test_all_share_a_schedule() -> None:
    assert all(q.should_compute(3) for q in configuration("full"))
    for quantity in configuration("full", linear(2), verbose=True):
        assert quantity._track_schedule == linear(2)
        assert quantity._verbose


def test_an_unknown_label_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="first class"):
        configuration("first class")
