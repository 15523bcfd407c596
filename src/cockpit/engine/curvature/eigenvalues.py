"""The largest eigenvalues of a step's curvature, and what is carried from one step to the next to find them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeGuard

import torch
from torch import Tensor

from cockpit.engine.curvature.hessian import FlatParameters
from cockpit.engine.curvature.lanczos import Carried, Eigenpair, top_eigenpair
from cockpit.engine.curvature.tracking import CARRIED, TrackedEigenvalue, followed
from cockpit.engine.needs import TopEigenvalue
from cockpit.errors import Gap

Product = Callable[[Tensor], Tensor]
Solved = dict[TopEigenvalue, dict[str, Eigenpair] | Gap]


class Eigenvalues:
    """Solves for eigenvalues; ``generator`` returns a source of random numbers on a device."""

    def __init__(self, generator: Callable[[torch.device], torch.Generator]) -> None:
        self.vectors: dict[str, Tensor] = {}
        self._generator = generator

    def solve(
        self, needs: Sequence[TopEigenvalue], operator: Callable[[], tuple[FlatParameters, Product]]
    ) -> Solved:
        """Return every eigenvalue asked for, by parameter where it is of blocks; what fails is a gap.

        ``operator`` returns the coordinates of a matrix and products with it.
        """
        made, solved = None, Solved()
        for need in needs:
            try:
                made = made or operator()
                flat, product = made
                found: dict[str, Eigenpair] = {}
                if not need.blocks:
                    found[""] = self._solved(need, "", product, flat.size, flat)
                else:
                    start = 0
                    for name, size in zip(flat.names, flat.sizes, strict=True):
                        block = _block(product, flat.size, slice(start, start + size))
                        found[name] = self._solved(need, name, block, size, flat)
                        start += size
                solved[need] = found
            except Gap as gap:
                solved[need] = gap
            except Exception as failure:
                solved[need] = Gap(f"failed: {type(failure).__name__}: {failure}")
        return solved

    def _solved(
        self, need: TopEigenvalue, scope: str, product: Product, size: int, flat: FlatParameters
    ) -> Eigenpair:
        key, tracked = f"{need} {scope}", isinstance(need, TrackedEigenvalue)
        start = self.vectors.get(key)
        if isinstance(need, TrackedEigenvalue) and _usable(start, size):
            carried = Carried(start, self.vectors[f"{key} values"])
            pair = followed(product, carried, need.per_step, flat.dtype, flat.device)
        else:
            pair = top_eigenpair(
                product,
                None if tracked else start,
                size=size,
                dtype=flat.dtype,
                device=flat.device,
                generator=self._generator(flat.device),
                tolerance=need.tolerance,
                max_products=need.products,
                carry=CARRIED if tracked else 0,
            )
        if pair.carried is None:
            self.vectors[key] = pair.vector
        else:
            self.vectors[key], self.vectors[f"{key} values"] = pair.carried.vectors, pair.carried.values
        # Who waits for the next step keeps this one's numbers; vectors as large as the model must not stay for that.
        return replace(pair, vector=pair.vector.new_empty(0), carried=None)


def _usable(rows: Tensor | None, size: int) -> TypeGuard[Tensor]:
    """Say whether carried vectors belong to a model of this size."""
    return rows is not None and rows.ndim == 2 and rows.shape[1] == size


def _block(product: Product, size: int, place: slice) -> Product:
    """Return products with the diagonal block of some coordinates."""

    def of_block(v: Tensor) -> Tensor:
        whole = v.new_zeros(size)
        whole[place] = v
        return product(whole)[place]

    return of_block
