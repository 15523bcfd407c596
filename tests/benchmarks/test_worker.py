"""A real worker runs contestants that need no peer, and says why others cannot run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.contestants.torch_func import PerExample
from benchmarks.environments import ALL, ROOT, command
from benchmarks.problems import PROBLEMS
from benchmarks.problems.data import Data
from benchmarks.problems.problem import Scale, training
from benchmarks.remote import Remote
from benchmarks.worker import reason
from cockpit.bench.rounds import UnableError

OURS = next(e for e in ALL if e.name == "cockpit")


@pytest.fixture(scope="module")
def worker() -> Iterator[Remote]:
    words, variables = command(OURS, install=False, say=lambda text: None)
    remote = Remote(words, variables, ROOT)
    facts = remote.ask("open", problem="mnist_logreg", device="cpu", data=None, scale={"batch": 8})
    assert facts["weights"] == 7850
    assert facts["batch"] == 8
    yield remote
    remote.close()


@pytest.mark.parametrize(
    ("environment", "name"), [("cockpit", "untracked"), ("cockpit", "norm_test"), ("torch_func", "norms")]
)
def test_contestants_are_made_run_and_finished(worker: Remote, environment: str, name: str) -> None:
    worker.ask("prepare", environment=environment, contestant=name, interval=1)
    times = worker.run(name, 1, 2)
    assert times.steps == 2
    assert times.process is not None
    assert times.process > 0
    assert worker.ask("finish", contestant=name, interval=1) == {"gaps": []}
    with pytest.raises(UnableError, match="KeyError"):
        worker.run(name, 1, 2)


def test_memory(worker: Remote) -> None:
    plain, watched = (
        worker.ask("memory", environment="cockpit", contestant=name)["bytes"]
        for name in ("untracked", "norm_test")
    )
    assert 4 * (7850 + 8 * 784) < plain < watched


def test_what_cannot_be_made_is_told(worker: Remote) -> None:
    with pytest.raises(UnableError, match="no_such_quantity"):
        worker.ask("prepare", environment="cockpit", contestant="no_such_quantity", interval=1)


def test_what_failed_first_is_told_too() -> None:
    with pytest.raises(KeyError) as told:  # noqa: PT012 - one thing fails after the other
        try:
            raise NotImplementedError("no such layer\nmore about it")
        finally:
            vars(object)["grad_batch"]
    assert reason(told.value) == "KeyError: 'grad_batch' (after NotImplementedError: no such layer)"


def test_vmap_of_grad_trains_as_the_untracked_step() -> None:
    watched, plain = (training(PROBLEMS["mnist_mlp"], "cpu", Scale(batch=4), Data()) for _ in range(2))
    step = PerExample(watched)
    step.step()
    plain.losses(plain.model).mean().backward()
    plain.optimizer.step()
    for a, b in zip(watched.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-7)
    assert step.norms is not None
    assert step.norms.shape == (4,)
