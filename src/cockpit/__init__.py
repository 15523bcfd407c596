"""Cockpit: a debugger for the training of neural networks.

>>> from cockpit import Cockpit, Run  # doctest: +SKIP
>>> cockpit = Cockpit(model, optimizer, config="economy")  # doctest: +SKIP

Names are imported when first used, so reading a run never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cockpit.version import __version__

if TYPE_CHECKING:
    from cockpit.errors import CockpitError
    from cockpit.quantities.alpha import Alpha
    from cockpit.quantities.bins import GradAbsMax, GradQuantile, NoAdaptation, ParamAbsMax
    from cockpit.quantities.cabs import CABS
    from cockpit.quantities.distance import Distance
    from cockpit.quantities.early_stopping import EarlyStopping
    from cockpit.quantities.grad_hist1d import GradHist1d
    from cockpit.quantities.grad_hist2d import GradHist2d
    from cockpit.quantities.grad_norm import GradNorm
    from cockpit.quantities.hess_max_ev import HessMaxEV
    from cockpit.quantities.hess_trace import HessTrace
    from cockpit.quantities.inner_test import InnerTest
    from cockpit.quantities.loss import Loss
    from cockpit.quantities.mean_gsnr import MeanGSNR
    from cockpit.quantities.norm_test import NormTest
    from cockpit.quantities.ortho_test import OrthoTest
    from cockpit.quantities.parameters import Parameters
    from cockpit.quantities.tic_diag import TICDiag
    from cockpit.quantities.tic_trace import TICTrace
    from cockpit.quantities.time import Time
    from cockpit.quantities.update_size import UpdateSize
    from cockpit.schedule import at, every, log_spaced
    from cockpit.session import Cockpit, attach
    from cockpit.store.record import Event, Histogram, Record
    from cockpit.store.run import Run, Series

_HOME = {
    "session": ("Cockpit", "attach"),
    "errors": ("CockpitError",),
    "schedule": ("at", "every", "log_spaced"),
    "store.run": ("Run", "Series"),
    "store.record": ("Event", "Histogram", "Record"),
    "quantities.bins": ("GradAbsMax", "GradQuantile", "NoAdaptation", "ParamAbsMax"),
    "quantities.alpha": ("Alpha",),
    "quantities.cabs": ("CABS",),
    "quantities.distance": ("Distance",),
    "quantities.early_stopping": ("EarlyStopping",),
    "quantities.grad_hist1d": ("GradHist1d",),
    "quantities.grad_hist2d": ("GradHist2d",),
    "quantities.grad_norm": ("GradNorm",),
    "quantities.hess_max_ev": ("HessMaxEV",),
    "quantities.hess_trace": ("HessTrace",),
    "quantities.inner_test": ("InnerTest",),
    "quantities.loss": ("Loss",),
    "quantities.mean_gsnr": ("MeanGSNR",),
    "quantities.norm_test": ("NormTest",),
    "quantities.ortho_test": ("OrthoTest",),
    "quantities.parameters": ("Parameters",),
    "quantities.tic_diag": ("TICDiag",),
    "quantities.tic_trace": ("TICTrace",),
    "quantities.time": ("Time",),
    "quantities.update_size": ("UpdateSize",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", *sorted(_MODULE_OF)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'cockpit' has no attribute {name!r}")
    return getattr(import_module(f"cockpit.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
