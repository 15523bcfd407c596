"""One batch of real data where it is at hand, else numbers of the same shape and kind; the results say which.

What is looked for in the folder of `--data` (or `COCKPIT_DATA`): `mnist.npz`, `cifar10_train_1.npz`,
`cifar100_train_15k.npz` (with the `datasets.py` that decodes them) and `tinyshakespeare.txt.xz`.
Fashion-MNIST comes with this package. Many pixels of MNIST are zero, which matters for the cost of
histograms.
"""

from __future__ import annotations

import importlib.util
import lzma
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor, str]
"""Inputs, targets, and where they come from."""

BUNDLED = Path(__file__).parents[2] / "src" / "cockpit" / "data" / "fmnist_mini.npz"
STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
FILES = {"cifar10": "cifar10_train_1.npz", "cifar100": "cifar100_train_15k.npz"}


@dataclass(eq=False)
class Data:
    """A folder with data, or none; what was read is kept."""

    folder: Path | None = None
    kept: dict[str, Any] = field(default_factory=dict)

    def grey(self, name: Literal["mnist", "fmnist"], n: int) -> Batch:
        """Return n images [n, 1, 28, 28] in [0, 1]."""
        path = BUNDLED if name == "fmnist" else self._file("mnist.npz")
        if path is None or not path.exists():
            generator = torch.Generator().manual_seed(0)
            pixels = torch.rand(n, 1, 28, 28, generator=generator)
            # about a fifth of the pixels of MNIST are not black
            images = pixels * (torch.rand(n, 1, 28, 28, generator=generator) < 0.2)
            return images, torch.randint(10, (n,), generator=generator), "synthetic, four fifths zeros"
        with np.load(path) as file:
            chosen = np.random.default_rng(0).integers(len(file["y_train"]), size=n)  # some files go by class
            images = torch.from_numpy(file["x_train"][chosen]).float()[:, None] / 255
            labels = torch.from_numpy(file["y_train"][chosen].astype(np.int64))
        return images, labels, f"{name}, {'bundled' if name == 'fmnist' else 'real'}"

    def colour(self, name: str, n: int, size: int = 32, classes: int = 10) -> Batch:
        """Return n normalised images [n, 3, size, size]; real ones for CIFAR at its own size."""
        path = self._file(FILES.get(name, ""))
        if path is None or size != 32:
            generator = torch.Generator().manual_seed(0)
            images = torch.randn(n, 3, size, size, generator=generator)
            return images, torch.randint(classes, (n,), generator=generator), "synthetic, normal"
        raw, labels = self._once(name, lambda: _shard(path))
        mean, deviation = (torch.tensor(s)[:, None, None] for s in STATISTICS[name])
        images = torch.from_numpy(_first(raw, n)).permute(0, 3, 1, 2).float() / 255
        return (
            (images - mean) / deviation,
            torch.from_numpy(_first(labels, n).astype(np.int64)),
            f"{name}, real",
        )

    def text(self, n: int, length: int, vocabulary: int, characters: bool) -> Batch:
        """Return n stretches of text [n, length] and what follows each token.

        With ``characters`` the tokens number the characters of the text; else every two bytes make a token, which is
        no tokeniser but has repetitions like one.
        """
        path = self._file("tinyshakespeare.txt.xz")
        if path is None:
            generator = torch.Generator().manual_seed(0)
            tokens = torch.randint(vocabulary, (n, length + 1), generator=generator)
            return tokens[:, :-1], tokens[:, 1:], "synthetic, uniform tokens"
        raw = np.frombuffer(self._once("text", lambda: lzma.decompress(path.read_bytes())), np.uint8)
        if characters:
            numbers = np.unique(raw, return_inverse=True)[1] % vocabulary
        else:
            even = raw[: len(raw) // 2 * 2].astype(np.int64)
            numbers = (even[::2] * 256 + even[1::2]) % vocabulary
        stretch = _first(numbers.astype(np.int64), n * (length + 1)).reshape(n, length + 1)
        tokens = torch.from_numpy(stretch)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), "tinyshakespeare, real"

    def _file(self, name: str) -> Path | None:
        path = self.folder / name if self.folder and name else None
        return path if path is not None and path.exists() else None

    def _once(self, key: str, read: Callable[[], Any]) -> Any:
        if key not in self.kept:
            self.kept[key] = read()
        return self.kept[key]


def _first(values: Any, n: int) -> Any:
    """Return the first n, repeated if there are fewer."""
    return np.ascontiguousarray(np.resize(values, (n, *values.shape[1:])))


def _shard(path: Path) -> tuple[Any, Any]:
    """Decode images with the module that lies beside them."""
    spec = importlib.util.spec_from_file_location("benchmarks_datasets", path.parent / "datasets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    images, others = module.load_shard(path)
    return images[:1024], others["y"][:1024]
