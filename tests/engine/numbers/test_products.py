"""Our own matrix products: the same numbers by either library, and torch's own where the other one does not serve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cockpit.engine.numbers import products
from cockpit.engine.numbers.products import product
from cockpit.engine.scripts.recorder import ScriptRecorder
from layer_check import normal

here = hasattr(torch.ops.mkldnn, "_linear_pointwise")
needs_onednn = pytest.mark.skipif(not here, reason="this torch is built without oneDNN")


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Have the other library used for every product, however small; the shapes that it was given."""
    given: list[tuple[int, ...]] = []
    served = products._served

    def seen(a: Tensor, b: Tensor) -> bool:
        if served(a, b):
            given.append((*a.shape, b.shape[-1]))
            return True
        return False

    monkeypatch.setattr(products, "WORTH", 1)
    monkeypatch.setattr(products, "_onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "_served", seen)
    return given


@needs_onednn
@pytest.mark.parametrize(
    "shape", [(3, 4, 5), (1, 1, 1), (64, 75, 33), (2, 3, 4, 5), (2, 3, 1, 7, 5)], ids=str
)
@pytest.mark.parametrize("turned", [False, True])
def test_either_library_gives_the_product(
    shape: tuple[int, ...], turned: bool, other: list[tuple[int, ...]]
) -> None:
    *lead, m, k, n = shape
    a, b = normal(*lead, m, k).float(), normal(*lead, k, n, seed=1).float()
    if turned:
        a, b = (x.mT.contiguous().mT for x in (a, b))
    found = product(a, b)
    assert other == [shape]
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("lead", [(), (3,)], ids=["one", "several"])
@pytest.mark.parametrize("layout", ["gaps", "gaps turned", "every second", "expanded"])
def test_the_second_matrix_reaches_the_other_library_without_gaps(
    layout: str, lead: tuple[int, ...], other: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gaps it takes a thousand times as long."""
    a = normal(*lead, 6, 4).float()
    b = {
        "gaps": lambda: normal(*lead, 4, 9).float()[..., :5],
        "gaps turned": lambda: normal(*lead, 5, 9).float()[..., :4].mT,
        "every second": lambda: normal(*lead, 4, 10).float()[..., ::2],
        "expanded": lambda: normal(*lead, 4, 1).float().expand(*lead, 4, 5),
    }[layout]()
    given: list[Tensor] = []
    real = torch.ops.mkldnn._linear_pointwise.default

    class Seen:
        @staticmethod
        def default(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
            given.append(weight)
            found: Tensor = real(x, weight, *rest)
            return found

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", Seen)
    torch.testing.assert_close(product(a, b).double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
    assert other
    assert len(given) == max(len(lead) and lead[0], 1)
    assert all(w.is_contiguous() or w.T.is_contiguous() for w in given)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (normal(3, 4), normal(4, 5)),  # float64
        (normal(3, 4).float().requires_grad_(), normal(4, 5).float()),
        (normal(3, 4).bfloat16(), normal(4, 5).bfloat16()),
        (normal(2, 3, 4).float(), normal(4, 5).float()),
        (torch.zeros(0, 4), torch.zeros(4, 5)),
        (torch.zeros(0, 3, 4), torch.zeros(0, 4, 5)),
        (normal(3, 4).float(), normal(4).float()),
    ],
    ids=["double", "on a graph", "half", "one for all", "no rows", "no matrices", "vector"],
)
def test_what_the_other_library_does_not_serve(a: Tensor, b: Tensor, other: list[tuple[int, ...]]) -> None:
    assert torch.equal(product(a, b), a @ b)
    assert other == []


@needs_onednn
def test_what_the_user_says_of_precision_is_left_to_torch(
    other: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Any] = []
    monkeypatch.setattr(products, "exact_products", lambda: used.append(1) or False)
    a, b = normal(3, 4).float(), normal(4, 5).float()
    assert torch.equal(product(a, b), a @ b)
    assert used


@needs_onednn
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("copied", [1, 10**6], ids=["other", "torch"])
def test_a_script_repeats_products_of_either_library(
    copied: int, turned: bool, other: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "COPIED", copied)
    a, b = normal(3, 4).float(), normal(5, 9).float()[:, :4].T if turned else normal(4, 5).float()
    repeat, found = ScriptRecorder(a.device).record(lambda: product(a, b))
    assert bool(other) == (copied == 1)
    a.mul_(2)
    b.add_(1)
    repeat()
    torch.testing.assert_close(found, a @ b)


def test_the_choice_is_made_once() -> None:
    assert products._onednn_is_faster() in (True, False)
    assert products._onednn_is_faster.cache_info().currsize == 1
