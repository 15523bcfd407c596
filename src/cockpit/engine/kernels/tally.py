"""Counters in shared memory: a byte for each row and lane of a program of four warps.

A lane has counters of its own, in a bank of its own: byte ``w`` of word ``l`` of a row is that of lane ``l`` of warp
``w``. So nothing is contended for and there are no atomics: counting takes as long for equal values as for spread ones,
and no longer than reading them from memory. A byte holds 255; before there may be more, the rows are added up.

Triton has no words for private memory, so the few instructions are PTX. Its interpreter knows no PTX: there, counters
are a tensor, which a kernel passes from function to function.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from cockpit.engine.kernels.language import INTERPRETED, constexpr, jit, tl

LANES, WARPS = 128, 4
LEAST, MOST = 4, 255
"""Values of a lane that are counted in one call, at least, and before the counters are read, at most."""
SIZES = (128, 256)
"""Rows that there may be; 128 bytes each."""
BYTES = LANES * SIZES[1]
"""Counters that there are where they are told apart."""

_ADDRESS = "mov.u32 base, %tid.x; mov.u32 u, cockpit_counters; "
_OWN = (
    _ADDRESS
    + "and.b32 c, base, 31; shr.u32 base, base, 5; shl.b32 c, c, 2; add.u32 base, base, c; add.u32 base, base, u;\n"
)
_ADD = "mad.lo.u32 u, {row}, 128, base; ld.shared.u8 c, [u]; add.u32 c, c, 1; st.shared.u8 [u], c;\n"


def _asm(*lines: str) -> str:
    return "{ .reg .b32 base, u, c, sum; " + "".join(lines) + "}"


def _cleared(size: int) -> str:
    zeros = "".join(f"st.shared.v4.b32 [base+{16 * LANES * k}], {{c, c, c, c}};\n" for k in range(size // 16))
    return _asm(
        _ADDRESS,
        f"shl.b32 base, base, 4; add.u32 base, base, u; mov.b32 c, 0;\n{zeros}bar.sync 0; mov.b32 $0, 0;",
    )


def _declared(size: int) -> str:
    return f".shared .align 16 .b8 cockpit_counters[{128 * size}];\n" + _cleared(size)


DECLARED, DECLARED_MORE = constexpr(_declared(SIZES[0])), constexpr(_declared(SIZES[1]))
CLEARED, CLEARED_MORE = constexpr(_cleared(SIZES[0])), constexpr(_cleared(SIZES[1]))
COUNTED = constexpr(_asm(_OWN, *(_ADD.format(row=f"${k}") for k in (1, 2, 3, 4)), "mov.b32 $0, 0;"))
COUNTED_AT = constexpr(
    _asm(
        "mov.u32 base, cockpit_counters; add.u32 u, base, $1; ld.shared.u8 c, [u]; add.u32 c, c, 1; "
        "st.shared.u8 [u], c; mov.b32 $0, 0;"
    )
)
# each lane begins at another word of its row, so that their banks differ
ADDED = constexpr(
    _asm(
        "bar.sync 0; mov.u32 base, cockpit_counters; mad.lo.u32 base, $1, 128, base; mov.b32 sum, 0;\n",
        *(
            f"add.u32 u, $1, {k}; and.b32 u, u, 31; shl.b32 u, u, 2; add.u32 u, u, base; "
            "ld.shared.u32 c, [u]; dp4a.u32.u32 sum, c, 16843009, sum;\n"
            for k in range(32)
        ),
        "bar.sync 0; mov.b32 $0, sum;",
    )
)
WORD = constexpr(
    _asm("mov.u32 base, cockpit_counters; add.u32 base, base, $1; ld.shared.u32 c, [base]; mov.b32 $0, c;")
)
BARRIER = constexpr("bar.sync 0; mov.b32 $0, 0;")

if INTERPRETED:

    @jit()
    def opened(SIZE: tl.constexpr):
        """Return counters of rows; to be called once, first."""
        return tl.zeros([SIZE], tl.int32)

    @jit()
    def tallied(counters, row, SIZE: tl.constexpr):
        """Count values by their rows, `LEAST` or more for each lane."""
        return counters + tl.histogram(tl.reshape(row, [row.numel]), SIZE)

    @jit()
    def summed(counters, sums, SIZE: tl.constexpr):
        """Return counters of zero, and sums [SIZE] to which they have been added."""
        return tl.zeros([SIZE], tl.int32), sums + counters

    @jit()
    def opened_bytes():
        """Return counters that are told apart, `BYTES` of them; to be called once, first, instead of `opened`."""
        return tl.zeros([32768], tl.int32)

    @jit()
    def tallied_at(counters, at):
        """Count one value for each counter; no two of them are the same."""
        return counters + tl.histogram(at, 32768)

    @jit()
    def read(counters, at):
        """Return words of four counters, those from each place on."""
        words = tl.zeros([at.numel], tl.int32)
        for k in tl.static_range(4):
            words += tl.gather(counters, tl.reshape(at, [at.numel]) + k, 0) << (8 * k)
        return tl.reshape(words, at.shape)

    @jit()
    def cleared(counters):
        """Return counters of zero."""
        return tl.zeros([32768], tl.int32)

else:

    @jit()
    def opened(SIZE: tl.constexpr):
        """Return counters of rows; to be called once, first."""
        asm: tl.constexpr = DECLARED if SIZE == 128 else DECLARED_MORE
        return tl.inline_asm_elementwise(
            asm, "=r,r", [tl.arange(0, 128)], dtype=tl.int32, is_pure=False, pack=1
        )

    @jit()
    def tallied(counters, row, SIZE: tl.constexpr):
        """Count values by their rows, `LEAST` or more for each lane."""
        tl.inline_asm_elementwise(COUNTED, "=r,r,r,r,r", [row], dtype=tl.int8, is_pure=False, pack=4)
        return counters

    @jit()
    def _clear(SIZE: tl.constexpr):
        asm: tl.constexpr = CLEARED if SIZE == 128 else CLEARED_MORE
        tl.inline_asm_elementwise(asm, "=r,r", [tl.arange(0, 128)], dtype=tl.int32, is_pure=False, pack=1)

    @jit()
    def summed(counters, sums, SIZE: tl.constexpr):
        """Return counters of zero, and sums [SIZE] to which they have been added."""
        sums += tl.inline_asm_elementwise(
            ADDED, "=r,r", [tl.arange(0, SIZE)], dtype=tl.int32, is_pure=False, pack=1
        )
        _clear(SIZE)
        return counters, sums

    @jit()
    def opened_bytes():
        """Return counters that are told apart, `BYTES` of them; to be called once, first, instead of `opened`."""
        return opened(256)

    @jit()
    def tallied_at(counters, at):
        """Count one value for each counter; no two of them are the same."""
        tl.inline_asm_elementwise(COUNTED_AT, "=r,r", [at], dtype=tl.int32, is_pure=False, pack=1)
        return counters

    @jit()
    def _wait():
        tl.inline_asm_elementwise(BARRIER, "=r,r", [tl.arange(0, 128)], dtype=tl.int32, is_pure=False, pack=1)

    @jit()
    def read(counters, at):
        """Return words of four counters, those from each place on."""
        _wait()
        return tl.inline_asm_elementwise(WORD, "=r,r", [at], dtype=tl.int32, is_pure=False, pack=1)

    @jit()
    def cleared(counters):
        """Return counters of zero."""
        _wait()
        _clear(256)
        return counters


@jit()
def tallied_in_turns(counters, sums, turn, row, SIZE: tl.constexpr, TURN: tl.constexpr):
    """Count values like `tallied`, and add the counters to sums like `summed` at every ``TURN``th call."""
    counters = tallied(counters, row, SIZE)
    turn += 1
    if turn == TURN:
        turn = turn * 0
        counters, sums = summed(counters, sums, SIZE)
    return counters, sums, turn
