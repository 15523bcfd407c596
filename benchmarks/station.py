"""What a worker does: makes contestants, runs them, measures their memory. Its methods are the requests."""

from __future__ import annotations

import gc
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestants import make
from benchmarks.contestants.step import Step
from benchmarks.core import peak_bytes, timed
from benchmarks.problems import PROBLEMS
from benchmarks.problems.data import Data
from benchmarks.problems.problem import Scale, Training, training

Answer = dict[str, Any]
PEERS = ("cockpit-for-pytorch", "backpack-for-pytorch", "opacus", "curvlinops-for-pytorch", "pyhessian")


class Station:
    """The contestants of one problem at a time, by name and interval."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._data: dict[str | None, Data] = {}
        self._made: dict[tuple[str, int], Step] = {}

    def open(self, problem: str, device: str, data: str | None, scale: dict[str, int]) -> Answer:
        """Turn to a problem; answer what is known about it."""
        self._problem, self._device, self._scale = PROBLEMS[problem], device, Scale(**scale)
        self._folder = self._data.setdefault(data, Data(Path(data) if data else None))
        size = self._scale.batch or self._problem.size
        source = self._problem.batch(size, self._scale, self._folder)[2]
        weights = sum(p.numel() for p in self._problem.network(self._scale).parameters() if p.requires_grad)
        versions = {name: version for name in ("torch", *PEERS) if (version := _version(name))}
        return {"data": source, "batch": size, "weights": weights, "versions": versions}

    def prepare(self, environment: str, contestant: str, interval: int) -> Answer:
        """Make a contestant."""
        self._made[contestant, interval] = make(environment, contestant, self._training(), interval)
        return {}

    def run(self, contestant: str, interval: int, steps: int) -> Answer:
        """Run some steps; answer what they took."""
        one = self._made[contestant, interval]
        times = timed(one.step, steps, self._device, one.settle)
        return {"steps": times.steps, "wall": times.wall, "process": times.process}

    def finish(self, contestant: str, interval: int) -> Answer:
        """Close a contestant; answer what it could not measure."""
        one = self._made.pop((contestant, interval), None)
        if one is None:
            return {"gaps": []}
        try:
            return {"gaps": one.gaps()}
        finally:
            one.close()
            del one
            gc.collect()
            if self._device.startswith("cuda"):
                torch.cuda.empty_cache()

    def memory(self, environment: str, contestant: str) -> Answer:
        """Train from scratch; answer the peak bytes of a step."""
        made: list[Step] = []

        def build() -> Callable[[], None]:
            made.append(make(environment, contestant, self._training(), 1))
            return made[0].step

        try:
            warm = (
                8 if environment == "cockpit" else 2
            )  # by then our steps are replayed, and evaluated together
            return {"bytes": peak_bytes(build, self._device, warm)}
        finally:
            for one in made:
                one.close()

    def _training(self) -> Training:
        return training(self._problem, self._device, self._scale, self._folder)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
