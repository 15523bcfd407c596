"""A writer and its process: whoever is killed, ends or forks loses nothing that was acknowledged."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

from cockpit.store.run import Run
from cockpit.store.writer import Writer
from store.written import child, losses, sound


def test_kill_9_loses_no_acknowledged_record_and_at_most_a_second(tmp_path: Path) -> None:
    script = """
writer = Writer(folder)
step = 0
while True:
    writer.write([Record(step, "loss", time.time()), Record(step, "twin", 1.0, "w")])
    step += 1
    if step % 20 == 0:
        print(writer.acknowledged, time.time(), flush=True)
    time.sleep(0.0005)
"""
    process = child(script, tmp_path)
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(60)]
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate()
    acknowledged, now = map(float, [*told, *rest.splitlines()][-1].split())
    assert acknowledged > 0
    run = Run(tmp_path)
    series = run.series("loss")
    assert len(series) + len(run.series("twin", "w")) >= acknowledged
    assert series.steps.tolist() == list(range(len(series)))
    assert now - np.asarray(series.values)[-1] < 1.5  # a second, and a loaded machine
    assert run.status == "ended without close"
    assert sound(tmp_path)


def test_a_killed_run_can_be_continued(tmp_path: Path) -> None:
    process = child(
        "w = Writer(folder); w.write([Record(0, 'loss', 1.0)]); w.flush(); os.kill(os.getpid(), 9)", tmp_path
    )
    process.communicate()
    assert process.returncode == -9
    with Writer(tmp_path) as writer:
        writer.write(losses(1, 3))
    assert len(Run(tmp_path).series("loss")) == 3


def test_the_end_of_the_interpreter_flushes(tmp_path: Path) -> None:
    process = child("w = Writer(folder); w.write([Record(k, 'loss', 1.0) for k in range(1000)])", tmp_path)
    _, errors = process.communicate()
    assert errors == ""
    assert len(Run(tmp_path).series("loss")) == 1000
    assert Run(tmp_path).status == "finished"


def test_a_forked_child_does_not_write(tmp_path: Path) -> None:
    script = """
writer = Writer(folder)
writer.write([Record(0, "loss", 1.0)])
pid = os.fork()
if pid == 0:
    writer.write([Record(99, "loss", 99.0)])
    assert not writer.flush()
    writer.event(Event(99, "x", "y")); writer.rewind(0); writer.set_meta({"child": 1}); writer.close()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
for step in range(1, 50):
    writer.write([Record(step, "loss", 1.0)])
    assert writer.flush()
"""
    process = child(script, tmp_path)
    _, errors = process.communicate()
    assert errors == ""
    run = Run(tmp_path)
    assert run.series("loss").steps.tolist() == list(range(50))
    assert "child" not in run.meta
    assert sound(tmp_path)
