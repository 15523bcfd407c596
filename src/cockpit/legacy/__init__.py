"""The interface of the original Cockpit (cockpit-for-pytorch 1.0) on today's engine.

A script for the original runs when its imports are changed: ``from cockpit import …`` becomes
``from cockpit.legacy import …``, and ``from backpack import extend`` becomes
``from cockpit.legacy import extend``.
"""

from cockpit.legacy import context, instruments, quantities, utils
from cockpit.legacy.cockpit import Cockpit
from cockpit.legacy.extension import extend
from cockpit.legacy.plotter import CockpitPlotter

__all__ = ["Cockpit", "CockpitPlotter", "context", "extend", "instruments", "quantities", "utils"]
