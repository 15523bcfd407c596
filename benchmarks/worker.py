"""The process that runs contestants in one environment; it is told what to do, line by line, in JSON.

Standard output belongs to the answers: whatever libraries print goes to standard error. Requests (`do`):

- `open`: problem, device, data, scale; answers the source of the data, versions
- `prepare`: contestant, interval; makes it, or says why it cannot be made
- `run`: contestant, interval, steps; answers wall and process seconds
- `finish`: contestant, interval; closes it, answers what it could not measure
- `memory`: contestant; answers the peak bytes of a training made for it alone
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if len(sys.argv) > 1:
        sys.path.append(sys.argv[1])
    station: Any = None
    failed: Exception | None = None
    try:
        station = import_module("benchmarks.station").Station()
    except Exception as failure:  # a broken environment is an answer, not a dead process
        failed = failure
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if failed is not None:
                raise failed
            answer = getattr(station, request.pop("do"))(**request)
        except Exception as failure:  # a contestant may fail in any way; the driver writes it down
            answer = {"error": reason(failure)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def reason(failure: BaseException) -> str:
    """Return what has failed, and what had failed before: tidying up after that may hide it."""
    first = failure
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    text = (str(failure).strip().splitlines() or [""])[0][:300]
    found = f"{type(failure).__name__}: {text}"
    return found if first is failure else f"{found} (after {reason(first)})"


if __name__ == "__main__":
    main()
