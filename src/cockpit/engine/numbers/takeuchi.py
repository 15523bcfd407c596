r"""The sums of the Takeuchi criterion's diagonal form: $\sum_j s_j / (h_j + \epsilon)$, and how far to trust it.

Of a parameter three numbers: the sum; what of it rests on curvature $h_j < 10\epsilon$, in absolute values; and how
many $h_j$ are negative. Masks are numbers, 0 or 1: on a CPU those of bits take several times as long as arithmetic, and
for many tensors at once there are none. Where there is a compiled kernel, it looks at each number once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.numbers.precision import wide_dtype
from cockpit.engine.numbers.sums import SHORT, lengths, row_sums
from cockpit.engine.scripts.script import noted

PIECE = 2**17
"""How many numbers are looked at together on a CPU, so that what is formed of them stays in its cache."""


def takeuchi(squares: Tensor, h: Tensor, epsilon: float) -> Tensor:
    """Return the three numbers of a parameter, [3] float64."""
    if (found := native.takeuchi(squares, h, epsilon)) is not None:
        return found
    squares, h, on_cpu = squares.reshape(-1), h.reshape(-1), h.device.type == "cpu"
    if on_cpu and len(h) > SHORT:
        return _in_pieces(squares, h, epsilon)
    room = torch.empty(3, len(h), dtype=torch.promote_types(squares.dtype, h.dtype), device=h.device)
    terms, doubtful, negative = room
    torch.div(squares, torch.add(h, epsilon, out=terms), out=terms)
    torch.lt(h, 10 * epsilon, out=doubtful).mul_(terms).abs_()
    torch.lt(h, 0, out=negative)
    return room.sum(1).double() if on_cpu else room.sum(1, dtype=wide_dtype(h.device))


@noted
def _in_pieces(squares: Tensor, h: Tensor, epsilon: float) -> Tensor:
    """Return the numbers of a long vector; looks first whether a piece has any weak curvature.

    All pieces are worked on in the same room: memory that is new to the process takes longer to get than to fill.
    """
    sums: tuple[list[Tensor], ...] = ([], [], [])
    size = min(PIECE, len(h))
    room = torch.empty(2, size, dtype=torch.promote_types(squares.dtype, h.dtype))
    for s, x in zip(squares.split(size), h.split(size), strict=True):
        terms, mask = room[:, : len(x)]
        least = float(x.amin())
        torch.div(s, torch.add(x, epsilon, out=terms), out=terms)
        sums[0].append(row_sums(terms))
        if not least >= 10 * epsilon:
            torch.lt(x, 10 * epsilon, out=mask).mul_(terms)
            sums[1].append(row_sums(mask.abs_() if least < 0 else mask))
        if least < 0:
            sums[2].append(row_sums(torch.lt(x, 0, out=mask)))
    nothing = torch.zeros((), dtype=torch.float64)
    return torch.stack([torch.cat(x).sum(dtype=torch.float64) if x else nothing for x in sums])


def takeuchi_of_all(squares: list[Tensor], h: list[Tensor], epsilon: float) -> Tensor:
    """Return the numbers of several parameters, [P, 3] float64, by few launches and without a look at them."""
    terms = torch._foreach_div(squares, torch._foreach_add(h, epsilon))
    weak = torch._foreach_sub(h, 10 * epsilon)
    torch._foreach_clamp_max_(weak, 0)
    torch._foreach_sign_(weak)  # -1 where curvature is weak, else 0
    negative = torch._foreach_clamp_max(h, 0)
    torch._foreach_sign_(negative)
    doubtful, below = torch._foreach_mul(weak, terms), torch._foreach_clamp_max(terms, 0)
    found = lengths([*terms, *doubtful, *negative, *below]).view(4, -1)  # all at once, see `signed_sums`
    found[0].sub_(found[3], alpha=2)
    return found[:3].T
