"""Counting and reducing on a GPU by Triton kernels: exact counts, no wait for the device, the same bits every time.

Everything works without them, more slowly: `supports` says whether they can take a grid and tensors. A first call
compiles and uploads the grid; later calls can be captured in a CUDA graph.
"""

from cockpit.engine.kernels.block import MOST_DIRECTIONS, block_statistics
from cockpit.engine.kernels.counting import count, count_outer, supports
from cockpit.engine.kernels.language import available, runs_on
from cockpit.engine.kernels.products import Products, product_statistics, shifts_on
from cockpit.engine.kernels.segments import segment_statistics

__all__ = [
    "MOST_DIRECTIONS",
    "Products",
    "available",
    "block_statistics",
    "count",
    "count_outer",
    "product_statistics",
    "runs_on",
    "segment_statistics",
    "shifts_on",
    "supports",
]
