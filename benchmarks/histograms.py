"""What counting costs: one and two dimensions, written out and as outer products, skewed and spread values.

Beside it stand what reading the same numbers takes (half a copy: the bound by memory) and ``torch.histc``. Times are
medians: of a GPU by its events, of a CPU processor time of one thread.

    python -m benchmarks.histograms --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from cockpit.engine.numbers.binning import Grid
from cockpit.engine.numbers.counting import count, count_outer

EXAMPLES = 128
ONE, ODD, SAME, TWO = (
    Grid(100, -2.0, 2.0),
    Grid(101, -2.0, 2.0),
    Grid(40, -1.0, 1.0),
    Grid(40, -1.0, 1.0, 50),
)
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x.normal_(),
    "uniform": lambda x: x.uniform_(-2.0, 2.0),
    "small": lambda x: x.normal_(std=1e-3),
    "one value": lambda x: x.fill_(0.01),
}


def milliseconds(work: Callable[[], object], device: str, repeats: int) -> float:
    """Return the median time of some calls, after a first one."""
    work()
    times = []
    for _ in range(repeats):
        if device.startswith("cuda"):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        else:
            began = time.process_time()
            work()
            times.append(1e3 * (time.process_time() - began))
    return statistics.median(times)


def measured(kind: str, device: str, positions: int, repeats: int) -> dict[str, float]:
    """Return the milliseconds of every way to count values of a kind: of `EXAMPLES` times so many positions."""
    draw, side = KINDS[kind], max(1, int(positions**0.5))
    values = draw(torch.empty(EXAMPLES, positions, device=device))
    a, b = (draw(torch.empty(EXAMPLES, side, device=device)) for _ in range(2))
    places = torch.arange(positions, device=device, dtype=torch.int32) * 7 % TWO.columns
    other = torch.empty_like(values)
    works: dict[str, Callable[[], object]] = {
        "100 bins": lambda: count(values, ONE),
        "101 bins": lambda: count(values, ODD),
        "40 bins": lambda: count(values, SAME),
        "40 x 50 bins": lambda: count(values, TWO, places),
        "products, 100 bins": lambda: count_outer(a, b, ONE),
        "products, 40 bins": lambda: count_outer(a, b, SAME),
        "products, 40 x 50 bins": lambda: count_outer(a, b, TWO, places[: side * side]),
        "torch.histc": lambda: torch.histc(values, 100, -2.0, 2.0),
    }
    found = {name: milliseconds(work, device, repeats) for name, work in works.items()}
    return {"reading": milliseconds(lambda: other.copy_(values), device, repeats) / 2, **found}


def main() -> None:
    """Print the times, as a table or as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.histograms", description=__doc__.partition("\n")[0]
    )
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=gpu, help=f"cpu or cuda (default here: {gpu})")
    parser.add_argument("--positions", type=int, metavar="N", help="of each example (590000; on a CPU 60000)")
    parser.add_argument("--repeats", type=int, default=30, metavar="N")
    parser.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    positions = options.positions or (590_000 if options.device.startswith("cuda") else 60_000)
    found = {kind: measured(kind, options.device, positions, options.repeats) for kind in KINDS}
    if options.json:
        print(json.dumps({"device": options.device, "elements": EXAMPLES * positions, "ms": found}, indent=1))
        return
    print(
        f"{EXAMPLES * positions / 1e6:.1f} M numbers, ms".ljust(26) + "".join(f"{kind:>12}" for kind in found)
    )
    for name in next(iter(found.values())):
        print(name.ljust(26) + "".join(f"{times[name]:12.3f}" for times in found.values()))


if __name__ == "__main__":
    main()
