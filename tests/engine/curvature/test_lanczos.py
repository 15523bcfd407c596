from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cockpit.engine.curvature.lanczos import Eigenpair, top_eigenpair
from cockpit.errors import Gap

CPU = torch.device("cpu")


def top(matrix: Tensor, start: Tensor | None = None, seed: int = 0, **settings: object) -> Eigenpair:
    generator = torch.Generator().manual_seed(seed)
    return top_eigenpair(
        lambda v: matrix @ v,
        start,
        len(matrix),
        matrix.dtype,
        CPU,
        generator,
        **settings,  # type: ignore[arg-type]
    )


def rotated(eigenvalues: Tensor, seed: int = 0) -> Tensor:
    size = len(eigenvalues)
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
    return (q * eigenvalues.double()) @ q.T


def quadratic_deep() -> Tensor:
    """The Hessian of DeepOBS's quadratic_deep: Q/50 with a Haar rotation drawn from RandomState(42)."""
    draw = np.random.RandomState(42)
    eigenvalues = np.concatenate([draw.uniform(0, 1, 90), draw.uniform(30, 60, 10)])
    angle = 2 * np.pi * draw.uniform()
    r = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    for d in range(2, 100):
        v = draw.normal(size=d + 1)
        v /= np.linalg.norm(v)
        x = -v
        x[0] += 1
        x /= np.linalg.norm(x)
        larger = np.eye(d + 1)
        larger[1:, 1:] = r
        r = larger - 2 * np.outer(x, x @ larger)
    r = -r
    return torch.from_numpy(r.T @ np.diag(eigenvalues) @ r) / 50


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (torch.diag(torch.tensor([-5.0, 1.0, 0.5])), 1.0),
        (-torch.eye(7), -1.0),
        (torch.eye(5), 1.0),
        (torch.zeros(4, 4), 0.0),
        (torch.tensor([[3.0]]), 3.0),
        (torch.tensor([[-3.0]]), -3.0),
        (torch.ones(40, 40), 40.0),
        (-torch.ones(40, 40), 0.0),
        (torch.diag(torch.cat([torch.full((60,), -1000.0), torch.tensor([1.0])])), 1.0),
        (1e30 * torch.diag(torch.arange(-3.0, 4.0)), 3e30),
        (1e-30 * torch.diag(torch.arange(-3.0, 4.0)), 3e-30),
    ],
)
def test_finds_the_largest_algebraic_eigenvalue_of_small_matrices(matrix, expected, dtype):
    pair = top(matrix.to(dtype))
    scale = matrix.abs().max()
    assert pair.converged
    assert pair.value == pytest.approx(expected, rel=1e-3, abs=float(1e-6 * scale))
    assert float(pair.vector.norm()) == pytest.approx(1, rel=1e-5)


def test_quadratic_deep_has_the_published_spectrum():
    matrix = quadratic_deep()
    pair = top(matrix)
    assert float(matrix.trace()) == pytest.approx(9.5522456, rel=1e-7)
    assert pair.value == pytest.approx(1.0625803, rel=1e-4)
    assert pair.converged
    assert top(matrix, tolerance=1e-8).value == pytest.approx(1.0625803, rel=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_indefinite_matrix_whose_smallest_eigenvalue_dominates(dtype):
    eigenvalues = torch.cat(
        [torch.linspace(-300, -1, 200), torch.linspace(-0.1, 0.8, 99), torch.tensor([1.0])]
    )
    pair = top(rotated(eigenvalues).to(dtype), max_products=400)
    assert pair.value == pytest.approx(1, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_restarts_keep_converging_on_a_crowded_spectrum(dtype):
    pair = top(rotated(torch.linspace(-1, 0.5, 400)).to(dtype), basis=8, max_products=400)
    assert pair.products > 16
    assert pair.converged
    assert pair.value == pytest.approx(0.5, rel=1e-2)  # the neighbours are 0.8 % away


def test_residual_is_the_true_one_and_the_vector_the_eigenvector():
    matrix = rotated(torch.linspace(-3, 2, 120))
    pair = top(matrix, tolerance=1e-4)
    true = (matrix @ pair.vector - pair.value * pair.vector).norm()
    assert float(true) == pytest.approx(pair.residual, rel=1e-6)
    assert pair.residual <= 1e-4 * abs(pair.value)


def test_gives_up_after_max_products_and_says_so():
    matrix = rotated(torch.linspace(0, 1, 300))
    pair = top(matrix, max_products=5, tolerance=1e-9)
    assert not pair.converged
    assert pair.products == 5
    assert pair.value < 1


def test_warm_start_needs_few_products():
    matrix = rotated(1 / torch.arange(1.0, 401.0).sqrt())
    cold = top(matrix, min_products=1)
    warm = top(matrix + 1e-5 * rotated(torch.linspace(-1, 1, 400), seed=3), start=cold.vector, min_products=4)
    assert warm.products == 4 < cold.products
    assert warm.converged
    assert warm.value == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("size", [10, 2000])
def test_warm_start_finds_a_new_top_eigenvector_orthogonal_to_the_old_one(size):
    diagonal = torch.linspace(0, 0.5, size, dtype=torch.float64)
    diagonal[3], diagonal[7] = 1.0, 4.0
    old = torch.nn.functional.one_hot(torch.tensor(3), size).double()
    pair = top(torch.diag(diagonal), start=old)
    assert pair.value == pytest.approx(4, rel=1e-3)
    assert abs(float(pair.vector[7])) == pytest.approx(1, rel=1e-3)


def test_an_outlier_next_to_a_flat_bulk_is_not_missed():
    size = 20000
    diagonal = torch.ones(size, dtype=torch.float64)
    diagonal[5] = 1.5
    pair = top_eigenpair(lambda v: diagonal * v, None, size, torch.float64, CPU, torch.Generator())
    assert pair.value == pytest.approx(1.5, rel=1e-3)


@pytest.mark.parametrize("start", [torch.zeros(6), torch.full((6,), math.nan), torch.ones(5)])
def test_a_useless_start_is_ignored(start):
    pair = top(torch.diag(torch.arange(6.0)), start=start)
    assert pair.value == pytest.approx(5, rel=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonfinite_products_are_a_gap(bad):
    matrix = torch.eye(5)
    matrix[2, 3] = bad
    with pytest.raises(Gap, match=r"^nonfinite"):
        top(matrix)


def test_no_coordinates_are_a_gap():
    with pytest.raises(Gap, match=r"^no_parameters"):
        top(torch.zeros(0, 0))


def test_is_deterministic_and_leaves_the_global_generator_alone():
    matrix = rotated(torch.linspace(-1, 1, 100)).float()
    before = torch.get_rng_state()
    first, second = top(matrix, seed=4), top(matrix, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.value == second.value
    assert torch.equal(first.vector, second.vector)


def test_autocast_does_not_round_the_projections():
    matrix = rotated(torch.linspace(-1, 1, 50)).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pair = top_eigenpair(
            lambda v: (matrix.double() @ v.double()).float(), None, 50, torch.float32, CPU, torch.Generator()
        )
    assert pair.value == pytest.approx(1, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=1, max_size=40),
    st.integers(0, 1000),
    st.booleans(),
)
def test_agrees_with_a_dense_solver(eigenvalues, seed, warm):
    matrix = rotated(torch.tensor(eigenvalues, dtype=torch.float64), seed)
    start = torch.ones(len(matrix), dtype=torch.float64) if warm else None
    pair = top(matrix, start=start, seed=seed)
    scale = max(abs(e) for e in eigenvalues)
    assert pair.value == pytest.approx(max(eigenvalues), rel=1e-2, abs=1e-6 * scale + 1e-9)
