"""Instruments: what a run says, as charts that any renderer can draw. One file each, pure over a run."""
