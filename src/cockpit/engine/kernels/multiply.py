"""The kernel of `cockpit.engine.kernels.products`: a tile of the gradients of several examples, one after another.

Sums of squares over these examples stay in registers until the last of them.

What belongs to the tile and not to the example is loaded once: its place, and (where pixels are few, so that loading it
would take longer than multiplying) the directions' tiles. Lanes hardly wait for each other: sums over rows of a tile
are written out, to be added up by a second kernel, and values are counted in shared memory.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from cockpit.engine.kernels.cells import added_ones, cells_of, opened_cells
from cockpit.engine.kernels.index import add_cells, add_rows, cell_of, head_of, row_of
from cockpit.engine.kernels.language import jit, tl


@jit()
def fitting(bits):
    """Return the exponent field of the power of two that takes numbers up to this one (as bits) to about 2¹⁴."""
    return tl.minimum(268 - ((bits >> 23) & 255), 254)


@jit()
def _power(exponent):
    """Return the float32 of this exponent field."""
    return (exponent << 23).to(tl.float32, bitcast=True)


@jit("taps", "bins", "columns", "stride", "examples", "per", "factor")
def multiplied(
    b,
    a,
    greatest,
    shifts,
    v0,
    v1,
    v2,
    wheres,
    partial,
    out,
    table,
    squares,
    outputs,
    inputs,
    uses,
    taps,
    b_n,
    b_o,
    b_k,
    a_n,
    a_i,
    a_k,
    examples,
    per,
    bins,
    columns,
    stride,
    factor,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    USES: tl.constexpr,
    DIRECTIONS: tl.constexpr,
    SIZE: tl.constexpr,
    OPENED: tl.constexpr,
    WORDS: tl.constexpr,
    LANES: tl.constexpr,
    WAY: tl.constexpr,
    PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
    HOLD: tl.constexpr,
    EVEN: tl.constexpr,
    FULL: tl.constexpr,
    ONCE: tl.constexpr,
    SQUARES: tl.constexpr,
    NORMS: tl.constexpr,
    PLACED: tl.constexpr,
    UNIT: tl.constexpr,
) -> None:
    """Multiply and look; ``EVEN``: uses are whole loads, ``FULL``: the gradient is whole tiles, ``ONCE``: one load.

    ``NORMS``: squares of an example are added up. ``PLACED``: values are counted by the column of each element,
    ``wheres``, in rows of ``stride`` cells.
    """
    across = tl.cdiv(inputs, INPUTS)
    tile = tl.program_id(0)
    tap = tile % taps
    first_i, first_o = (tile // taps) % across * INPUTS, (tile // taps) // across * OUTPUTS
    i, o = first_i + tl.arange(0, INPUTS), first_o + tl.arange(0, OUTPUTS)
    k, lane = tl.arange(0, USES), tl.arange(0, OUTPUTS)
    move = tl.load(shifts + tap).to(tl.int64) * a_k
    known_o, known_i = (o < outputs)[:, None], (i < inputs)[None, :]
    inside = known_o & known_i
    place = (tap.to(tl.int64) * outputs + o)[:, None] * inputs + i[None, :]
    if HOLD:
        if DIRECTIONS > 0:
            w0 = tl.load(v0 + place, mask=inside, other=0.0)
        if DIRECTIONS > 1:
            w1 = tl.load(v1 + place, mask=inside, other=0.0)
        if DIRECTIONS > 2:
            w2 = tl.load(v2 + place, mask=inside, other=0.0)
        if PLACED:
            where = tl.load(wheres + place, mask=inside, other=-1)
    if SIZE > 0:
        below, above, high, scale, origin, shift = head_of(table)
        counters = opened_cells(OPENED, WORDS, LANES)
    if SQUARES:
        square = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    first = tl.program_id(1).to(tl.int64) * per
    lefts = b + o.to(tl.int64)[:, None] * b_o + k[None, :] * b_k
    rights = a + move + i.to(tl.int64)[None, :] * a_i + k[:, None] * a_k
    for turn in range(0, tl.minimum(per, examples - first.to(tl.int32))):
        n = first + turn
        left = lefts + n * b_n
        right = rights + n * a_n
        g = tl.zeros([OUTPUTS, INPUTS], tl.float32)
        if ONCE:  # then the next example is loaded while this one is looked at
            x = tl.load(left, mask=known_o & (k < uses)[None, :], other=0.0)
            y = tl.load(right, mask=known_i & (k < uses)[:, None], other=0.0)
            g = tl.dot(x, y, g, input_precision=PRECISION)
        else:
            for start in range(0, uses, USES):
                if EVEN:
                    if FULL:
                        x = tl.load(left)
                        y = tl.load(right)
                    else:
                        x = tl.load(left, mask=known_o, other=0.0)
                        y = tl.load(right, mask=known_i, other=0.0)
                else:
                    there = start + k < uses
                    x = tl.load(left, mask=known_o & there[None, :], other=0.0)
                    y = tl.load(right, mask=known_i & there[:, None], other=0.0)
                g = tl.dot(x, y, g, input_precision=PRECISION)
                left += USES * b_k
                right += USES * a_k
        if not FULL:
            g = tl.where(inside, g, 0.0)  # beyond the gradient, zeros have met infinities
        at = partial + (n * tl.num_programs(0) + tile) * OUTPUTS + lane
        size = examples.to(tl.int64) * tl.num_programs(0) * OUTPUTS
        if NORMS:
            tl.store(at, tl.sum(g * g, axis=1))
        if DIRECTIONS > 0:
            if not HOLD:
                w0 = tl.load(v0 + place, mask=inside, other=0.0)
            tl.store(at + size, tl.sum(g * w0, axis=1))
        if DIRECTIONS > 1:
            if not HOLD:
                w1 = tl.load(v1 + place, mask=inside, other=0.0)
            tl.store(at + 2 * size, tl.sum(g * w1, axis=1))
        if DIRECTIONS > 2:
            if not HOLD:
                w2 = tl.load(v2 + place, mask=inside, other=0.0)
            tl.store(at + 3 * size, tl.sum(g * w2, axis=1))
        if (
            PACKED
        ):  # sums are taken of scaled values; these are scaled back one after the other, lest they overflow
            g = g * (_power(254 - fitting(tl.load(greatest + n))) * factor)
            g = g * _power(254 - fitting(tl.load(greatest + examples + n)))
        else:
            g = g * factor
        if SQUARES:
            square += g * g
        if SIZE > 0:
            if PLACED:
                if not HOLD:
                    where = tl.load(wheres + place, mask=inside, other=-1)
                row = cell_of(g, where, bins, stride, table, below, above, high, scale, origin, shift, WAY)
                if not FULL:
                    row = tl.where(inside, row, (bins + 4) * stride)
            else:
                row = row_of(g, bins, table, below, above, high, scale, origin, shift, WAY)
                if not FULL:
                    row = tl.where(inside, row, bins + 4)
            counters = added_ones(counters, row, WORDS)
    if SQUARES:
        whole = (taps * outputs).to(tl.int64) * inputs
        tl.store(squares + tl.program_id(1) * whole + place, square, mask=inside)
    if PLACED:
        add_cells(counters, out, bins, columns, stride, UNIT, LANES)
    elif SIZE > 0:
        add_rows(cells_of(counters, tl.arange(0, SIZE), LANES), out, bins, 1, SIZE, True)


@jit("examples", "length", "factor")
def added_up(
    partial, greatest, sums, examples, length, factor, PACKED: tl.constexpr, CHUNK: tl.constexpr
) -> None:
    """Add an example's sums over rows up in float64, and scale them: those of squares (the first) twice."""
    n, which = tl.program_id(0), tl.program_id(1)
    at = partial + (which.to(tl.int64) * examples + n) * length
    total = tl.zeros([CHUNK], tl.float64)
    for start in range(0, length, CHUNK):
        k = start + tl.arange(0, CHUNK)
        total += tl.load(at + k, mask=k < length, other=0.0).to(tl.float64)
    unit = factor
    if PACKED:
        of_b, of_a = fitting(tl.load(greatest + n)), fitting(tl.load(greatest + examples + n))
        unit = unit * ((1277 - of_b - of_a).to(tl.int64) << 52).to(tl.float64, bitcast=True)
    found = tl.sum(total, axis=0) * unit
    tl.store(sums + which * examples + n, tl.where(which == 0, found * unit, found))
