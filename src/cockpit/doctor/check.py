"""Check: one thing looked at, how it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Check:
    """``found`` says how it is; ``advice`` what to do, where something is to be done."""

    name: str
    state: State
    found: str
    advice: str = ""
