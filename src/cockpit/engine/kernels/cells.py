"""Counters of four bytes in shared memory, to which the lanes of a program add ones.

Adding a constant one, the hardware first counts the lanes of a warp that mean the same counter: it takes as long for
all of them in one as for all in different ones, and nothing comes back that would have to be waited for.

Triton has no words for this, so the few instructions are PTX. Its interpreter knows no PTX: there, counters are a
tensor, which a kernel passes from function to function.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from typing import Any

from cockpit.engine.kernels.language import INTERPRETED, constexpr, jit, tl

ALIGNED = 256
"""Counters are a multiple of these: what matrix units read lies behind them, and must begin at a whole 1024 bytes."""
LEAST = 4
"""Values of a lane that are counted in one call, at least."""


def declared(least: int, warps: int, unit: int = ALIGNED) -> dict[str, Any]:
    """Return what a kernel must be told for at least so many counters: a multiple of a unit."""
    units = -(-least // unit)
    if INTERPRETED:
        units = 1 << (units - 1).bit_length()
    asm = f".shared .align 16 .b8 cockpit_cells[{4 * unit * units}];\nmov.b32 $0, $1;" if least else ""
    return {"OPENED": asm, "WORDS": unit * units, "LANES": 32 * warps, "num_warps": warps}


def _asm(lines: str) -> str:
    return "{ .reg .b32 base, u; mov.u32 base, cockpit_cells; " + lines + "}"


_ADD = "mad.lo.u32 u, ${k}, 4, base; red.shared.add.u32 [u], 1; "
CLEARED = constexpr(_asm("mad.lo.u32 u, $1, 4, base; st.shared.u32 [u], 0; mov.b32 $0, 0; "))
ADDED_ONES = constexpr(_asm("".join(_ADD.format(k=k) for k in (1, 2, 3, 4)) + "mov.b32 $0, 0; "))
WAITED = constexpr("bar.sync 0; mov.b32 $0, 0;")
READ = constexpr(_asm("mad.lo.u32 u, $1, 4, base; ld.shared.u32 $0, [u]; "))

if INTERPRETED:

    @jit()
    def opened_cells(OPENED: tl.constexpr, WORDS: tl.constexpr, LANES: tl.constexpr):
        """Return counters of zero; to be called once, first."""
        return tl.zeros([WORDS], tl.int32)

    @jit()
    def added_ones(counters, at, WORDS: tl.constexpr):
        """Count what stands in a tile of counters' numbers, four or more for each lane."""
        return counters + tl.histogram(tl.reshape(at, [at.numel]), WORDS)

    @jit()
    def cells_of(counters, at, LANES: tl.constexpr):
        """Return counters; all lanes have counted by then."""
        return tl.gather(counters, at, 0)

else:

    @jit()
    def _wait(LANES: tl.constexpr):
        lane = tl.arange(0, LANES)
        tl.inline_asm_elementwise(WAITED, "=r,r", [lane], dtype=tl.int32, is_pure=False, pack=1)

    @jit()
    def opened_cells(OPENED: tl.constexpr, WORDS: tl.constexpr, LANES: tl.constexpr):
        """Return counters of zero; to be called once, first."""
        lane = tl.arange(0, LANES)
        lane = tl.inline_asm_elementwise(OPENED, "=r,r", [lane], dtype=tl.int32, is_pure=False, pack=1)
        for start in range(0, WORDS, LANES):
            tl.inline_asm_elementwise(CLEARED, "=r,r", [start + lane], dtype=tl.int32, is_pure=False, pack=1)
        _wait(LANES)
        return lane

    @jit()
    def added_ones(counters, at, WORDS: tl.constexpr):
        """Count what stands in a tile of counters' numbers, four or more for each lane."""
        tl.inline_asm_elementwise(ADDED_ONES, "=r,r,r,r,r", [at], dtype=tl.int8, is_pure=False, pack=4)
        return counters

    @jit()
    def cells_of(counters, at, LANES: tl.constexpr):
        """Return counters; all lanes have counted by then."""
        _wait(LANES)
        return tl.inline_asm_elementwise(READ, "=r,r", [at], dtype=tl.int32, is_pure=False, pack=1)
