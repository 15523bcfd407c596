from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.engine.gradients import individual
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense, Outer, Part, Rows
from layer_check import compare, normal

SHAPE = torch.Size((6, 4))


def outer(n: int, uses: int, groups: int = 1, seed: int = 0) -> Outer:
    a = normal(n, groups, uses, 4, seed=seed)
    return Outer(a, normal(n, groups, uses, 6 // groups, seed=seed + 1), SHAPE)


def rows(n: int, uses: int, seed: int = 0) -> Rows:
    ids = torch.randint(6, (n, uses), generator=torch.Generator().manual_seed(seed))
    return Rows(ids, normal(n, uses, 4, seed=seed), SHAPE)


JOINS: dict[str, tuple[str, ...]] = {
    "one use": ("one",),
    "few uses": ("few",),
    "many uses": ("many",),
    "two uses": ("one", "few"),
    "a table": ("rows",),
    "a table twice": ("rows", "more rows"),
    "tied, few uses": ("rows", "one"),
    "tied twice": ("rows", "one", "more rows", "another"),
    "tied, many uses": ("rows", "many"),
    "written out and few uses": ("dense", "one"),
    "written out and a table": ("dense", "rows"),
    "factors that do not stack": ("one", "groups"),
    "a table and groups": ("rows", "groups"),
}


def joined(which: str, n: int = 5) -> tuple[ExampleGradients, Tensor]:
    known: dict[str, Part] = {
        "one": outer(n, 1),
        "another": outer(n, 1, seed=8),
        "few": outer(n, 2, seed=2),
        "many": outer(n, 9, seed=4),
        "groups": outer(n, 1, groups=2, seed=6),
        "rows": rows(n, 3),
        "more rows": rows(n, 2, seed=1),
        "dense": Dense(normal(n, *SHAPE, seed=7)),
    }
    parts = tuple(known[name] for name in JOINS[which])
    expected = torch.stack([part.dense(0, n) for part in parts]).sum(0)
    return ExampleGradients("weight", normal(*SHAPE), parts), expected


@pytest.mark.parametrize("block", [2**24, 60, 1])
@pytest.mark.parametrize("which", JOINS)
def test_uses_are_summed_before_anything_else(
    which: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(individual, "BLOCK", block)
    found, expected = joined(which)
    compare(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("which", "writes"), [("few uses", 0), ("tied, few uses", 0), ("many uses", 1)])
def test_gradients_are_written_out_only_where_that_is_cheaper(
    which: str, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = joined(which)
    count = 0
    dense = ExampleGradients.dense

    def counted(self: ExampleGradients, start: int, stop: int) -> Tensor:
        nonlocal count
        count += 1
        return dense(self, start, stop)

    monkeypatch.setattr(ExampleGradients, "dense", counted)
    found.norm2()
    found.total()
    found.dot(normal(*SHAPE))
    assert count == writes


def test_blocks_stay_within_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(individual, "BLOCK", 50)
    found, expected = joined("many uses")
    assert [len(g) for g in found.blocks()] == [2, 2, 1]
    assert list(found.spans(1000)) == [(i, i + 1) for i in range(5)]
    torch.testing.assert_close(torch.cat(list(found.blocks())), expected)


@pytest.mark.parametrize("which", JOINS)
def test_no_examples_at_all(which: str) -> None:
    found, _ = joined(which, n=0)
    assert found.norm2().shape == (0,)
    assert torch.equal(found.square_sum(), torch.zeros(SHAPE, dtype=torch.float64))


def test_aligned_uses_do_not_give_negative_squares() -> None:
    a, b = normal(3, 1, 2, 40).float(), normal(3, 1, 2, 40, seed=1).float()
    a[:, :, 1], b[:, :, 1] = a[:, :, 0], -b[:, :, 0]  # the two uses cancel
    found = ExampleGradients("weight", torch.zeros(40, 40), (Outer(a, b, torch.Size((40, 40))),))
    assert (found.norm2() >= 0).all()


def test_a_parameter_without_axes() -> None:
    g = normal(5)
    compare(ExampleGradients("scale", torch.zeros((), dtype=torch.float64), (Dense(g),)), g, rtol=1e-12)


# -- shortcuts ------------------------------------------------------------------------------------------


def wide_outer(n: int, inputs: int = 20, outputs: int = 30) -> ExampleGradients:
    a, b = normal(n, 1, 1, inputs), normal(n, 1, 1, outputs, seed=1)
    shape = torch.Size((outputs, inputs))
    return ExampleGradients("weight", normal(*shape), (Outer(a, b, shape),))


def test_products_with_the_sum_without_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    g = wide_outer(5)
    G = g.dense(0, 5).flatten(1)
    monkeypatch.setattr(ExampleGradients, "total", lambda *_: pytest.fail("the sum was formed"))
    dots = g.dot_total()
    assert dots is not None
    torch.testing.assert_close(dots, G @ G.sum(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_norms_come_with_products_unless_these_are_rounded(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = wide_outer(5)
    part = exact.parts[0]
    assert isinstance(part, Outer)
    for rounded in (False, True):
        monkeypatch.setattr(individual, "exact_products", lambda rounded=rounded: not rounded)
        parts = (Outer(part.a.to(dtype), part.b.to(dtype), part.shape),)
        g = ExampleGradients("weight", exact.parameter.to(dtype), parts)
        assert g.dot_total() is not None
        assert bool(g._norm2) is (dtype == torch.float64 or not rounded)
        expected = exact.dense(0, 5).flatten(1).square().sum(1)
        torch.testing.assert_close(
            g.norm2().double(), expected, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0
        )


@pytest.mark.parametrize(("n", "cheaper"), [(12, True), (13, False)])
def test_only_where_that_is_less_work(n: int, cheaper: bool) -> None:
    """n · (20 + 30) against 20 · 30."""
    assert (wide_outer(n).dot_total() is not None) is cheaper


@pytest.mark.parametrize("which", [which for which in JOINS if which != "one use"])
def test_only_for_one_outer_product(which: str) -> None:
    assert joined(which)[0].factors_of_one_use() is None
    assert joined(which)[0].dot_total() is None


def test_factors_of_one_use() -> None:
    g = wide_outer(4)
    factors = g.factors_of_one_use()
    assert factors is not None
    a, b = factors
    assert (a.shape, b.shape) == ((4, 20), (4, 30))
    torch.testing.assert_close(b[:, :, None] * a[:, None, :], g.dense(0, 4))


def test_groups_are_no_single_outer_product() -> None:
    found = ExampleGradients("weight", normal(*SHAPE), (outer(3, 1, groups=2),))
    assert found.factors_of_one_use() is None


def test_the_plain_way_takes_no_shortcut() -> None:
    fast = wide_outer(5)
    plain = ExampleGradients("weight", fast.parameter, fast.parts, fast=False)
    assert plain.dot_total() is None
    assert fast.dot_total() is not None


@pytest.mark.parametrize("which", JOINS)
def test_who_says_so_writes_out_and_nobody_else(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = joined(which)
    written = 0
    dense = ExampleGradients.dense

    def counted(self: ExampleGradients, start: int, stop: int) -> Tensor:
        nonlocal written
        written += 1
        return dense(self, start, stop)

    monkeypatch.setattr(ExampleGradients, "dense", counted)
    for walks, reduce in ((found.norm2_walks, found.norm2), (found.square_sum_walks, found.square_sum)):
        written = 0
        reduce()
        assert (written > 0) is walks


def test_small_blocks_for_a_cache_and_large_ones_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(individual, "CACHED", 2 * SHAPE.numel())
    found, expected = joined("many uses")
    assert [len(g) for g in found.blocks(whole=True)] == [5]
    assert [len(g) for g in found.blocks(whole=False)] == [2, 2, 1]
    torch.testing.assert_close(torch.cat(list(found.blocks(whole=False))), expected)
    monkeypatch.setattr(individual, "BLOCK", SHAPE.numel())
    assert [len(g) for g in found.blocks(whole=False)] == [1] * 5, "never more than a block"
