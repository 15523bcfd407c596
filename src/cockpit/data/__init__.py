"""The images that come with the package: 4,000 of Fashion-MNIST (licence in NOTICE), as NumPy arrays."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CLASSES = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


class Images(NamedTuple):
    """Grey images [N, 28, 28], 0 (black) to 255, and their classes [N], 0 to 9."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]


def fashion_mnist() -> tuple[Images, Images]:
    """Return (training, test): 300 and 100 images of every class."""
    with resources.files(__name__).joinpath("fmnist_mini.npz").open("rb") as file, np.load(file) as data:
        return (
            Images(data["x_train"], data["y_train"].astype(np.uint8)),
            Images(data["x_test"], data["y_test"].astype(np.uint8)),
        )
