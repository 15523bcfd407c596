"""Histogram kernels in C, compiled on first use; everything works without them, more slowly."""

from cockpit.engine.native.histogram import count, count_outer, status

__all__ = ["count", "count_outer", "status"]
