"""What every quantity in the registry owes: its form, its documentation, its settings, a value."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import FrozenInstanceError, fields, is_dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cockpit
from cockpit import Histogram, Run
from cockpit.engine.derived import Trace
from cockpit.engine.needs import Diagonal, DiagonalVariance, Known, TopEigenvalue
from cockpit.engine.statistics import Statistic
from cockpit.errors import CockpitError
from cockpit.naming import snake_case
from cockpit.quantities.curvature_choice import CurvatureQuantity
from cockpit.quantities.quantity import Memory, Quantity
from cockpit.registry import quantity_classes
from cockpit.schedule import every
from cockpit.testing import problem
from watched import watch

NAMES = sorted(quantity_classes())
EXPECTED = {
    *(
        "alpha",
        "cabs",
        "distance",
        "early_stopping",
        "grad_hist1d",
        "grad_hist2d",
        "grad_norm",
        "hess_max_ev",
    ),
    *("hess_trace", "inner_test", "loss", "mean_gsnr", "norm_test", "ortho_test", "parameters", "tic_diag"),
    *("tic_trace", "time", "update_size"),
}
NOT_BY_PARAMETER = {"loss", "time", "hess_max_ev"}
"""Hess_max_ev has them on request."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two steps of a small net with every quantity."""

    def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    found, _, _ = watch(problem("mlp"), sgd, [[5], [5]], tmp_path_factory.mktemp("all"), NAMES)
    return found


def test_the_nineteen_are_there() -> None:
    assert set(NAMES) >= EXPECTED


@pytest.mark.parametrize("name", NAMES)
def test_class(name: str) -> None:
    """A frozen dataclass of its own, in a file of its name, compared by identity."""
    cls = quantity_classes()[name]
    assert cls.__module__ == f"cockpit.quantities.{name}"
    assert Path(inspect.getfile(cls)).stem == name == snake_case(cls.__name__)
    assert "__dataclass_params__" in vars(cls), "a subclass without its own decorator loses its fields"
    assert is_dataclass(cls)
    assert cls() != cls()
    quantity = cls()
    with pytest.raises(FrozenInstanceError):
        quantity.label = "other"  # type: ignore[misc]
    assert getattr(cockpit, cls.__name__) is cls


@pytest.mark.parametrize("name", NAMES)
def test_one_public_class_a_file(name: str) -> None:
    module = inspect.getmodule(quantity_classes()[name])
    public = [
        n
        for n, c in vars(module).items()
        if inspect.isclass(c) and c.__module__ == module.__name__ and not n.startswith("_")  # type: ignore[union-attr]
    ]
    assert public == [quantity_classes()[name].__name__]


@pytest.mark.parametrize("name", NAMES)
def test_documentation(name: str) -> None:
    """A formula, and a first paragraph that stands alone: it becomes the tooltip."""
    doc = inspect.getdoc(quantity_classes()[name]) or ""
    first = doc.split("\n\n")[0]
    assert len(first) > 20
    assert first[0].isupper() or first[0] == "$"
    assert re.search(r"[.)]$", first.strip()), first
    assert first.count("$") % 2 == 0
    assert "$" in doc or name == "time"


@pytest.mark.parametrize("name", NAMES)
def test_description_is_stored_with_the_run(name: str, run: Run) -> None:
    described = quantity_classes()[name]().describe()
    assert json.loads(json.dumps(described)) == described
    assert described["name"] == name
    assert described["class"] == quantity_classes()[name].__name__
    assert set(described["settings"]) == {f.name for f in fields(quantity_classes()[name])}
    assert {"when", "label"} <= set(described["settings"])
    assert len(described["doc"]) > 20
    assert "\n" not in described["doc"]
    stored = {q["name"]: q for q in run.meta["quantities"]}
    assert stored[name] == described


@pytest.mark.parametrize("name", NAMES)
def test_common_settings(name: str) -> None:
    cls = quantity_classes()[name]
    quantity = cls(when=3, label="mine")  # type: ignore[arg-type]
    assert quantity.name == f"{name}:mine"
    assert quantity.when == every(3)
    assert cls().name == name
    with pytest.raises(CockpitError):
        cls(when="sometimes")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_needs_are_what_the_engine_serves(name: str) -> None:
    quantity = quantity_classes()[name]()
    asked = [*quantity.request({}, 0), *quantity.needs_after]
    assert all(isinstance(need, Statistic | Known | TopEigenvalue) for need in asked)
    memory: Memory = {}
    assert len(set(quantity.request(memory, 0))) == len(list(quantity.request(memory, 0)))
    assert set(quantity.request(memory, 0)) == set(quantity_classes()[name]().request(memory, 0)), (
        "equal requests are one"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_stored(name: str, run: Run) -> None:
    scopes = run.scopes(name)
    parameters = [n for n, _ in problem("mlp").build().named_parameters()]
    assert [s for s in scopes if s] == ([] if name in NOT_BY_PARAMETER else parameters)
    assert ("" in scopes) == (name != "parameters")
    for scope in scopes:
        series = run.series(name, scope)
        assert series.steps.tolist() == ([0] if name == "alpha" else [0, 1])
        for value, status in zip(series.values, series.status, strict=True):
            if isinstance(value, Histogram):
                assert value.total > 0
            elif not scope:
                assert np.isfinite(value).all() or status.startswith("concave"), (scope, status)


ROOT_OF_SQUARES = ("grad_norm", "distance", "update_size")
SUM = ("hess_trace", "tic_diag", "cabs")


@pytest.mark.parametrize("name", [*ROOT_OF_SQUARES, *SUM])
def test_values_by_parameter_add_up(name: str, run: Run) -> None:
    scopes = [s for s in run.scopes(name) if s]
    for t in range(2):
        parts = [float(run.series(name, s).values[t]) for s in scopes]
        whole = run.series(name).values[t]
        joined = sqrt(sum(x * x for x in parts)) if name in ROOT_OF_SQUARES else sum(parts)
        assert whole == pytest.approx(joined, rel=1e-10)


def test_means_over_elements_are_weighted_by_their_number(run: Run) -> None:
    sizes = {n: p.numel() for n, p in problem("mlp").build().named_parameters()}
    for name in ("mean_gsnr", "early_stopping"):
        parts = sum(sizes[s] * float(run.series(name, s).values[0]) for s in sizes)
        assert run.series(name).values[0] == pytest.approx(parts / sum(sizes.values()), rel=1e-10)


@pytest.mark.parametrize("name", ["grad_hist1d", "grad_hist2d"])
def test_histograms_by_parameter_add_up(name: str, run: Run) -> None:
    whole = run.series(name).values[0]
    parts: list[Any] = [run.series(name, s).values[0] for s in run.scopes(name) if s]
    np.testing.assert_array_equal(sum(p.counts for p in parts), whole.counts)
    assert sum(p.total for p in parts) == whole.total


CURVED = [n for n in NAMES if issubclass(quantity_classes()[n], CurvatureQuantity)]


@pytest.mark.parametrize("name", CURVED)
def test_curvature_is_one_of_three_words(name: str) -> None:
    """Refused in the constructor, not in mid-training."""
    cls: Any = quantity_classes()[name]
    for word in ("diag_h", "diag_ggn_exact", "diag_ggn_mc"):
        assert cls(word).diagonal == Diagonal(word, 1)
    assert cls("diag_ggn_mc", samples=4).diagonal == Diagonal("diag_ggn_mc", 4)
    assert cls("diag_h", samples=4).diagonal == Diagonal("diag_h", 1), "asked for once, however often drawn"
    with pytest.raises(
        CockpitError, match=rf"{cls.__name__}\(curvature='diag_x'\).*'diag_h', 'diag_ggn_exact'"
    ):
        cls("diag_x")


def test_there_are_three_curved_quantities() -> None:
    assert {"hess_trace", "tic_diag", "tic_trace"} <= set(CURVED)
    trace = quantity_classes()["hess_trace"]()
    assert {type(need) for need in trace.needs} == {Trace, DiagonalVariance}


def test_the_base_class_is_no_quantity() -> None:
    assert Quantity not in quantity_classes().values()
    assert "quantity" not in quantity_classes()
    with pytest.raises(TypeError, match="abstract"):
        Quantity()  # type: ignore[abstract]
