r"""The sums of the Takeuchi criterion's diagonal form: $\sum_j s_j / (h_j + \epsilon)$, and how far to trust it.

Of a parameter three numbers: the sum; what of it rests on curvature $h_j < 10\epsilon$, in absolute values; and how
many $h_j$ are negative. Masks are for short tensors: on a CPU they take several times as long as arithmetic, and there
are none for many tensors at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit.engine.curvature import wide_dtype
from cockpit.engine.sums import lengths, signed_sums, wide_sum

SHORT = 2**14
"""Up to so many numbers, what counts on a CPU is how many operations they take."""
PIECE = 2**18
"""How many numbers are looked at together on a CPU, so that what is formed of them stays in its cache."""


def takeuchi(squares: Tensor, h: Tensor, epsilon: float) -> Tensor:
    """Return the three numbers of a parameter, [3] float64."""
    if h.device.type != "cpu" or h.numel() <= SHORT:
        dtype = wide_dtype(h.device)
        terms = squares / (h + epsilon)
        doubtful = terms.masked_fill(h >= 10 * epsilon, 0).abs_()
        return torch.stack([x.sum(dtype=dtype) for x in (terms, doubtful, h < 0)])
    pieces = zip(squares.reshape(-1).split(PIECE), h.reshape(-1).split(PIECE), strict=True)
    room = torch.empty(2, min(PIECE, h.numel()), dtype=torch.promote_types(squares.dtype, h.dtype))
    found = [_of_piece(s, x, epsilon, *room[:, : len(x)]) for s, x in pieces]
    return found[0] if len(found) == 1 else torch.stack(found).sum(0)


def _of_piece(squares: Tensor, h: Tensor, epsilon: float, terms: Tensor, weak: Tensor) -> Tensor:
    """Return the numbers of some elements; looks first whether there is any weak curvature among them.

    ``terms`` and ``weak`` are room to work in: memory that is new to the process takes longer to get than to fill.
    """
    torch.div(squares, torch.add(h, epsilon, out=terms), out=terms)
    total = wide_sum(terms)
    doubtful = negative = torch.zeros_like(total)
    least = float(h.amin())
    if not least >= 10 * epsilon:
        torch.sub(h, 10 * epsilon, out=weak).clamp_max_(0).sign_().mul_(terms)
        doubtful = wide_sum(weak.abs_())
    if least < 0:
        negative = -wide_sum(torch.clamp_max(h, 0, out=weak).sign_())
    return torch.stack([total, doubtful, negative])


def takeuchi_of_all(squares: list[Tensor], h: list[Tensor], epsilon: float) -> Tensor:
    """Return the numbers of several parameters, [P, 3] float64, by few launches and without a look at them."""
    terms = torch._foreach_div(squares, torch._foreach_add(h, epsilon))
    weak = torch._foreach_sub(h, 10 * epsilon)
    torch._foreach_clamp_max_(weak, 0)
    torch._foreach_sign_(weak)  # -1 where curvature is weak, else 0
    negative = torch._foreach_clamp_max(h, 0)
    torch._foreach_sign_(negative)
    doubtful = torch._foreach_mul(weak, terms)
    return torch.stack([signed_sums(terms), lengths(doubtful), lengths(negative)], 1)
