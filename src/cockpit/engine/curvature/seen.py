"""What a few products tell of a Hessian: the small matrices by which `cockpit.engine.curvature.tracking` decides.

They have a handful of rows. NumPy takes some microseconds for each operation on them, as long as a small network's
step; where there is a compiler, one function of C does it all (``native/seen.c``), with the same formulas.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.numbers.precision import NONFINITE
from cockpit.errors import Gap

Numbers = NDArray[np.float64]

FRESH = 0.4
"""Weight of a step's Hessian in the mean that is carried."""

UNSEEN = 0.25
"""Curvature along a direction met first in this step, relative to the value; -0.1 to 0.8 in trainings measured."""

RANGE = (-0.5, 0.8)
"""What `UNSEEN` may be."""

TRUSTED = 0.01
"""Relative uncertainty up to which a value counts as converged."""

NEAR = 0.03
"""Residual, relative to the value, up to which it may count as converged."""

STILL = 0.1
"""Residual of the first product alone up to which it may: the carried vector was almost an eigenvector."""

CHANGE = 4.0
"""By how much the carried values may be scaled from one step to the next."""

OPTIMISM = 1.06
"""Growth to expect of carried values not looked at, so that a vector that may have overtaken gets its product."""

KNOWN = 0.1
"""An eigenvector is known if no more than this of it lies outside of the multiplied directions."""


class Seen(Protocol):
    """What is known of the projected matrix, from the products of all rows with one another.

    Rows are the carried vectors and the products of the directions multiplied. Directions are combinations of rows: the
    first is the last carried vector, and each further one what `add` returned.
    """

    products: int
    """How many directions have been multiplied."""

    def add(self, fresh: Tensor, more: bool) -> Tensor | None:
        """Enter a product, the last row; return the weights [1, R] of the direction to multiply next.

        It is the part of the completed matrix's eigenvector that has not been multiplied: of the top one, but
        of the next where the top one is known already, lest a second eigenvector overtake it unseen.

        Args:
            fresh: the products [R, K] of all rows with the K new ones.
            more: whether another direction is wanted; without one, or if there is none left, None is returned.
        """

    def value(self) -> tuple[float, float, bool]:
        """Return the value, its residual, and whether it is to be trusted."""

    def averaged(self, most: int) -> tuple[Tensor, Tensor]:
        """Return the topmost eigenvalues of the mean Hessian, ascending, and weights [K, R] of its eigenvectors.

        It is the mean of what was carried, and `FRESH` of this step's.
        """


def look(values: Tensor, noise: float, products: int) -> Seen:
    """Begin a step with the carried values [k].

    Args:
        values: ascending, float64, on the host.
        noise: which squared length, relative to the longest, may be rounding.
        products: how many directions will be multiplied at most.
    """
    constants = (FRESH, UNSEEN, *RANGE, TRUSTED, NEAR, STILL, CHANGE, OPTIMISM, KNOWN)
    return native.look(values, noise, products, constants) or Plain(values, noise)


class Plain:
    """`Seen` by NumPy.

    The rows are neither orthogonal nor independent: ``weights`` make an orthonormal basis of them, in which all else is
    expressed.
    """

    def __init__(self, values: Tensor, noise: float) -> None:
        self.values, self.noise, self.products = values.numpy(), noise, 0
        self.weights = self.gram = np.zeros((0, 0))
        self._multiplied = [np.eye(len(values))[-1]]

    def add(self, fresh: Tensor, more: bool) -> Tensor | None:
        """Enter a product, as `Seen.add` says."""
        new = fresh.to(device="cpu", dtype=torch.float64).numpy()
        if not np.isfinite(new).all():
            raise Gap(NONFINITE)
        self.products += 1
        count, before = len(new), len(new) - new.shape[1]
        gram = np.empty((count, count))
        gram[:before, :before] = self.gram
        gram[:, before:], gram[before:] = new, new.T
        self.gram = gram
        lengths = np.sqrt(gram.diagonal())
        lengths[lengths == 0] = 1.0
        squares, vectors = np.linalg.eigh(gram / lengths / lengths[:, None])
        first = int(np.searchsorted(squares, self.noise * squares[-1], "right"))  # those before are noise
        roots, vectors = np.sqrt(squares[first:]), vectors[:, first:]
        self.weights = (vectors / roots).T / lengths
        places = vectors * roots * lengths[:, None]
        self.carried = places[: len(self.values)]
        # Carried vectors and directions are orthonormal as they are chosen; they are rounded less than products are.
        self.directions = np.array([weights @ places[: len(weights)] for weights in self._multiplied]).T
        self.images = places[len(self.values) :].T
        self._look()
        direction = self._next_direction() if more else None
        if direction is None:
            return None
        self._multiplied.append(direction)
        return torch.from_numpy(direction)[None]

    def _look(self) -> None:
        """Find the largest Ritz value on the multiplied directions."""
        projected = self.directions.T @ self.images
        self.top = self.first = float(projected[0, 0])
        self._mixture = np.ones(1)
        if self.products > 1:
            values, vectors = np.linalg.eigh((projected + projected.T) / 2)
            self.top, self._mixture = float(values[-1]), vectors[:, -1]

    def _residual(self, top: float, mixture: Numbers) -> float:
        """Return how far a Ritz pair, a mixture of the multiplied directions, is from an eigenpair."""
        count = len(mixture)
        off = self.images[:, :count] @ mixture - top * (self.directions[:, :count] @ mixture)
        return math.sqrt(off @ off)

    def value(self) -> tuple[float, float, bool]:
        """Return the value, its residual, and whether it is to be trusted."""
        value, residual = self._largest(UNSEEN, limit=self.top), self._residual(self.top, self._mixture)
        if residual > NEAR * abs(value) or self._residual(self.first, np.ones(1)) > STILL * abs(value):
            return value, residual, False
        low = self._largest(RANGE[0], limit=self.top)
        # By what the top vector's product has changed, those of the other carried ones may have changed too.
        swing = 1 + 2 * residual / max(abs(value), np.finfo(np.float64).tiny)
        high = self._largest(RANGE[1], swing)
        return value, residual, high - low <= TRUSTED * abs(value)

    def _largest(self, unseen: float, swing: float = OPTIMISM, limit: float = math.inf) -> float:
        """Return the largest eigenvalue of the completed matrix.

        Args:
            unseen: curvature of directions met in this step, relative to the largest Ritz value.
            swing: factor of the carried values.
            limit: the largest carried value to believe.
        """
        model = self._model(unseen, swing * self._growth(), limit)
        return float(np.linalg.eigvalsh(self._exact(model))[-1])

    def averaged(self, most: int) -> tuple[Tensor, Tensor]:
        """Return eigenvalues and eigenvectors of the mean Hessian, as `Seen.averaged` says."""
        values, vectors = np.linalg.eigh(self._exact(self._model(UNSEEN), FRESH))
        weights = _signed(vectors[:, -most:].T @ self.weights)
        return torch.from_numpy(values[-most:].copy()), torch.from_numpy(weights)

    def _model(self, unseen: float, swing: float = 1.0, limit: float = math.inf) -> Numbers:
        """Return the projected matrix as one would expect it without this step's products, but for their size."""
        rest = self.top - (1 - unseen) * abs(self.top)
        values = np.minimum(self.values * swing, limit)
        model: Numbers = (self.carried.T * (values - rest)) @ self.carried
        model.reshape(-1)[:: len(model) + 1] += rest  # its diagonal
        return model

    def _growth(self) -> float:
        """Return by what the carried values are taken to have grown: as the top one has.

        Where it has shrunk, half of that (of its logarithm): another may have overtaken it, whose value has not.
        """
        before = float(self.values[-1])
        if self.first * before <= 0:
            return 1.0
        grown = min(max(self.first / before, 1 / CHANGE), CHANGE)
        return grown if grown > 1 else math.sqrt(grown)

    def _exact(self, model: Numbers, share: float = 1.0) -> Numbers:
        """Return the model with (a share of) all that touches a multiplied direction replaced by what was found."""
        y, wrong = self.directions, self.images - model @ self.directions
        half = (share * (wrong - y @ (y.T @ wrong / 2))) @ y.T
        exact: Numbers = model + half + half.T
        return exact

    def _next_direction(self) -> Numbers | None:
        """Return the weights of the direction to multiply next, or None if all of the basis has been multiplied."""
        if self.products == len(self.weights):
            return None
        _, vectors = np.linalg.eigh(self._exact(self._model(UNSEEN, OPTIMISM * self._growth())))
        outside = vectors - self.directions @ (self.directions.T @ vectors)
        lengths = np.sqrt((outside * outside).sum(0))
        chosen = int(np.flatnonzero(lengths > KNOWN)[-1])
        direction: Numbers = _signed((outside[:, chosen] / lengths[chosen])[None] @ self.weights)[0]
        return direction


def _signed(rows: Numbers) -> Numbers:
    """Return vectors with a sign by which every process turns them the same way, whatever its eigen-solver."""
    largest = np.take_along_axis(rows, np.abs(rows).argmax(1)[:, None], 1)
    signed: Numbers = np.where(largest < 0, -rows, rows)
    return signed
