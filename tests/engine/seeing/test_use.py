"""One call of a layer: what it keeps, elsewhere and later, and how nodes of the graph know it again."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit.engine.layers.formula import formula_for
from cockpit.engine.seeing.use import Use, calls_at, mark
from layer_check import normal


def use_of(module: nn.Module, *args: Tensor, moving: frozenset[int] = frozenset()) -> tuple[Use, Tensor]:
    formula = formula_for(module)
    assert formula is not None
    output = module(*args)
    return Use("layer", module, formula, args, {}, [output], moving), output


def test_inputs_are_kept_without_their_graph_and_without_a_copy() -> None:
    x = normal(2, 3).requires_grad_()
    use, output = use_of(nn.Linear(3, 4).double(), x)
    (kept,) = use.inputs
    assert kept.data_ptr() == x.data_ptr()
    assert not kept.requires_grad
    assert use.key == ("layer", (2,))
    assert use.shapes == (output.shape,)


def test_an_input_that_the_optimiser_moves_is_copied() -> None:
    weight = nn.Parameter(normal(2, 3))
    use, _ = use_of(
        nn.Linear(3, 4).double(), weight[:1], moving=frozenset([weight.untyped_storage().data_ptr()])
    )
    before = use.inputs[0].clone()
    with torch.no_grad():
        weight.zero_()
    assert torch.equal(use.inputs[0], before)


def test_several_inputs_are_found_wherever_they_are() -> None:
    a, b = normal(2, 3), normal(2, 5, seed=1)
    use, _ = use_of(nn.Bilinear(3, 5, 4).double(), a, b)
    assert [x.shape for x in use.inputs] == [a.shape, b.shape]
    places = [torch.zeros(2, 3), torch.zeros(2, 5)]
    there = use.at(places)
    assert all(x is place for x, place in zip(there.args, places, strict=True))
    assert use.args[0] is use.inputs[0], "the call itself stays where it is"


def test_what_is_overwritten_is_noticed_until_it_is_taken_for_granted() -> None:
    x = normal(2, 3)
    use, _ = use_of(nn.Linear(3, 4).double(), x)
    assert use.intact()
    x.mul_(2)
    assert not use.intact()
    use.renew()
    assert use.intact()
    use.release()
    assert use.inputs == []
    assert use.intact()


def test_a_node_knows_which_call_made_it_as_long_as_there_is_one() -> None:
    use, output = use_of(nn.Linear(3, 4).double(), normal(2, 3))
    mark(use, [output])
    node = output.grad_fn
    assert node is not None
    assert calls_at(node) == [(use, 0, 0)]
    del use
    assert calls_at(node) == []
