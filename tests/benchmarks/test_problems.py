"""The problems are those of their definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.problems import PROBLEMS
from benchmarks.problems.data import Data
from benchmarks.problems.deepobs import quadratic_deep
from benchmarks.problems.problem import Scale, training

DEFINED = {  # trainable weights, tensors
    "quadratic_deep": (100, 1),
    "mnist_logreg": (7_850, 2),
    "mnist_mlp": (1_336_610, 8),
    "fmnist_2c2d": (3_274_634, 8),
    "cifar10_3c3d": (895_210, 12),
    "cifar100_allcnnc": (1_387_108, 18),
    "cifar10_resnet8": (78_042, 29),
    "resnet18": (11_173_962, 62),
    "gpt_char": (818_048, 52),
    "char_lstm": (280_897, 11),
}


@pytest.mark.parametrize("name", DEFINED)
def test_weights_and_one_loss_per_example(name: str) -> None:
    made = training(PROBLEMS[name], "cpu", Scale(batch=2), Data())
    trained = [p for p in made.model.parameters() if p.requires_grad]
    assert (sum(p.numel() for p in trained), len(trained)) == DEFINED[name]
    losses = made.losses(made.model)
    assert losses.shape == (2,)
    assert losses.isfinite().all()


@pytest.mark.parametrize("name", DEFINED)
def test_peers_get_the_same_loss(name: str) -> None:
    made = training(PROBLEMS[name], "cpu", Scale(batch=2), Data())
    made.model.eval()  # no dropout
    expected = made.losses(made.model).mean()
    outputs, scores = made.outputs(made.model), made.scores(made.model)
    torch.testing.assert_close(made.criterion()(outputs, made.targets), expected)
    torch.testing.assert_close(made.criterion_of_scores()(scores, made.targets), expected)


def test_sizes_of_the_definitions() -> None:
    sizes = {name: problem.size for name, problem in PROBLEMS.items()}
    others = {"cifar100_allcnnc": 256, "char_lstm": 50, "gpt_char": 32}
    assert {name: sizes[name] for name in DEFINED} == dict.fromkeys(DEFINED, 128) | others


def test_the_quadratic_has_its_published_curvature() -> None:
    model = quadratic_deep(Scale())
    factor = model[1].weight.detach().double()  # type: ignore[index,union-attr,operator]
    hessian = factor.T @ factor / 50
    assert torch.linalg.eigvalsh(hessian)[-1].item() == pytest.approx(1.0626, abs=1e-4)
    assert torch.trace(hessian).item() == pytest.approx(9.552, abs=1e-3)


def test_every_contestant_gets_the_same_start() -> None:
    first, second = (training(PROBLEMS["mnist_mlp"], "cpu", Scale(batch=4), Data()) for _ in range(2))
    assert torch.equal(first.inputs, second.inputs)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_language_models_differ_in_size_alone() -> None:
    with torch.device("meta"):
        large = PROBLEMS["gpt_124m"].network(Scale())
        small = PROBLEMS["gpt_char"].network(Scale())
    assert sum(p.numel() for p in large.parameters()) == 124_439_808
    assert {type(m) for m in small.modules()} == {type(m) for m in large.modules()}
    for model in (small, large):
        assert model.head.weight is model.tokens.weight


def test_what_a_cpu_measures_has_every_kind_of_network() -> None:
    light = {name for name, problem in PROBLEMS.items() if not problem.heavy}
    assert {"cifar10_resnet8", "gpt_char", "char_lstm"} <= light
    assert not PROBLEMS["gpt_char"].autocast


def test_image_size_is_chosen() -> None:
    made = training(PROBLEMS["resnet18"], "cpu", Scale(batch=1, image=96), Data())
    assert made.inputs.shape == (1, 3, 96, 96)
    made.model.eval()
    assert made.outputs(made.model).shape == (1, 1000)


def test_real_data_are_taken_where_they_are(tmp_path: Path) -> None:
    images = np.full((5, 28, 28), 255, np.uint8)
    np.savez(tmp_path / "mnist.npz", x_train=images, y_train=np.full(5, 7))
    x, y, source = Data(tmp_path).grey("mnist", 3)
    assert source == "mnist, real"
    assert x.shape == (3, 1, 28, 28)
    assert x.min() == 1
    assert y.tolist() == [7, 7, 7]
    assert Data().grey("mnist", 3)[2].startswith("synthetic")


def test_images_that_come_with_the_package() -> None:
    x, y, source = Data().grey("fmnist", 64)
    assert source == "fmnist, bundled"
    assert 0 <= x.min() < x.max() <= 1
    assert len(y.unique()) > 5
