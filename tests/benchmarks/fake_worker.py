"""A worker without torch: every contestant takes as long as its name says, in milliseconds a step."""

from __future__ import annotations

import json
import os
import sys

SPEED = {"untracked": 1.0, "idle": 1.0, "economy": 3.0, "norms": 2.0}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        do, name = request["do"], request.get("contestant", "")
        answer: dict[str, object] = {}
        if do == "prepare" and name == "unsupported":
            answer = {"error": "NotImplementedError: no such layer"}
        elif do == "run" and name == "deadly":
            print("out of memory", file=sys.stderr)
            os._exit(3)
        elif do == "run":
            steps, interval = request["steps"], request["interval"]
            due = steps // interval
            seconds = 1e-3 * (due * SPEED[name] + (steps - due) * SPEED["idle"])
            answer = {"steps": steps, "wall": 2 * seconds, "process": seconds}
        elif do == "open":
            answer = {"versions": {}}
        elif do == "finish":
            answer = {"gaps": ["norms: no_outputs"] if name == "norms" else []}
        elif do == "memory":
            answer = {"bytes": int(100 * SPEED[name])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
