"""The largest eigenvalue followed with a few products a step: exactness, order of its error, what is carried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from cockpit.data import fashion_mnist
from cockpit.engine.curvature.hessian import HessianProduct
from cockpit.engine.curvature.lanczos import Carried, Eigenpair, top_eigenpair
from cockpit.engine.curvature.tracking import CARRIED, TrackedEigenvalue, followed
from cockpit.engine.engine import Engine
from cockpit.engine.numbers.vectors import LONG
from cockpit.errors import Gap
from cockpit.testing import problem
from engine.curvature.test_step_curvature import step

CPU, F64 = torch.device("cpu"), torch.float64


def rotated(eigenvalues: Tensor, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = len(eigenvalues)
    q, _ = torch.linalg.qr(torch.randn(size, size, dtype=F64, generator=generator))
    return (q * eigenvalues.double()) @ q.T


def carried_from(matrix: Tensor, k: int = CARRIED) -> Carried:
    values, vectors = torch.linalg.eigh(matrix)
    return Carried(vectors[:, -k:].T.contiguous(), values[-k:])


def follow(matrix: Tensor, carried: Carried, products: int = 2) -> Eigenpair:
    return followed(lambda v: matrix @ v, carried, products, matrix.dtype, CPU)


SPECTRUM = torch.cat([torch.linspace(-0.5, 0.3, 97), torch.tensor([0.6, 0.8, 1.0])])


def test_an_unchanged_matrix_is_confirmed_exactly() -> None:
    matrix = rotated(SPECTRUM)
    pair = follow(matrix, carried_from(matrix))
    assert pair.value == pytest.approx(1, rel=1e-12)
    assert pair.residual < 1e-12
    assert pair.converged
    assert pair.products == 2


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_a_scaled_matrix_scales_the_value(factor: float) -> None:
    matrix = rotated(SPECTRUM)
    assert follow(factor * matrix, carried_from(matrix)).value == pytest.approx(factor, rel=1e-10)


def test_a_carried_eigenvector_that_overtakes_is_noticed() -> None:
    """The vectors do not turn, so nothing in the product with the old top one tells of it."""
    old, new = SPECTRUM.clone(), SPECTRUM.clone()
    new[-2] = 1.5
    assert follow(rotated(new), carried_from(rotated(old))).value == pytest.approx(1.5, rel=1e-10)


@pytest.mark.parametrize("products", [1, 2])
def test_the_completed_value_is_nearer_than_the_rayleigh_quotient(products: int) -> None:
    errors: dict[str, list[float]] = {"completed": [], "ritz": []}
    for seed in range(1, 9):
        old = rotated(SPECTRUM)
        new = old + 0.15 * rotated(torch.linspace(-1, 1, 100), seed)
        true = float(torch.linalg.eigvalsh(new)[-1])
        pair = follow(new, carried_from(old), products)
        v = carried_from(old).vectors[-1]
        basis = [v]
        for _ in range(products - 1):  # Krylov space of the old eigenvector
            basis.append(new @ basis[-1])
        q, _ = torch.linalg.qr(torch.stack(basis, dim=1))
        errors["ritz"].append(abs(float(torch.linalg.eigvalsh(q.T @ new @ q)[-1]) / true - 1))
        errors["completed"].append(abs(pair.value / true - 1))
    assert sum(errors["completed"]) < 0.5 * sum(errors["ritz"])


def test_the_residual_is_the_true_one_of_the_ritz_pair() -> None:
    """With one product the Ritz vector is the carried one."""
    old = rotated(SPECTRUM)
    new = old + 0.1 * rotated(torch.linspace(-1, 1, 100), 5)
    v = carried_from(old).vectors[-1]
    theta = v @ new @ v
    pair = follow(new, carried_from(old), products=1)
    assert pair.products == 1
    assert pair.residual == pytest.approx(float((new @ v - theta * v).norm()), rel=1e-9)
    assert pair.value >= float(theta)


def test_another_matrix_is_not_called_converged() -> None:
    pair = follow(rotated(SPECTRUM, seed=1), carried_from(rotated(SPECTRUM, seed=2)))
    assert not pair.converged
    assert pair.residual > 0.1


@pytest.mark.parametrize("diagonal", [[-3.0, -2.0, -1.0], [0.0, 0.0], [2.0], [-2.0], [1.0, 1.0, 1.0, 1.0]])
def test_small_and_degenerate_matrices(diagonal: list[float]) -> None:
    matrix = torch.diag(torch.tensor(diagonal, dtype=F64))
    pair = follow(matrix, carried_from(matrix, min(CARRIED, len(diagonal))))
    assert pair.value == pytest.approx(max(diagonal), abs=1e-12)
    assert pair.products <= len(diagonal)


def test_nonfinite_products_are_a_gap() -> None:
    matrix = rotated(SPECTRUM)
    with pytest.raises(Gap, match=r"^nonfinite"):
        follow(matrix * float("nan"), carried_from(matrix))


def test_carried_vectors_stay_orthonormal_over_many_steps() -> None:
    old = rotated(SPECTRUM).float()
    carried = Carried(carried_from(old.double()).vectors.float(), torch.ones(CARRIED))
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(100, generator=generator)
        pair = follow(old + 0.1 * torch.outer(noise, noise) / 100, carried)
        assert pair.carried is not None
        carried = pair.carried
    rows = carried.vectors.double()
    torch.testing.assert_close(rows @ rows.T, torch.eye(CARRIED, dtype=F64), rtol=0, atol=1e-6)


def drifting(size: int, dtype: torch.dtype) -> tuple[Carried, Callable[[Tensor], Tensor]]:
    """Return eigenvectors of a matrix of rank four, and products with one whose eigenvectors have turned."""
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype)
    old = torch.linalg.qr(torch.randn(size, 4, dtype=F64, generator=generator))[0]
    new = torch.linalg.qr(old + 0.2 * torch.randn(size, 4, dtype=F64, generator=generator) / size**0.5)[0].to(
        dtype
    )
    carried = Carried(old[:, -CARRIED:].T.contiguous().to(dtype), values[-CARRIED:].double())
    return carried, lambda v: new @ (values * (new.T @ v))


def test_long_single_precision_vectors_give_the_value_of_double_ones() -> None:
    pairs = []
    for dtype in (torch.float32, F64):
        carried, product = drifting(LONG + 77, dtype)
        for _ in range(8):
            pair = followed(product, carried, 2, dtype, CPU)
            assert pair.carried is not None
            carried = pair.carried
        pairs.append(pair)
    assert pairs[0].value == pytest.approx(pairs[1].value, rel=1e-5)
    assert pairs[0].value == pytest.approx(4, rel=1e-4)
    assert abs(float(pairs[0].vector.double() @ pairs[1].vector)) == pytest.approx(1, abs=1e-4)


class Calls(TorchDispatchMode):
    """Counts what is asked of torch."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("size", [100, LONG + 1])
def test_besides_its_products_it_asks_little_of_torch(size: int) -> None:
    """On a GPU small problems take as long as their calls; each number is read by the host once for each product."""
    carried, product = drifting(size, torch.float32)
    with Calls() as all_calls:
        followed(product, carried, 2, torch.float32, CPU)
    with Calls() as two_products:
        product(carried.vectors[0])
        product(carried.vectors[0])
    assert all_calls.count - two_products.count < 80


# -- in the engine -----------------------------------------------------------------------------------------


def test_the_first_step_converges_and_later_ones_spend_two_products() -> None:
    p, need = problem("mlp_tanh"), TrackedEigenvalue()
    engine = Engine(p.build())
    spent = [step(engine, p, [need], [6]).eigenvalues[need][""] for _ in range(4)]
    assert spent[0].products > 2
    assert [pair.products for pair in spent[1:]] == [2, 2, 2]
    assert all(pair.value == pytest.approx(spent[0].value, rel=1e-3) for pair in spent)


def test_a_checkpoint_restores_it_bit_for_bit() -> None:
    p, need = problem("mlp_tanh"), TrackedEigenvalue(per_step=3)
    engine = Engine(p.build())
    for number in range(2):
        step(engine, p, [need], [6], number)
    again = Engine(p.build())
    again.load_state(engine.state())
    for number in range(2, 5):
        first, second = (step(e, p, [need], [6], number).eigenvalues[need][""] for e in (engine, again))
        assert (first.value, first.residual) == (second.value, second.residual)
        assert torch.equal(first.vector, second.vector)


def test_blocks_are_followed_too() -> None:
    p, need = problem("mlp_tanh"), TrackedEigenvalue(blocks=True)
    engine = Engine(p.build())
    first, second = (step(engine, p, [need], [6]).eigenvalues[need] for _ in range(2))
    for name, pair in second.items():
        assert pair.products <= 2
        assert pair.value == pytest.approx(first[name].value, rel=1e-2, abs=1e-9)


# -- real training -----------------------------------------------------------------------------------------


def training(batch: int | None, steps: int, momentum: float) -> Iterator[HessianProduct]:
    """Products with the Hessian at each step of training a small network on Fashion-MNIST."""
    images, labels = fashion_mnist()[0]
    x, y = torch.from_numpy(images)[:, ::4, ::4].flatten(1).double() / 255, torch.from_numpy(labels).long()
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(49, 32), nn.ReLU(), nn.Linear(32, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 - momentum), momentum=momentum)
    for _ in range(steps):
        some = slice(0, 3000, 6) if batch is None else torch.randint(len(x), (batch,), generator=generator)
        losses = F.cross_entropy(model(x[some]), y[some], reduction="none")
        yield HessianProduct([(losses, 1.0)], dict(model.named_parameters()))
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()


def errors(batch: int | None, products: tuple[int, ...], momentum: float = 0.0) -> dict[int, Tensor]:
    """Relative errors against a converged solve, after the first of 61 steps, by products a step."""
    carried: dict[int, Carried | None] = {}
    found: dict[int, list[float]] = {n: [] for n in products}
    previous = None
    for product in training(batch, 61, momentum):
        g = torch.Generator().manual_seed(0)
        true = top_eigenpair(
            product, previous, product.flat.size, F64, CPU, g, 1e-5, 60, 12, 60, carry=CARRIED
        )
        previous = true.vector
        for n in products:
            known = carried.get(n)
            if known is None:
                carried[n] = true.carried
                continue
            pair = followed(product, known, n, F64, CPU)
            assert pair.products == n
            carried[n] = pair.carried
            found[n].append(abs(pair.value / true.value - 1))
    return {n: torch.tensor(each) for n, each in found.items()}


def within(found: Tensor) -> float:
    """Return the share of steps whose error is below 1 %."""
    return float((found < 0.01).double().mean())


def test_training_on_one_batch() -> None:
    """Two products may miss an eigenvector that overtakes for a while; four do not."""
    found = errors(None, (2, 4))
    assert float(found[2].median()) < 0.005
    assert within(found[2]) > 0.85
    assert float(found[4].max()) < 0.01


def test_training_on_new_batches() -> None:
    """The Hessian itself is another at each step."""
    found = errors(128, (2, 4), momentum=0.9)
    assert float(found[2].median()) < 0.005
    assert within(found[2]) > 0.8
    assert within(found[4]) > 0.9
    assert float(found[4].mean()) < float(found[2].mean())
