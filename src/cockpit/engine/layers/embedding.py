r"""Embedding tables: every look-up touches one row.

$g_i = \sum_t e_{\mathrm{id}_{it}} \delta_{it}^\top$; for a bag, $\delta$ is the bag's, repeated for its
entries with their weights. ``max_norm`` rescales rows before the look-up and outside of differentiation, so
it changes nothing here.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.engine.gradients.parts import Part, Rows
from cockpit.engine.layers.formula import Call, formula
from cockpit.engine.numbers.precision import wide


def _by_frequency(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if module.scale_grad_by_freq:
        return (
            "scale_grad_by_freq divides by counts over the whole batch: no example has a gradient of its own"
        )
    return None


@formula(nn.Embedding, features=1, refuses=_by_frequency)
def embedding(call: Call) -> dict[str, Part]:
    """Keep ids and output gradients; the padding row receives nothing."""
    m = call.module
    assert isinstance(m, nn.Embedding)
    ids, b = call.split(call.input, 0).long(), wide(call.split(call.grad, 1))
    if m.padding_idx is not None:
        b = b.masked_fill((ids == m.padding_idx)[..., None], 0)
    return {"weight": Rows(ids, b, m.weight.shape)}


@formula(nn.EmbeddingBag, features=1, refuses=_by_frequency)
def embedding_bag(call: Call) -> dict[str, Part]:
    """Give every entry of a bag its share of the bag's gradient: weight, 1/size, or 1 for the maximum."""
    m, given = call.module, call.arguments
    assert isinstance(m, nn.EmbeddingBag)
    ids, offsets, weights = given["input"].long(), given["offsets"], given["per_sample_weights"]
    share = torch.ones_like(ids, dtype=wide(call.grad).dtype) if weights is None else wide(weights)
    if ids.ndim == 1:
        ids, share = _padded(m, ids, share, offsets)
    ids, share = call.split(ids, 1), call.split(share, 1)  # [N, bags, entries]
    if m.padding_idx is not None:
        share = share.masked_fill(ids == m.padding_idx, 0)
    dy = wide(call.split(call.grad, 1))[:, :, None]
    if m.mode == "mean":
        share = share / share.sum(2, keepdim=True).clamp_min(1)
    b = share[..., None] * dy
    if m.mode == "max":
        b = b * _first_largest(wide(m.weight.detach())[ids], share > 0)
    return {"weight": Rows(ids.flatten(1), b.flatten(1, 2), m.weight.shape)}


def _padded(m: nn.EmbeddingBag, ids: Tensor, share: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Lay bags of different sizes into a rectangle [bags, largest]; what fills up has no share."""
    starts = offsets.long()
    ends = starts[1:] if m.include_last_offset else torch.cat([starts[1:], starts.new_tensor([len(ids)])])
    starts = starts[: len(ends)]
    largest = max(1, int((ends - starts).max()))
    entry = starts[:, None] + torch.arange(largest, device=ids.device)
    inside = entry < ends[:, None]
    entry = torch.where(inside, entry, 0)
    if len(ids) == 0:  # only empty bags
        return entry, torch.zeros_like(entry, dtype=share.dtype)
    return ids[entry], share[entry] * inside


def _first_largest(values: Tensor, counts: Tensor) -> Tensor:
    """Mark, for each bag and feature, the first entry with the largest value, [N, bags, entries, O]."""
    values = values.masked_fill(~counts[..., None], -torch.inf)
    largest = (values == values.amax(2, keepdim=True)) & counts[..., None]
    return largest & (largest.cumsum(2) == 1)
