"""What the user hands in, checked at the door: each mistake gets an error that says what to do."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.errors import CockpitError
from cockpit.quantities.quantity import Quantity
from cockpit.registry import make_preset, make_quantity


def checked_model(model: object) -> nn.Module:
    """Return the model itself, without a data-parallel or compiling wrapper."""
    if not isinstance(model, nn.Module):
        raise CockpitError(f"Cockpit(model, …): the model is a torch.nn.Module, not {type(model).__name__}")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return checked_model(model.module)
    if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):  # torch.compile
        return checked_model(inner)
    if not any(p.requires_grad for p in model.parameters()):
        total = sum(1 for _ in model.parameters())
        raise CockpitError(
            f"Cockpit(model, …): {type(model).__name__} has no trainable parameter ({total} in all, none with "
            "requires_grad=True), so there is nothing to watch. Unfreeze some before creating the cockpit."
        )
    if any(hasattr(p, "placements") or hasattr(p, "_sharded_size") for p in model.parameters()):
        raise CockpitError(
            f"Cockpit(model, …): the parameters of {type(model).__name__} are sharded (FSDP or tensor parallelism), "
            "which is not supported yet. Data-parallel training with whole parameters (DDP) is."
        )
    return model


def checked_optimizers(optimizer: object) -> list[torch.optim.Optimizer]:
    """Return the optimisers as a list, unwrapped."""
    given: Sequence[Any] = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    found = []
    for one in given:
        inner = getattr(one, "optimizer", one)  # accelerate and others wrap it, without its hooks
        if not isinstance(inner, torch.optim.Optimizer):
            raise CockpitError(
                f"Cockpit(model, optimizer, …): the optimizer is a torch.optim.Optimizer or a list of them, "
                f"not {type(one).__name__}. The step of a training is counted by its optimizer."
            )
        found.append(inner)
    if not found:
        raise CockpitError("Cockpit(model, optimizer, …): the list of optimizers is empty")
    return found


def checked_quantities(config: str | None, quantities: object, when: object = None) -> list[Quantity]:
    """Return the quantities to track, each under a name of its own."""
    if quantities is None:
        if config is not None and not isinstance(config, str):
            raise CockpitError(f"Cockpit(config=…): a name such as 'economy', not {type(config).__name__}")
        return make_preset(config or "economy", when)
    if config is not None:
        raise CockpitError("Cockpit(config=…, quantities=…): give one of them, not both")
    if when is not None:
        raise CockpitError(
            "Cockpit(quantities=…, when=…): quantities have their own, e.g. NormTest(when=every(10))"
        )
    if isinstance(quantities, str) or not isinstance(quantities, Sequence):
        raise CockpitError(
            f"Cockpit(quantities=…): a list of quantities or names, not {type(quantities).__name__}; "
            "for one quantity write quantities=[…]"
        )
    made = [_quantity(q) for q in quantities]
    seen: dict[str, Quantity] = {}
    for q in made:
        if q.name in seen:
            raise CockpitError(
                f"Cockpit(quantities=…): two quantities are called {q.name!r}: {seen[q.name]} and {q}. "
                "Give one of them a label, e.g. label='second'; it is stored as 'name:label'."
            )
        seen[q.name] = q
    return made


def _quantity(given: object) -> Quantity:
    if isinstance(given, Quantity):
        return given
    if isinstance(given, str):
        return make_quantity(given)
    if inspect.isclass(given) and issubclass(given, Quantity):
        return given()
    raise CockpitError(f"Cockpit(quantities=…): {given!r} is neither a quantity nor the name of one")


def checked_counts(step: object, seed: object, memory: object = None) -> None:
    """Insist on whole numbers for the first step, the seed and the bytes that may be kept."""
    if memory is not None and (not isinstance(memory, int) or isinstance(memory, bool) or memory < 0):
        raise CockpitError(f"Cockpit(memory=…): a number of bytes, e.g. 2**30, not {memory!r}")
    if step is not None and (not isinstance(step, int) or isinstance(step, bool) or step < 0):
        raise CockpitError(
            f"Cockpit(step=…): the number of the first step, 0 or more, not {step!r} ({type(step).__name__})"
        )
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise CockpitError(f"Cockpit(seed=…): a whole number, not {seed!r} ({type(seed).__name__})")


def checked_losses(losses: object, call: str) -> Tensor:
    """Insist on one loss per example, with a graph behind it."""
    if not isinstance(losses, Tensor):
        raise CockpitError(f"{call}(losses): a tensor with one loss per example, not {type(losses).__name__}")
    if losses.ndim == 0:
        raise CockpitError(
            f"{call}(losses): got a single number, but individual gradients need one loss per example. "
            'Compute the loss with reduction="none", e.g. nn.CrossEntropyLoss(reduction="none").'
        )
    if losses.ndim > 1:
        raise CockpitError(
            f"{call}(losses): got shape {list(losses.shape)}, but an example has one loss. Say what an example's "
            "loss is: for losses per token or pixel, losses.flatten(1).mean(1) (mean) or .sum(1) (sum)."
        )
    if not losses.is_floating_point():
        raise CockpitError(f"{call}(losses): losses are floating point numbers, not {losses.dtype}")
    if losses.numel() and not losses.requires_grad:
        raise CockpitError(
            f"{call}(losses): no gradient can flow from these losses. Were they computed under torch.no_grad(), "
            "detached, or turned into numbers? Hand in the tensor the loss function returned."
        )
    return losses
