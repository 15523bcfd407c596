"""What recording costs: CPU time of the training thread and of the writing thread for each step, and reading times.

The training thread's part is everything from a finished `Reading` to the buffer (`Recorder.read` for every quantity,
`Recorder.steps`): the least time of steps in a row, and the median with pauses, in which the caches grow cold. The
writing thread's part is all it does. Both are CPU times of the thread, so other processes disturb them little.
``--long`` also writes a run of a million steps and measures how long one series takes to read, in a fresh process
(first call) and again in the same one.

    python benchmarks/record_path.py --long --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cockpit.engine.answers.table import Table
from cockpit.quantities.quantity import Observation, OptimizerView, Quantity, Reading
from cockpit.session.recorder import Recorder
from cockpit.store.record import Column, Histogram, Histograms, Numbers
from cockpit.store.writer import Writer

CASES = {
    "10x8": (10, 8, 0),
    "12x200": (12, 200, 0),
    "12x200 + 100-bin histograms": (12, 200, 100),
}
BLOCK = 25
"""Steps that are timed together, by turns in a row and with pauses between them."""


@dataclass(frozen=True, eq=False)
class Ready(Quantity):
    """Returns a reading that is there already."""

    reading: Reading = field(default_factory=Reading)

    def compute(self, o: Observation) -> Reading:
        """Return the reading."""
        return self.reading


def measured(quantities: int, parameters: int, bins: int, steps: int, pause: float) -> dict[str, float]:
    """Record steps and return microseconds of CPU a step, of both threads."""
    names = tuple(f"block{k}.layer.weight" for k in range(parameters))
    random = np.random.default_rng(0)
    readings = [Reading(1.0, Numbers(names, random.normal(size=parameters))) for _ in range(quantities)]
    if bins:
        edges = np.linspace(-1.0, 1.0, bins + 1)
        counts = random.poisson(30, (parameters, bins))
        whole = Histogram(counts.sum(0), edges)
        readings.append(Reading(whole, Histograms(names, counts, edges)))
    asked = [Ready(reading, label=str(k)) for k, reading in enumerate(readings)]
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    coverage = {name: ("formula", "") for name in names}
    view = OptimizerView("SGD", {}, True, (0.1,))
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / "run", model, [optimizer], asked, "", None, None)
        writer = next(thread for thread in threading.enumerate() if thread.name == "cockpit-writer")
        clock = time.pthread_getcpuclockid(writer.ident or 0)
        began = time.clock_gettime(clock)
        blocks = []
        for block in range(steps // BLOCK):
            in_a_row = block % 2 == 0
            spent = 0.0
            for step in range(block * BLOCK, (block + 1) * BLOCK):
                o = Observation(step, 32, Table({}), view, {})
                start = time.thread_time()
                for quantity in asked:
                    recorder.read(quantity, o, {}, coverage)
                recorder.steps((step,), [(0.1,)], [()], coverage)
                spent += time.thread_time() - start
                time.sleep(0 if in_a_row else pause)
            time.sleep(pause * BLOCK if in_a_row else 0)
            blocks.append(1e6 * spent / BLOCK)
        time.sleep(1.0)  # the last transaction of the ordinary kind
        written = time.clock_gettime(clock) - began
        recorder.close()
    return {
        "training_us": min(blocks[::2]),
        "training_paused_us": statistics.median(blocks[1::2]),
        "writing_us": 1e6 * written / steps,
    }


def long_run(folder: Path, steps: int) -> dict[str, float]:
    """Write 12 numbers at every step, 3 x 200 more at every 500th; return seconds and megabytes."""
    names = tuple(f"block{k}.layer.weight" for k in range(200))
    values = np.random.default_rng(0).normal(size=(1000, 200))
    start = time.perf_counter()
    with Writer(folder) as writer:
        for step in range(steps):
            numbers = values[step % 1000].tolist()
            writer.write([Column(step, f"quantity{k}", numbers[k]) for k in range(12)])
            if step % 500 == 0:
                parts = Numbers(names, values[step // 500 % 1000])
                writer.write([Column(step, f"quantity{k}", parts=parts) for k in range(3)])
            if step % 2000 == 0:
                writer.flush(60.0)  # no training is so fast that the buffer fills
    size = sum(path.stat().st_size for path in folder.iterdir())
    return {"write_s": time.perf_counter() - start, "file_mb": size / 1e6}


READ = """
import json, sys, time
from cockpit.store.run import Run
start = time.perf_counter()
run = Run(sys.argv[1])
times = [time.perf_counter() - start]
for name, scope in [("quantity5", "")] * 8 + [("quantity1", "block77.layer.weight")] * 3:
    start = time.perf_counter()
    series = run.series(name, scope)
    times.append(time.perf_counter() - start)
print(json.dumps(times))
"""


def reading_times(folder: Path, processes: int = 5) -> dict[str, float]:
    """Return milliseconds for one series of all steps and for one of a parameter; medians over fresh processes."""

    def times() -> Iterator[list[float]]:
        for _ in range(processes):
            command = [sys.executable, "-c", READ, str(folder)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            yield [1e3 * seconds for seconds in json.loads(done.stdout)]

    found = list(times())
    return {
        "open_ms": statistics.median(row[0] for row in found),
        "first_ms": statistics.median(row[1] for row in found),
        "again_ms": statistics.median(min(row[2:9]) for row in found),
        "parameter_ms": statistics.median(min(row[9:]) for row in found),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="steps of each case (default: 1000)")
    parser.add_argument("--pause", type=float, default=0.004, help="seconds between steps (default: 0.004)")
    parser.add_argument("--long", action="store_true", help="also write and read a long run")
    parser.add_argument("--long-steps", type=int, default=1_000_000, help="its steps (default: 1000000)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    result = {name: measured(*case, chosen.steps, chosen.pause) for name, case in CASES.items()}
    if chosen.long:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            result["long run"] = long_run(folder, chosen.long_steps) | reading_times(folder)
    if chosen.json:
        print(json.dumps(result, indent=2))
    else:
        for name, row in result.items():
            print(f"{name:30}" + "  ".join(f"{key} {value:.1f}" for key, value in row.items()))


if __name__ == "__main__":
    main()
