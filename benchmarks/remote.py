"""The driver's side of the pipe to a worker."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cockpit.bench.clock import Times
from cockpit.bench.rounds import UnableError

BEREFT = "the worker had died of another contestant"
"""How a reason begins that says nothing about the contestant itself."""


class Remote:
    """A worker process; one request, one answer."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], folder: Path) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see close
        self._process = subprocess.Popen(
            command,
            env=dict(variables),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request and return its answer; an error in it, or a dead worker, is raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if not self.alive:
            raise UnableError(f"{BEREFT}: {self._epitaph()}")
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise UnableError(self._epitaph())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UnableError(answer["error"])
        return answer

    def run(self, contestant: str, interval: int, steps: int) -> Times:
        """Have some steps run."""
        answer = self.ask("run", contestant=contestant, interval=interval, steps=steps)
        return Times(answer["steps"], answer["wall"], answer["process"])

    def _epitaph(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        how = f"killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"the worker {how}" + (f": {lines[-1].strip()[:200]}" if lines else "")

    def close(self) -> None:
        """End the worker: it stops when its input does."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()
