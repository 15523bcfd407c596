r"""Norms, projections and counts of gradients that are sums of outer products, without writing the gradients out.

$g_n[o, i, t] = \sum_k b_n[o, k]\, a_n[i, k + s_t]$: a convolution over pixels k of padded images, with a shift for each
tap t of its kernel. A program multiplies one tile of one example's gradient after another, looks at each while it is in
registers, and forgets it. Products of half precision are exact; those of float32 are split into three of
TensorFloat-32, which keeps float32's accuracy, unless fewer bits are asked for. Sums over a row of a tile are float32,
from there on float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cockpit.engine.kernels.cells import ALIGNED, declared
from cockpit.engine.kernels.constants import constant
from cockpit.engine.kernels.language import INTERPRETED, on_device, programs
from cockpit.engine.kernels.multiply import added_up, multiplied
from cockpit.engine.kernels.rows import prepared
from cockpit.engine.numbers.binning import EXTRA, Grid

FEW = 256
"""Up to so many terms of a sum, directions take longer to load than factors."""
STAGES = 4
"""Loads on their way."""
UNIT = 1024
"""Counters of cells that are read at once."""
PER_PROCESSOR = 8
"""Programs that keep a multiprocessor busy to the end; more examples than that leaves are for the same program."""


@dataclass(frozen=True, eq=False)
class Products:
    """Individual gradients as products: ``b`` [N, O, K], ``a`` [N, I, ≥ K], ``shifts`` [T] int32 into a's last axis.

    Elements of the gradients are in the order [O, I, T], all times ``factor``. ``rough``: products of float32 may be
    rounded to TensorFloat-32, as the training's own are. ``greatest`` [2, N]: b and a are scaled to half precision as
    in `cockpit.engine.kernels.packing`, by these.
    """

    b: Tensor
    a: Tensor
    shifts: Tensor
    rough: bool = False
    factor: float = 1.0
    greatest: Tensor | None = None


def rounds(backend: Any) -> bool:
    """Say whether a backend of the training multiplies float32 numbers in TensorFloat-32."""
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:  # it was set by the newer interface; then this one may not be asked
        return bool(backend.fp32_precision == "tf32")


def shifts_on(device: torch.device, *shifts: int) -> Tensor:
    """Return shifts as a tensor; a recorded launch must not wait for a copy."""
    return constant(shifts, torch.int32, device)


class Tile(NamedTuple):
    """How a program works: its part of a gradient, uses loaded at once, warps, most examples, directions held.

    ``registers``: as many as a lane may use, so that more programs run at once.
    """

    outputs: int
    inputs: int
    uses: int
    warps: int
    examples: int
    hold: bool
    registers: int | None


def tile_of(outputs: int, inputs: int, taps: int, uses: int, packed: bool) -> Tile:
    """Return the tile that measured fastest (on an H200, with the convolutions of a ResNet-50)."""
    hold = uses <= FEW
    tall = 128 if outputs > 64 and not packed else 64 if outputs > 32 else 32
    wide = 64 if inputs > 32 else 32
    if not hold and (packed or taps > 1) and -inputs % 128 < 64:  # less than half of the last tile is empty
        wide = 128
    # (More would hold what others hold, too, and count it again.)
    warps = 8 if tall * wide > 4096 and not packed else 4 if tall > 32 else 2
    examples, registers = (16, 168 if packed else None) if hold else (4, None)
    return Tile(tall, wide, 64 if packed else 32, warps, examples, hold, registers)


UNASKED = 48 * 1024
"""Bytes of shared memory that a program has without asking; Triton asks where its own share alone is larger."""
_stages: dict[Any, int] = {}
"""How many loads are on their way, by kind of launch."""


def _stages_of(kind: Any, warm: Callable[[int], Any], counters: int) -> int:
    """Return how many loads are on their way, so that the compiler's share and the counters fit in shared memory.

    ``warm`` compiles for so many. What is on its way, and what else lies in shared memory, is the compiler's choice.
    """
    if kind not in _stages:
        _stages[kind] = STAGES
        for stages in range(STAGES, 0, -1) if not INTERPRETED else ():
            shared = warm(stages).metadata.shared
            if shared > UNASKED or shared + 4 * counters <= UNASKED:
                _stages[kind] = stages
                break
    return _stages[kind]


_counted: set[Any] = set()
"""Kinds of launches that have counted every element once."""


def _check(counts: Tensor, elements: int, kind: Any) -> None:
    """Count what was counted, the first time: compilers decide how many lanes hold an element."""
    if kind in _counted or (counts.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    if (found := int(counts.sum())) != elements:
        raise RuntimeError(f"{found} of {elements} elements were counted")
    _counted.add(kind)


def product_statistics(
    products: Products,
    directions: Sequence[Tensor] = (),
    grid: Grid | None = None,
    squares: Tensor | None = None,
    place: Tensor | None = None,
    norms: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    r"""Return $\|g_n\|^2$ [N] and $g_n^\top v_j$ [N, k] as float64, and counts of all elements as from `count`.

    ``place``: the columns of elements, int32 [O, I, T] in any shape, where the grid has several. Without ``norms``
    neither these nor projections are taken.

    To ``squares``, float32 [O, I, T] in any shape, $\sum_n g_n \odot g_n$ is added.
    """
    b, a = products.b.detach(), products.a.detach()
    n, outputs, uses = b.shape
    inputs, taps = a.shape[1], len(products.shifts)
    tile = tile_of(outputs, inputs, taps, uses, products.greatest is not None)
    tiles = taps * -(-outputs // tile.outputs) * -(-inputs // tile.inputs)
    looks = 1 + len(directions) if norms else 0
    partial = torch.empty(looks, n, tiles * tile.outputs, dtype=torch.float32, device=b.device)
    sums = torch.zeros(looks, n, dtype=torch.float64, device=b.device)
    out, rows = None, None
    if grid is not None:
        out = torch.zeros(grid.bins * grid.columns + EXTRA, dtype=torch.int64, device=b.device)
        rows = prepared(grid, False, b.device)
    # the taps first: neighbours in memory are neighbours in a tile
    given = [*directions, *(() if place is None else (place,))]
    vectors = [v.detach().view(outputs, inputs, taps).movedim(2, 0).contiguous() for v in given]
    wheres = partial if place is None else vectors.pop()
    v0, v1, v2 = (vectors + 3 * [partial])[:3]
    stride = 0 if grid is None else grid.columns | 1
    size = 0 if rows is None else rows.size
    if grid is not None and place is not None:
        size = (grid.bins + EXTRA + 1) * stride
    if n * tiles:
        per = max(1, min(tile.examples, tiles * n // programs(b, tiles * n, PER_PROCESSOR)))
        groups = -(-n // per)
        by_group = partial
        if squares is not None:
            by_group = torch.empty(groups, taps, outputs, inputs, dtype=torch.float32, device=b.device)
        arguments = (
            *(b, a, partial if products.greatest is None else products.greatest, products.shifts),
            *(v0, v1, v2, wheres, partial),
            *(partial if out is None else out, partial if rows is None else rows.table, by_group),
            *(outputs, inputs, uses, taps, *b.stride(), *a.stride(), n, per),
            *((0, 0) if grid is None else (grid.bins, grid.columns)),
            *(stride, float(products.factor)),
        )
        options: dict[str, Any] = {
            "OUTPUTS": tile.outputs,
            "INPUTS": tile.inputs,
            "USES": tile.uses,
            "DIRECTIONS": len(directions),
            "SIZE": 0 if rows is None else rows.size,
            **declared(size, tile.warps, ALIGNED if place is None else UNIT),
            "WAY": "" if rows is None else rows.way,
            "PRECISION": "tf32" if products.rough or b.dtype != torch.float32 else "tf32x3",
            "PACKED": products.greatest is not None,
            "HOLD": tile.hold,
            "EVEN": uses % tile.uses == 0,
            "FULL": outputs % tile.outputs == 0 and inputs % tile.inputs == 0,
            "ONCE": uses <= tile.uses,
            "SQUARES": squares is not None,
            "NORMS": norms,
            "PLACED": place is not None,
            "UNIT": UNIT,
            "maxnreg": tile.registers if squares is None else None,
            "enable_fp_fusion": rows is None or rows.way == "down",
        }
        with on_device(b):
            stages = _stages_of(
                (b.dtype, b.device, *(x % 16 for x in (*b.stride(), *a.stride())), *options.values()),
                lambda stages: multiplied.warmup(*arguments, grid=(1,), num_stages=stages, **options),
                options["WORDS"],
            )
            multiplied[(tiles, groups)](*arguments, num_stages=stages, **options)
            if norms:
                added_up[(n, looks)](
                    *(partial, partial if products.greatest is None else products.greatest, sums),
                    *(n, partial.shape[2], float(products.factor)),
                    PACKED=products.greatest is not None,
                    CHUNK=1024,
                    num_warps=4,
                    enable_fp_fusion=True,
                )
        if out is not None:
            _check(
                out,
                n * outputs * inputs * taps,
                (tile, b.dtype, inputs % tile.inputs, outputs % tile.outputs, place is None),
            )
        if squares is not None:
            squares.view(outputs, inputs, taps).add_(by_group.sum(0).movedim(0, 2))
    return sums[:1].flatten(), sums[1:].T, out
