"""Trainings that the original Cockpit 1.0.2 has logged: their definitions, and the script that logged them.

``problem(name)`` needs torch and numpy only, so that a test can repeat a training and compare with the log.
Run as a script in an environment with the original installed, this file writes the logs (see README.md).
All random numbers come from numpy's legacy generator, whose stream never changes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 6


@dataclass(frozen=True)
class Case:
    """One logged training: network, optimizer, batch size, and how the quantities were set."""

    net: str
    optimizer: str
    batch_size: int
    curvature: str = "diag_h"
    keep_individual: bool = False
    parameters: bool = False
    compact: bool = True

    @property
    def quantities(self) -> list[tuple[str, dict[str, object]]]:
        """Class names of the original's quantities with settings; histograms are coarser than usual."""
        curved = {"curvature": self.curvature}
        hist2d = {
            "bins": (16, 20),
            "range": ((-0.5, 0.5), (-1.0, 1.0)),
            "keep_individual": self.keep_individual,
        }
        found: list[tuple[str, dict[str, object]]] = [
            *((name, {}) for name in ("Loss", "GradNorm", "Distance", "UpdateSize", "Alpha")),
            *((name, {}) for name in ("NormTest", "InnerTest", "OrthoTest", "MeanGSNR", "HessMaxEV")),
            *((name, curved) for name in ("TICDiag", "TICTrace", "HessTrace")),
            ("GradHist1d", {"bins": 40, "range": (-0.5, 0.5)}),
            ("GradHist2d", hist2d),
        ]
        # The original refuses these two for any other optimizer.
        found += [("CABS", {}), ("EarlyStopping", {})] if self.optimizer == "sgd" else []
        return found + ([("Parameters", {})] if self.parameters else [])


CASES = {
    "mlp_25-sgd": Case("mlp_25", "sgd", 5, parameters=True, compact=False),
    "mlp_25-adam": Case("mlp_25", "adam", 4),
    "mlp_tanh-sgd": Case("mlp_tanh", "sgd", 6),
    "mlp_64-sgd": Case("mlp_64", "sgd", 8),
    "mlp_64-momentum": Case("mlp_64", "momentum", 8, curvature="diag_ggn_exact"),
    "mlp_64-adam": Case("mlp_64", "adam", 8),
    "2c2d-sgd": Case("2c2d", "sgd", 8, keep_individual=True),
    "2c2d-momentum": Case("2c2d", "momentum", 8),
    "2c2d-adam": Case("2c2d", "adam", 8),
    "3c3d-sgd": Case("3c3d", "sgd", 8),
    "3c3d-momentum": Case("3c3d", "momentum", 8),
    "3c3d-adam": Case("3c3d", "adam", 8),
}

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
}


def network(name: str) -> tuple[nn.Sequential, tuple[int, ...], int]:
    """The network, its input shape and number of classes; parameters not yet drawn."""
    match name:
        case "mlp_25" | "mlp_tanh":
            act = nn.ReLU if name == "mlp_25" else nn.Tanh
            layers = [nn.Flatten(), nn.Linear(25, 4), act(), nn.Linear(4, 4), act(), nn.Linear(4, 3)]
            return nn.Sequential(*layers), (1, 5, 5), 3
        case "mlp_64":
            layers = [
                nn.Flatten(),
                nn.Linear(64, 16),
                nn.ReLU(),
                nn.Linear(16, 8),
                nn.ReLU(),
                nn.Linear(8, 4),
            ]
            return nn.Sequential(*layers), (1, 8, 8), 4
        case "2c2d":
            convs = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            convs += [nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            return (
                nn.Sequential(*convs, nn.Flatten(), nn.Linear(24, 10), nn.ReLU(), nn.Linear(10, 4)),
                (1, 8, 8),
                4,
            )
        case "3c3d":
            convs = [nn.Conv2d(3, 4, 5), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
            convs += [nn.Conv2d(4, 6, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
            convs += [nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
            dense = [nn.Flatten(), nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 5)]
            return nn.Sequential(*convs, *dense), (3, 16, 16), 5
    raise KeyError(name)


def problem(name: str) -> tuple[nn.Sequential, list[tuple[Tensor, Tensor]], torch.optim.Optimizer]:
    """Model, batches (inputs, labels) and optimizer of a case, in float32; the loss is cross-entropy."""
    case = CASES[name]
    random = np.random.RandomState(0)
    model, shape, classes = network(case.net)
    with torch.no_grad():
        for p in model.parameters():
            spread = 1.2 / np.sqrt(p[0].numel()) if p.ndim > 1 else 0.1
            p.copy_(torch.from_numpy(random.normal(0, spread, p.shape).astype(np.float32)))
    sizes = (case.batch_size, *shape)
    batches = [
        (
            torch.from_numpy(random.normal(0, 1, sizes).astype(np.float32)),
            torch.from_numpy(random.randint(0, classes, case.batch_size)),
        )
        for _ in range(STEPS)
    ]
    return model, batches, OPTIMIZERS[case.optimizer](model)


def write_log(name: str, folder: Path) -> None:
    """Train a case under the original and write its log."""
    import backpack  # noqa: PLC0415

    import cockpit  # noqa: PLC0415

    case = CASES[name]
    model, batches, optimizer = problem(name)
    torch.manual_seed(0)
    backpack.extend(model)
    criterion = backpack.extend(nn.CrossEntropyLoss())
    built = [getattr(cockpit.quantities, q)(lambda t: t >= 0, **settings) for q, settings in case.quantities]
    watch = cockpit.Cockpit(model.parameters(), built)
    for step, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        outputs = model(x)
        loss = criterion(outputs, y)
        losses = F.cross_entropy(outputs, y, reduction="none")
        info = {"loss": loss, "individual_losses": losses, "batch_size": len(x), "optimizer": optimizer}
        with watch(step, info=info):
            loss.backward(create_graph=watch.create_graph(step))
        optimizer.step()
        watch.log(
            step, step // 2, *([float(loss.detach())] * 3), 0.5, 0.5, 0.5, optimizer.param_groups[0]["lr"]
        )
    path = folder / name
    watch.write(str(path))
    file = path.with_suffix(".json")
    if case.compact:
        file.write_text(json.dumps(json.loads(file.read_text()), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in sys.argv[1:] or CASES:
        write_log(chosen, Path(__file__).parent)
