"""The three sums of the Takeuchi criterion: one by one, in pieces and together, against their definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.numbers import takeuchi as module
from cockpit.engine.numbers.takeuchi import takeuchi, takeuchi_of_all
from cockpit.engine.scripts.recorder import ScriptRecorder
from layer_check import normal

EPSILON = 1e-3


@pytest.fixture(params=["kernel", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the compiled kernel, where there is one, and without it."""
    if request.param == "torch":
        monkeypatch.setattr(native, "takeuchi", lambda *_: None)


def defined(squares: Tensor, h: Tensor) -> Tensor:
    terms = squares.double() / (h.double() + EPSILON)
    return torch.stack([terms.sum(), terms[h < 10 * EPSILON].abs().sum(), (h < 0).sum().double()])


def curvatures() -> dict[str, Tensor]:
    strong = normal(6, 7).abs() + 0.1
    weak, negative, mixed = strong.clone(), strong.clone(), normal(6, 7)
    weak[0, :4] = torch.tensor([0.0, 5 * EPSILON, 10 * EPSILON, 9.9 * EPSILON])
    negative[1, :3] = torch.tensor([-2 * EPSILON, -0.5 * EPSILON, -3.0])
    return {"strong": strong, "weak": weak, "negative": negative, "mixed": mixed, "flat": strong * 0}


@pytest.mark.parametrize("case", curvatures())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_way_equals_the_definition(
    case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    squares, h = normal(6, 7, seed=3).square().to(dtype), curvatures()[case].to(dtype)
    ways = [takeuchi(squares, h, EPSILON), takeuchi_of_all([squares], [h], EPSILON)[0]]
    monkeypatch.setattr(module, "SHORT", 0)
    for piece in (2**18, 42, 10, 1):
        monkeypatch.setattr(module, "PIECE", piece)
        ways.append(takeuchi(squares, h, EPSILON))
    for found in ways:
        assert found.dtype == torch.float64
        torch.testing.assert_close(
            found, defined(squares, h), rtol=1e-12 if dtype == torch.float64 else 1e-4, atol=0
        )


def test_parameters_together_do_not_touch_each_other() -> None:
    h, shapes = list(curvatures().values()), [(6, 7), (3,), (), (0,)]
    h += [normal(*shape, seed=k).abs().double() for k, shape in enumerate(shapes)]
    squares = [torch.rand_like(x) for x in h]
    found = takeuchi_of_all(squares, h, EPSILON)
    expected = torch.stack([defined(s, x) for s, x in zip(squares, h, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("short", [0, 50])
def test_a_script_takes_them_again(short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, too, of which each is looked at for weak curvature."""
    monkeypatch.setattr(module, "SHORT", short)
    squares, h = normal(6, 7, seed=3).square(), curvatures()["strong"]
    repeat, found = ScriptRecorder(h.device).record(lambda: takeuchi(squares, h, EPSILON))
    for case in ("mixed", "weak"):
        h.copy_(curvatures()[case])
        repeat()
        torch.testing.assert_close(found, defined(squares, h), rtol=1e-12, atol=0)


def test_what_is_not_finite_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    h = normal(50).abs()
    h[7] = torch.nan
    squares = torch.ones(50, dtype=h.dtype)
    assert takeuchi(squares, h, EPSILON)[0].isnan()
    assert takeuchi_of_all([squares], [h], EPSILON)[0, 0].isnan()
    monkeypatch.setattr(module, "SHORT", 0)
    assert takeuchi(squares, h, EPSILON)[0].isnan()


def test_squares_and_curvature_of_different_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORT", 0)
    squares, h = normal(50).square(), normal(50, seed=1).abs().float()
    torch.testing.assert_close(takeuchi(squares, h, EPSILON), defined(squares, h), rtol=1e-6, atol=0)
    torch.testing.assert_close(
        takeuchi(squares.float(), h.double(), EPSILON), defined(squares.float(), h), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000, 2**17 + 3])
def test_vectors_of_every_size(size: int, dtype: torch.dtype) -> None:
    squares, h = normal(size).square().to(dtype), normal(size, seed=1).to(dtype)
    h = torch.where(h.abs() < 3 * EPSILON, h + 5 * EPSILON, h)  # no term is larger than all others
    rtol = 1e-10 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(
        takeuchi(squares, h, EPSILON), defined(squares, h), rtol=rtol, atol=rtol * size
    )
    if size > 1:
        wide = torch.stack([h, h], 1)[:, 0]  # not contiguous
        torch.testing.assert_close(
            takeuchi(squares, wide, EPSILON), takeuchi(squares, h, EPSILON), rtol=rtol, atol=0
        )
