"""What graphs have saved: compared, kept in fixed places, and left to the user as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cockpit.engine.derivatives.derive import by_hand, derivatives
from cockpit.engine.derivatives.saved import Places, saved, stand_in
from curvature_problems import Cube
from layer_check import filled, normal


class Layer(nn.Module):
    """A weight, and a function of it and the input."""

    def __init__(self, size: int, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.empty(size)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


def ended(*layers: nn.Module, size: int = 8) -> nn.Module:
    return filled(nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, 3)))


def image(*layers: nn.Module) -> nn.Module:
    return ended(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 3, 2, padding=1), *layers, size=27)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: ended(nn.Linear(8, 8), nn.Tanh()),
    "in place": lambda: image(nn.ReLU(inplace=True)),
    "batch norm": lambda: image(nn.BatchNorm2d(3), nn.Tanh()),
    "layer norm": lambda: ended(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()),
    "repeated": lambda: ended(Layer(8, lambda x, w: (x.mean(1, keepdim=True).expand(-1, 8) * w).tanh())),
    "strided": lambda: ended(Layer(4, lambda x, w: (x[:, ::2] * w).sin()), size=4),
    "saved twice": lambda: ended(nn.Linear(8, 8), Layer(8, lambda x, w: x * x * w + (x * w).exp())),
    "indexed": lambda: ended(Layer(8, lambda x, w: w[x.argsort(1)] * x.max(1, keepdim=True)[0])),
    "dropout": lambda: ended(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh()),
    "power": lambda: ended(Layer(8, lambda x, w: (w * x).pow(3) * 0.3)),
}


def losses_of(model: nn.Module, seed: int = 0, n: int = 6) -> Tensor:
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        return F.cross_entropy(model(normal(n, 8, seed=seed)), torch.arange(n) % 3, reduction="none")


def curvature(losses: Tensor, model: nn.Module) -> list[Tensor]:
    """The gradient, and a product with the Hessian; by the engine or by hand."""
    parameters = list(model.parameters())
    first = derivatives(losses, parameters, torch.linspace(1, 2, len(losses)).to(losses), create_graph=True)
    vectors = [normal(*g.shape, seed=k) for k, g in enumerate(first)]  # type: ignore[union-attr]
    second = derivatives(first, parameters, vectors)  # type: ignore[arg-type]
    return [*first, *second]  # type: ignore[list-item]


@pytest.mark.parametrize("name", MODELS)
def test_places_give_the_derivatives_of_what_they_are_filled_with(name: str) -> None:
    model = MODELS[name]()
    a, b = losses_of(model, 0), losses_of(model, 1)
    alone = losses_of(model, 0)
    seen = saved(a, [a])
    places = Places(seen)
    for filling, truth in ((saved(b, [b]), b), (seen, alone)):
        assert places.fits(filling)
        places.fill(filling)
        with places.taken(), by_hand():
            found = curvature(a, model)
        torch.testing.assert_close(found, curvature(truth, model), rtol=1e-12, atol=1e-12)
        assert torch.equal(places.more[0], truth)
    places.fill(saved(b, [b]))
    assert all(
        map(torch.equal, curvature(a, model), curvature(alone, model))
    )  # out of them, nothing has changed
    grads = [torch.autograd.grad(x.sum(), list(model.parameters())) for x in (a, alone)]
    assert all(map(torch.equal, *grads))


def test_forms() -> None:
    model = ended(nn.Linear(8, 8), nn.LeakyReLU(0.1), nn.Dropout(0.3))
    form = saved(losses_of(model)).form
    assert saved(losses_of(model, 1)).form == form
    assert saved(losses_of(model, n=5)).form != form
    model[2].eval()
    assert saved(losses_of(model)).form != form
    model[2].train()
    model[1].negative_slope = 0.2
    assert saved(losses_of(model)).form != form
    model[1].negative_slope = 0.1
    assert saved(losses_of(model)).form == form
    model[0].bias.data = model[0].bias.detach().clone()
    elsewhere = saved(losses_of(model)).form
    assert elsewhere != form
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    assert saved(losses_of(model)).form not in (form, elsewhere)


def test_what_belongs_to_a_graph_as_well_is_of_its_form() -> None:
    losses, x = losses_of(MODELS["linear"]()), normal(3, 4)
    seen = saved(losses, [x, losses])
    assert [t.data_ptr() for t in seen.tensors[-2:]] == [x.data_ptr(), losses.data_ptr()]
    assert seen.form == saved(losses, [normal(3, 4, seed=1), losses]).form
    assert seen.form != saved(losses, [x.T, losses]).form
    assert saved(x).tensors == []


def test_numbers_that_lie_elsewhere_are_settings() -> None:
    w = torch.ones(3, device="meta", requires_grad=True)
    forms = [saved((w * 2).sin() * factor).form for factor in (0.3, 0.3, 0.4)]
    assert forms[0] == forms[1] != forms[2]
    with pytest.raises(RuntimeError, match="lies on cpu"):
        saved((w * 2)[torch.tensor([0, 2])])
    here = torch.ones(3, requires_grad=True)
    first, second = (saved(here.sin() * factor) for factor in (0.3, 0.4))
    assert first.form == second.form  # an ordinary tensor
    assert 0.3 in [float(t) for t in first.tensors if t.numel() == 1]
    assert first.form != saved(here.sin().pow(2)).form
    assert saved(here * here.detach()[:1]).form != saved(here * here.detach()[1:2]).form  # of the parameter


def test_the_size_counts_memory_once() -> None:
    w = torch.ones(3, 4, requires_grad=True)
    y = w.sin()
    assert saved((y * y).sum()).size == 12 * 4


def hooked(x: Tensor, w: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t.numpy(force=True), torch.from_numpy):
        return (x * w).tanh()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, w: Cube.apply(x * w), "CubeBackward is written in Python"),
        (hooked, "packed by the user's code"),
        (lambda x, w: checkpoint(lambda y: (y * w).tanh(), x, use_reentrant=False), "user's code"),
        (
            lambda x, w: (w * x).to_sparse().to_dense() + torch.sparse.mm(x.to_sparse(), w.diag()),
            "a saved tensor is",
        ),
    ],
)
def test_what_is_not_read(function: Callable[[Tensor, Tensor], Tensor], reason: str) -> None:
    models = [ended(Layer(8, function)) for _ in range(2)]
    losses, alone = map(losses_of, models)
    with pytest.raises(RuntimeError, match=reason):
        saved(losses)
    losses.sum().backward()
    alone.sum().backward()
    grads = ([p.grad for p in model.parameters()] for model in models)
    assert all(map(torch.equal, *grads))  # type: ignore[arg-type]


def changed(places_first: bool) -> Tensor:
    """Losses of which a saved tensor was changed after places were made, or before."""
    w = normal(3).requires_grad_()
    hidden = w.exp()
    losses = hidden.sin()
    if places_first:
        Places(saved(losses))
    hidden.detach().zero_()
    if not places_first:
        Places(saved(losses))
    return losses


def test_a_change_in_place_is_still_noticed() -> None:
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed(places_first=True).sum().backward()


def test_a_change_in_place_that_was_before_is_still_noticed() -> None:
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed(places_first=False).sum().backward()


def test_what_was_the_same_has_to_be() -> None:
    w = normal(4).requires_grad_()
    x, y = normal(4), normal(4, seed=1)

    graphs = [(w * a).sin() + w * b for a, b in ((x, x), (y, y), (x, y))]  # they live as long as their slots
    alike, others, apart = map(saved, graphs)
    assert alike.form == others.form == apart.form
    places = Places(alike)
    assert places.fits(others)
    assert not places.fits(apart)
    assert Places(apart).fits(alike)
    assert not places.fits(saved((w * x).sin()))


def test_a_stand_in_has_the_same_place_in_the_graph() -> None:
    w = normal(3, 2).requires_grad_()
    place = normal(3, 2, seed=1)
    for t in (w, w * 2, w.sin().T.contiguous().T, torch.stack([w, w]).unbind()[1]):
        found = stand_in(t, place)
        assert get_gradient_edge(found) == get_gradient_edge(t)
        assert torch.equal(found, place)
        assert found.data_ptr() == place.data_ptr()
        with torch.no_grad():
            assert stand_in(t, place).requires_grad
    (g,) = torch.autograd.grad(stand_in(w * 2, place).square().sum(), [w])
    assert torch.equal(g, 4 * place)


def test_nothing_keeps_what_was_saved() -> None:
    model = MODELS["batch norm"]()
    losses = losses_of(model)
    seen = saved(losses, [losses])
    fixed = {t.untyped_storage().data_ptr() for t in model.buffers()}
    kept = [t.untyped_storage() for t in seen.tensors]
    refs = [StorageWeakRef(s) for s in kept if s.data_ptr() not in fixed]
    places = Places(seen)
    places.fill(seen)
    with places.taken(), by_hand():
        there = stand_in(losses, places.more[0])
        gradient = derivatives(there, list(model.parameters()), torch.ones_like(there), create_graph=True)
    del seen, kept
    assert not any(ref.expired() for ref in refs)
    losses.sum().backward()
    del losses
    assert all(ref.expired() for ref in refs)
    assert gradient[0] is not None  # whoever records keeps its graph


def test_places_that_nobody_reads_are_not_filled() -> None:
    w = normal(3).requires_grad_()

    def graph() -> Tensor:
        hidden = w.exp()
        return (hidden.sin() * hidden.cos()).sum()

    first = saved(graph())
    places = Places(first)
    places.fill(first)
    kept = [core.clone() for core in places._cores.values()]
    places.narrow(lambda place: place is places._cores[0])
    with torch.no_grad():
        w.add_(1)
    second = saved(graph())
    assert places.fits(second)
    places.fill(second)
    changed = [not torch.equal(core, k) for core, k in zip(places._cores.values(), kept, strict=True)]
    assert changed == [True] + [False] * (len(kept) - 1)
    assert len(kept) > 1
