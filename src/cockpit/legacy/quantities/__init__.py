"""The original's quantities: ``Quantity(track_schedule, verbose=False, …)``."""

from cockpit.legacy.quantities.curvature import HessMaxEV, HessTrace, TICDiag, TICTrace
from cockpit.legacy.quantities.grad_hist import GradHist1d, GradHist2d
from cockpit.legacy.quantities.noise import CABS, EarlyStopping, InnerTest, MeanGSNR, NormTest, OrthoTest
from cockpit.legacy.quantities.plain import GradNorm, Loss, Parameters, Time
from cockpit.legacy.quantities.steps import Alpha, Distance, UpdateSize

__all__ = [
    "CABS",
    "Alpha",
    "Distance",
    "EarlyStopping",
    "GradHist1d",
    "GradHist2d",
    "GradNorm",
    "HessMaxEV",
    "HessTrace",
    "InnerTest",
    "Loss",
    "MeanGSNR",
    "NormTest",
    "OrthoTest",
    "Parameters",
    "TICDiag",
    "TICTrace",
    "Time",
    "UpdateSize",
]
