"""Made-up runs: files as a training would write them, in a second and without torch.

What belongs together fits together: parameters add up to the model, the gradient tests obey Pythagoras, histograms
count every gradient element once.

    python -m cockpit.testing.runs FOLDER --steps 1000000 --parameters 500
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cockpit.errors import CockpitError
from cockpit.presets import FULL
from cockpit.store.chunks import COLUMNS
from cockpit.store.chunks import FULL as FULL_CHUNK
from cockpit.store.codec import pack_floats, pack_steps
from cockpit.store.database import FILE, open_to_write
from cockpit.store.index import Index
from cockpit.store.points import Points
from cockpit.store.record import Event, Record
from cockpit.store.writer import Writer
from cockpit.testing.story import WIDTH, Story, parameter_names
from cockpit.version import __version__

Trouble = Literal["", "nan", "dead_layer", "gap"]

QUANTITIES = (*FULL, "tic_trace", "mean_gsnr", "cabs", "early_stopping", "time")
CELLS = 12_000_000
"""So many bins are filled at most: histograms are recorded less often where there are many parameters or steps."""


def fake_run(
    folder: str | Path,
    *,
    steps: int = 300,
    parameters: int = 12,
    seed: int = 0,
    every: int = 1,
    quantities: Sequence[str] | None = None,
    trouble: Trouble = "",
) -> Path:
    """Write a run that looks like a real one, and return its folder.

    Args:
        folder: where ``run.db`` is written; there must be none yet.
        steps: how long the training was. Values of parameters are recorded at about 1000 of them at most.
        parameters: how many parameters the model has, weights and biases of a transformer.
        seed: another one gives another run.
        every: how often quantities were recorded.
        quantities: their names; all of ``QUANTITIES`` if None.
        trouble: ``"nan"``: nothing is finite from the middle on; ``"dead_layer"``: one parameter in the middle gets no
            gradient; ``"gap"``: a tenth of the steps was not watched, then the run was resumed.
    """
    folder = Path(folder)
    if (folder / FILE).exists():
        raise CockpitError(f"{folder} holds a run already")
    story = Story(steps, parameter_names(parameters), np.random.default_rng(seed), trouble)
    asked = tuple(QUANTITIES if quantities is None else quantities)
    recorded = np.arange(0, steps, every)
    if trouble == "gap":
        recorded = recorded[(recorded < 0.4 * steps) | (recorded >= 0.5 * steps)]
    values = {
        name: points
        for name, points in story.values(recorded).items()
        if name.split(".")[0] in (*asked, "learning_rate")
    }
    _write_numbers(folder, values)
    shares = {name: share for name, share in story.shares().items() if name in values}
    cells = len(story.names) * (100 * ("grad_hist1d" in asked) + 2000 * ("grad_hist2d" in asked))
    spread = max(1, -(-len(recorded) // 1000))
    rare = spread * max(1, -(-cells * (len(recorded) // spread) // CELLS))
    with Writer(folder, _meta(story, asked, every)) as writer:
        for k in range(0, len(recorded), spread):
            step = int(recorded[k])
            row = [story.parts(step, name, values[name].values[k], *share) for name, share in shares.items()]
            if k % rare == 0:
                row += [story.histograms(name, step) for name in asked if name.startswith("grad_hist")]
            writer.write(row)
            if k % (100 * spread) == 0:
                writer.flush(60.0)  # no training is so fast that the buffer fills
        _log(writer, story, steps)
    return folder


def _write_numbers(folder: Path, values: dict[str, Points]) -> None:
    """Write the model's numbers as they lie in the file in the end: a writer would take minutes for a million steps."""
    folder.mkdir(parents=True, exist_ok=True)
    db = open_to_write(folder)
    index = Index(db)
    db.execute("BEGIN IMMEDIATE")
    for name, points in values.items():
        series, steps = index.series(name, ""), points.steps
        for k in range(0, len(steps), FULL_CHUNK):
            part = points.take(np.arange(k, min(len(steps), k + FULL_CHUNK)))
            ends = int(part.steps[0]), int(part.steps[-1]), len(part.steps)
            row = (series, pack_steps(part.steps), *ends, pack_floats(part.values), part.status.packed())
            db.execute(f"INSERT INTO chunk (series, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    db.execute("COMMIT")
    db.close()


def _meta(story: Story, quantities: tuple[str, ...], every: int) -> dict[str, Any]:
    """Return what a session would store about the run."""
    shapes = {name: [WIDTH] if name.endswith("bias") else [WIDTH, WIDTH] for name in story.names}
    return {
        "versions": {"cockpit": __version__, "torch": "2.13.0", "python": "3.11.7"},
        "model": "Transformer",
        "parameters": {name: {"shape": shape, "trainable": True} for name, shape in shapes.items()},
        "coverage": {name: {"way": "formula", "reason": ""} for name in story.names},
        "optimizer": "SGD",
        "hyperparameters": [{"lr": 0.1, "momentum": 0.0, "weight_decay": 0, "nesterov": False}],
        "config": "full" if set(quantities) == set(FULL) else "",
        "quantities": [
            {
                "name": name,
                "class": name.title().replace("_", ""),
                "settings": {"when": f"every({every})", "label": "''"},
                "unit": "s" if name == "time" else "",
                "doc": f"A made-up {name.replace('_', ' ')}.",
            }
            for name in quantities
        ],
        "device": "cpu",
        "ranks": 1,
        "overhead": 0.043,
    }


def _log(writer: Writer, story: Story, steps: int) -> None:
    """Write what the training loop itself would log, and what happened."""
    for step in np.unique(np.linspace(0, steps - 1, 21).astype(np.int64))[1:].tolist():
        if step >= story.broken:
            accuracies = (0.1, 0.1)
        else:
            grown = 1 - np.exp(-6 * step / steps)
            accuracies = (0.1 + 0.85 * grown, 0.1 + 0.78 * grown)
        names = ("train_accuracy", "valid_accuracy")
        writer.write([Record(step, name, value) for name, value in zip(names, accuracies, strict=True)])
    if story.trouble == "nan":
        step = int(np.ceil(story.broken))
        writer.event(Event(step, "nonfinite", "the loss is NaN", data={"quantity": "loss"}))
    if story.trouble == "gap":
        text = "no backward pass was watched"
        writer.event(Event(int(0.4 * steps), "unwatched_step", text))
        step = int(0.5 * steps)
        writer.event(Event(step, "resumed", f"the run is continued from step {step}"))


def main() -> None:
    """Write a run and say how long it took."""
    parser = argparse.ArgumentParser(description="Write a made-up run.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=300, help="steps of the training (default: 300)")
    parser.add_argument("--parameters", type=int, default=12, help="parameters of the model (default: 12)")
    parser.add_argument("--every", type=int, default=1, help="record every so many steps (default: 1)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trouble", default="", choices=["", "nan", "dead_layer", "gap"])
    chosen = vars(parser.parse_args())
    start = time.perf_counter()
    folder = fake_run(**chosen)
    print(f"{folder}: written in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
