"""Kernels in C, compiled on first use; everything works without them, more slowly."""

from cockpit.engine.native.batch_norm import batch_norm_twice
from cockpit.engine.native.fused import block_statistics, outer_statistics
from cockpit.engine.native.gelu import gelu_twice
from cockpit.engine.native.histogram import count, count_outer, places
from cockpit.engine.native.images import Taps, patches
from cockpit.engine.native.library import is_there, serves, status
from cockpit.engine.native.normed import scale_and_shift
from cockpit.engine.native.seen import look
from cockpit.engine.native.softmax import softmax_columns, softmax_twice
from cockpit.engine.native.vectors import combine, copied, inner, lengths, negated, square_sums, takeuchi

__all__ = [
    "Taps",
    "batch_norm_twice",
    "block_statistics",
    "combine",
    "copied",
    "count",
    "count_outer",
    "gelu_twice",
    "inner",
    "is_there",
    "lengths",
    "look",
    "negated",
    "outer_statistics",
    "patches",
    "places",
    "scale_and_shift",
    "serves",
    "softmax_columns",
    "softmax_twice",
    "square_sums",
    "status",
    "takeuchi",
]
