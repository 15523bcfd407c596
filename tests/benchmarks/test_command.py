"""What the options of the benchmark mean."""

from __future__ import annotations

import pytest

from benchmarks.command import _parser, _plan, main
from benchmarks.problems import PROBLEMS
from benchmarks.run import QUICK


@pytest.mark.parametrize(
    ("given", "problems", "intervals", "rounds", "budget"),
    [
        ([], tuple(PROBLEMS), (4, 16, 64, 256), 7, 120.0),
        (["--quick"], QUICK, (16,), 3, 8.0),
        (["--quick", "--intervals"], QUICK, (), 3, 8.0),
        (["--quick", "--intervals", "1", "4", "--budget", "5"], QUICK, (4,), 3, 5.0),
        (["--problems", "mnist_mlp", "--rounds", "2"], ["mnist_mlp"], (4, 16, 64, 256), 2, 120.0),
    ],
)
def test_what_is_measured_and_how_long(
    given: list[str], problems: object, intervals: tuple[int, ...], rounds: int, budget: float
) -> None:
    plan = _plan(_parser().parse_args(given))
    assert plan.problems == problems
    assert plan.rules.intervals == intervals
    assert (plan.rules.pace.rounds, plan.rules.pace.budget) == (rounds, budget)


def test_a_problem_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--problems", "mnist_mpl"]) == 2
    assert "no problem 'mnist_mpl'; there are quadratic_deep, " in capsys.readouterr().err
