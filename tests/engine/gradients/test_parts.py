from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.engine.gradients.parts import Dense, Lazy, Outer, Part, Rows
from cockpit.engine.numbers.precision import wide
from layer_check import normal


def written_out(a: Tensor, b: Tensor, shape: torch.Size) -> Tensor:
    """Sum outer products one by one."""
    n, groups, uses, _ = a.shape
    rows = []
    for i in range(n):
        blocks = [sum(torch.outer(b[i, g, t], a[i, g, t]) for t in range(uses)) for g in range(groups)]
        rows.append(torch.cat([torch.as_tensor(block) for block in blocks]).reshape(shape))
    return torch.stack(rows)


def outer(n: int = 5, groups: int = 2, uses: int = 3, inputs: int = 4, outputs: int = 2) -> Outer:
    a, b = normal(n, groups, uses, inputs), normal(n, groups, uses, outputs, seed=1)
    return Outer(a, b, torch.Size((groups * outputs, inputs)))


def lazy(whole: Outer, block: int) -> Lazy:
    def form(start: int, stop: int) -> Outer:
        assert stop - start <= block, "more was formed than fits"
        return Outer(whole.a[start:stop], whole.b[start:stop], whole.shape)

    return Lazy(form, whole.examples, whole.shape, block)


def rows() -> Rows:
    ids = torch.tensor([[0, 3, 3], [1, 1, 1], [4, 0, 2]])
    return Rows(ids, normal(3, 3, 2), torch.Size((5, 2)))


def scattered(part: Rows) -> Tensor:
    g = torch.zeros(part.examples, *part.shape, dtype=torch.float64)
    for i, row in enumerate(part.ids):
        for t, k in enumerate(row):
            g[i, k] += part.b[i, t]
    return g


def cases() -> dict[str, tuple[Part, Tensor]]:
    o, wide_o, dense = outer(), outer(inputs=2, outputs=5), normal(5, 3, 2)
    return {
        "dense": (Dense(dense), dense),
        "outer": (o, written_out(o.a, o.b, o.shape)),
        "outer, more outputs": (wide_o, written_out(wide_o.a, wide_o.b, wide_o.shape)),
        "lazy": (lazy(o, 2), written_out(o.a, o.b, o.shape)),
        "rows": (rows(), scattered(rows())),
    }


@pytest.mark.parametrize("which", ["dense", "outer", "outer, more outputs", "lazy", "rows"])
def test_all_forms_answer_alike(which: str) -> None:
    part, expected = cases()[which]
    n = len(expected)
    v, w = normal(*expected.shape[1:], seed=2), normal(n, seed=3)
    assert part.examples == n
    assert part.shape == expected.shape[1:]
    torch.testing.assert_close(part.dense(0, n), expected)
    torch.testing.assert_close(part.dense(1, n - 1), expected[1:-1])
    torch.testing.assert_close(part.dot(v), (expected * v).flatten(1).sum(1))
    torch.testing.assert_close(part.total(), expected.sum(0))
    torch.testing.assert_close(part.total(w), torch.einsum("n,n...->...", w, expected))
    factors, sizes = part.factors(1, 3), part.sizes()
    assert (factors is None) == (sizes is None)
    if factors is not None and sizes is not None:
        a, b = factors
        assert (a.shape, b.shape) == ((2, *sizes[:3]), (2, *sizes[:2], sizes[3]))
        torch.testing.assert_close(written_out(a, b, part.shape), expected[1:3])


@pytest.mark.parametrize("which", ["dense", "outer", "lazy", "rows"])
def test_no_examples_at_all(which: str) -> None:
    o = outer(n=0)
    parts: dict[str, Part] = {
        "dense": Dense(normal(0, 4, 4)),
        "outer": o,
        "lazy": lazy(o, 2),
        "rows": Rows(torch.zeros(0, 3, dtype=torch.int64), normal(0, 3, 4), torch.Size((4, 4))),
    }
    part = parts[which]
    assert part.dense(0, 0).shape == (0, 4, 4)
    assert part.dot(normal(4, 4)).shape == (0,)
    assert torch.equal(part.total(), torch.zeros(4, 4, dtype=torch.float64))


def test_shapes_other_than_matrices() -> None:
    o = outer(groups=2, inputs=6, outputs=2)
    conv = Outer(o.a, o.b, torch.Size((4, 2, 3)))
    torch.testing.assert_close(conv.dense(0, 5), written_out(o.a, o.b, conv.shape))
    assert conv.total().shape == (4, 2, 3)
    torch.testing.assert_close(conv.dot(conv.total()), o.dot(o.total()))


def test_segments_sum_what_falls_on_one_row_of_one_example() -> None:
    part = rows()
    sums, example, row = part.segments()
    g = torch.zeros(3, 5, 2, dtype=torch.float64)
    for s, i, k in zip(sums, example, row, strict=True):
        g[i, k] += s
    torch.testing.assert_close(g, scattered(part))
    distinct = {(i, int(k)) for i, ids in enumerate(part.ids) for k in ids}
    assert (sums != 0).any(1).sum() == len(distinct)


def test_wide_leaves_half_precision_only() -> None:
    assert wide(torch.zeros(1, dtype=torch.float16)).dtype == torch.float32
    assert wide(torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.float32
    x = torch.zeros(1, dtype=torch.float64)
    assert wide(x) is x


@pytest.mark.parametrize("which", ["dense", "outer", "outer, more outputs", "lazy", "rows"])
@pytest.mark.parametrize("factor", [4, 3.7])
def test_all_forms_are_scaled_alike(which: str, factor: float) -> None:
    part, expected = cases()[which]
    n, direction = part.examples, normal(*part.shape, seed=5)
    scaled = part.scaled(factor)
    torch.testing.assert_close(scaled.dense(0, n), factor * expected)
    torch.testing.assert_close(scaled.dot(direction), factor * part.dot(direction))
    torch.testing.assert_close(scaled.total(), factor * part.total())
    torch.testing.assert_close(part.dense(0, n), expected, msg="it was changed itself")


@pytest.mark.parametrize("which", ["dense", "outer", "lazy", "rows"])
def test_all_forms_are_added_alike(which: str) -> None:
    part, expected = cases()[which]
    n = part.examples
    block = normal(n, *part.shape, seed=6)
    torch.testing.assert_close(part.add_to(block[1:].clone(), 1, n), block[1:] + expected[1:])


def test_half_precision_is_not_rounded_by_a_factor() -> None:
    a, b = normal(2, 1, 3, 4).bfloat16(), normal(2, 1, 3, 5, seed=1).bfloat16()
    part = Outer(a, b, torch.Size((5, 4)))
    exact = written_out(a.double(), b.double(), part.shape)
    for factor in (8, 5):
        torch.testing.assert_close(
            part.scaled(factor).dense(0, 2).double(), factor * exact, rtol=1e-5, atol=1e-5
        )
    assert part.scaled(8).b.dtype == torch.bfloat16, "powers of two need no more bits"
