r"""The largest algebraic eigenvalue of a symmetric operator that is known only by its products.

Band Lanczos (Ruhe, 1979) with full re-orthogonalisation and thick restarts (Wu and Simon, 2000). A cold
start is one random vector. A warm start is two: the eigenvector found last time and a random one, each the
head of a Krylov chain of its own, so that a good old vector is confirmed within a few products while a new
top eigenvector that is orthogonal to the old one is still found.

Rows of ``basis`` are orthonormal. The first ``done`` of them have been multiplied, and
$H V = V T + W B$ with $V$ those rows, $W$ the waiting ones and $T$, $B$ blocks of ``projected``; so the
residual of the Ritz pair $(\theta, Vy)$ is $\|By\|$ and costs no product. All decisions are made from
projected numbers, so processes that see the same products stay in step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.numbers.precision import NONFINITE, wide_dtype, without_autocast
from cockpit.engine.numbers.vectors import combine, inner
from cockpit.errors import Gap


@dataclass(frozen=True, eq=False)
class Carried:
    """The topmost Ritz vectors, orthonormal rows [K, D], with their values [K] in ascending order (float64)."""

    vectors: Tensor
    values: Tensor


@dataclass(frozen=True, eq=False)
class Eigenpair:
    r"""An eigenvalue with its unit vector; ``residual`` is $\|Hv - \lambda v\|$, the value's error bar.

    Of an eigenvalue that is followed from step to step (`cockpit.engine.curvature.tracking`), the vector is that of
    the mean of some steps, to begin the next one with.
    """

    value: float
    vector: Tensor
    residual: float
    products: int
    converged: bool
    carried: Carried | None = None


class Subspace:
    """An orthonormal basis, the operator projected on it, and the vectors that wait for their product."""

    def __init__(self, capacity: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.basis = torch.empty(min(capacity, size), size, dtype=dtype, device=device)
        self.projected = torch.zeros(len(self.basis), len(self.basis), dtype=torch.float64, device="cpu")
        self.count = self.done = 0
        self.norm = 0.0
        self.epsilon = torch.finfo(dtype).eps

    def dots(self, vector: Tensor) -> Tensor:
        """Return the products of all basis vectors with ``vector``, in wide sums."""
        return inner([self.basis[: self.count]], [vector[None]])[:, 0]

    def append(self, vector: Tensor) -> Tensor:
        """Orthonormalise ``vector`` into the basis, unless nothing of it is left; return its coefficients.

        Everything is computed on the device; one small transfer follows, because the host decides by it.
        """
        vector = vector.to(self.basis.dtype)
        dots = torch.zeros(self.count + 1, dtype=wide_dtype(vector.device), device=vector.device)
        for _ in range(2):  # twice is enough (Kahan, in Parlett 1980, section 6-9)
            more = self.dots(vector)
            dots[: self.count] += more
            vector = vector - combine(more[None], [self.basis[: self.count]])[0]
        left = inner([vector[None]], [vector[None]])[0, 0].sqrt()
        dots[self.count] = left
        found = dots.to(device="cpu", dtype=torch.float64)
        if not bool(torch.isfinite(found).all()):
            raise Gap(NONFINITE)
        coefficients = torch.zeros(len(self.basis), dtype=torch.float64, device="cpu")
        coefficients[: self.count] = found[: self.count]
        size = max(self.norm, float(coefficients.norm()))
        if self.count < len(self.basis) and float(found[self.count]) > 8 * self.epsilon * size:
            self.basis[self.count] = vector / left.to(vector.dtype)
            coefficients[self.count] = found[self.count]
            self.count += 1
        return coefficients

    def expand(self, product: Callable[[Tensor], Tensor]) -> None:
        """Multiply the first waiting vector and let what is new in the result wait in turn."""
        column = self.append(product(self.basis[self.done]))
        self.projected[:, self.done] = self.projected[self.done, :] = column
        self.done += 1

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return Ritz values (ascending), their coefficients in columns, and their residual norms."""
        values, vectors = torch.linalg.eigh(self.projected[: self.done, : self.done])
        coupling = self.projected[self.done : self.count, : self.done]
        self.norm = max(self.norm, float(values.abs().max()))
        return values, vectors, (coupling @ vectors).norm(dim=0)

    def restart(self, keep: int) -> None:
        """Keep the ``keep`` topmost Ritz vectors and all waiting vectors; forget the rest."""
        values, vectors, _ = self.ritz()
        vectors = vectors[:, -keep:]
        coupling = self.projected[self.done : self.count, : self.done] @ vectors
        kept = combine(vectors.T, [self.basis[: self.done]])
        waiting = self.basis[self.done : self.count].clone()
        self.basis[:keep] = kept
        self.basis[keep : keep + len(waiting)] = waiting
        self.projected.zero_()
        self.projected[range(keep), range(keep)] = values[-keep:]
        self.projected[keep : keep + len(waiting), :keep] = coupling
        self.projected[:keep, keep : keep + len(waiting)] = coupling.T
        self.done, self.count = keep, keep + len(waiting)

    def vector(self, coefficients: Tensor) -> Tensor:
        """Return the unit vector with these coefficients in the multiplied part of the basis."""
        combined = combine(coefficients[None], [self.basis[: self.done]])[0]
        unit: Tensor = combined / combined.norm()
        return unit


def top_eigenpair(
    product: Callable[[Tensor], Tensor],
    start: Tensor | None,
    size: int,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
    tolerance: float = 1e-3,
    max_products: int = 200,
    min_products: int = 8,
    basis: int = 24,
    carry: int = 0,
) -> Eigenpair:
    r"""Return the largest algebraic eigenvalue of the symmetric operator ``product``.

    Stops when $\|Hv - \lambda v\| \le$ ``tolerance`` $\cdot |\lambda|$. Where $\lambda$ is nothing next to
    $\|H\|$ (a singular negative semidefinite matrix) a residual of about its rounding error stops too.

    Args:
        product: maps a flat vector [size] to a flat vector; deterministic.
        start: the eigenvector found last time, or None; ignored if it is of another size, zero or not finite.
        size: number of coordinates D.
        dtype: of the vectors.
        device: of the vectors.
        generator: source of the random direction; the global generators stay untouched.
        tolerance: relative residual to reach.
        max_products: give up after so many, with ``converged=False``.
        min_products: look at least so long for a larger eigenvalue, however small the residual,
            unless nothing is left to look at.
        basis: vectors held at once, at least 6; each has D numbers.
        carry: how many of the topmost Ritz vectors to hand back, for `cockpit.engine.curvature.tracking`.
    """
    if size == 0:
        raise Gap("no_parameters: nothing to differentiate by")
    with torch.no_grad(), without_autocast(device.type):
        space = Subspace(max(basis, 6), size, dtype, device)
        if start is not None and start.shape == (size,) and bool(torch.isfinite(start).all()):
            space.append(start.detach().to(device=device, dtype=dtype))
        noise = torch.randn(size, dtype=dtype, device=generator.device, generator=generator)
        space.append(noise.to(device))
        floor = max(8 * space.epsilon, 1e-5 * tolerance)
        for products in range(1, max(max_products, 1) + 1):
            if space.count == len(space.basis) < size:
                space.restart(len(space.basis) // 2)
            space.expand(product)
            values, vectors, residuals = space.ritz()
            value, residual = float(values[-1]), float(residuals[-1])
            small = residual <= max(tolerance * abs(value), floor * space.norm)
            # Too early a small residual may be that of another eigenvector than the top one.
            converged = space.done == space.count or (small and products >= min_products)
            if converged:
                break
        carried = None
        if carry:
            kept = combine(vectors[:, -carry:].T, [space.basis[: space.done]])
            carried = Carried(kept, values[-carry:].clone())
        return Eigenpair(value, space.vector(vectors[:, -1]), residual, products, converged, carried)
