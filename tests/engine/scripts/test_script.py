"""Work on a CPU that is noted once and repeated: the same numbers from other inputs, nothing done while it is noted."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.scripts import recorder
from cockpit.engine.scripts.recorder import Recorder, ScriptRecorder
from cockpit.engine.scripts.script import Script, note, noted

CPU = torch.device("cpu")
Kept = TypeVar("Kept")
compiled = pytest.mark.skipif(not native.status().startswith("compiled"), reason="no compiler")


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


WORKS: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda x: (x * 2 + 1).square().sum(0),
    "views": lambda x: x.T.reshape(-1)[3:] + x.flatten()[:-3],
    "in place": lambda x: x.clone().mul_(3).add_(x),
    "zeros": lambda x: x.new_zeros(4).index_add_(0, torch.tensor([0, 2, 2, 1, 3]), x[:, 0]),
    "several results": lambda x: x.sort(0),
    "lists": lambda x: torch._foreach_mul([x, x[0]], 2.0),
    "joined": lambda x: torch.cat([x.flatten(), x.float().flatten()]),
    "types": lambda x: (x.float() @ x.float().T).double(),
    "integers": lambda x: (x * 10).long(),
    "numbers": lambda x: x.norm() * torch.ones(()),
    "kernels": lambda x: native.lengths([x, x + 1]) or [x.square().sum(), (x + 1).square().sum()],
}


def tensors(found: object) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", WORKS)
def test_a_script_does_the_same_with_other_numbers(name: str) -> None:
    place, work = drawn(0, 5, 4), WORKS[name]
    repeat, found = Recorder.of(CPU).record(lambda: work(place))
    for seed in (1, 2):
        place.copy_(drawn(seed, 5, 4))
        repeat()
        for result, expected in zip(tensors(found), tensors(work(place.clone())), strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-12, atol=0)


def test_results_stay_where_they_are() -> None:
    place = drawn(0, 5, 4)
    repeat, found = Recorder.of(CPU).record(lambda: (place * 2, place.sum()))
    before = [t.data_ptr() for t in found]
    repeat()
    assert [t.data_ptr() for t in found] == before


def test_nothing_is_done_while_it_is_noted() -> None:
    place, counter = torch.ones(3), torch.zeros(3)

    def work() -> None:
        counter.add_(place)
        counter[1:].mul_(2)

    repeat, _ = ScriptRecorder(CPU).record(work)
    assert counter.tolist() == [0, 0, 0]
    repeat()
    assert counter.tolist() == [1, 2, 2]


@compiled
def test_kernels_do_nothing_either() -> None:
    place, last = torch.ones(3), torch.zeros(3)
    repeat, _ = ScriptRecorder(CPU).record(lambda: native.copied([last], [place]))
    assert last.tolist() == [0, 0, 0]
    repeat()
    assert last.tolist() == [1, 1, 1]


READERS: dict[str, Callable[[Tensor], object]] = {
    "a kernel": lambda x: native.lengths([x]),
    "two of them": lambda x: [*(native.lengths([x, x]) or []), native.block_statistics(x, [], None)[0]],
    "in the middle": lambda x: native.lengths([x[2:], x[1]]),
    "nobody": lambda x: [torch.ones(2) * 2],
}


@compiled
@pytest.mark.parametrize("name", READERS)
def test_what_kernels_read_may_lie_elsewhere(name: str) -> None:
    place, work = drawn(0, 5, 4), READERS[name]
    repeat, found = ScriptRecorder(CPU).record(lambda: work(place))
    feed = recorder.feed_of(repeat, place)
    assert feed is not None
    for seed in (1, 2):
        elsewhere = drawn(seed, 5, 4)
        feed(elsewhere.data_ptr())
        repeat()
        for result, expected in zip(tensors(found), tensors(work(elsewhere)), strict=True):
            assert torch.equal(result, expected)


@pytest.mark.parametrize("name", ["arithmetic", "views", "several results", "lists", "joined"])
def test_what_torch_reads_may_not(name: str) -> None:
    place = drawn(0, 5, 4)
    repeat, _ = ScriptRecorder(CPU).record(lambda: WORKS[name](place))
    assert recorder.feed_of(repeat, place) is None


@compiled
def test_what_kernels_and_torch_read_or_what_is_written_may_not() -> None:
    place, other = drawn(0, 5, 4), drawn(1, 5, 4)

    def work() -> object:
        native.lengths([place, other])
        native.copied([other], [place])
        return place * 2

    repeat, _ = ScriptRecorder(CPU).record(work)
    assert recorder.feed_of(repeat, place) is None
    assert recorder.feed_of(repeat, other) is None


def test_random_numbers_are_drawn_anew() -> None:
    g = torch.Generator()
    repeat, found = ScriptRecorder(CPU).record(lambda: torch.rand(4, generator=g), [g])
    drawn_by_it = []
    for seed in (1, 2, 1):
        g.manual_seed(seed)
        repeat()
        drawn_by_it.append(found.tolist())
    assert drawn_by_it[0] == drawn_by_it[2] != drawn_by_it[1]
    assert drawn_by_it[0] == torch.rand(4, generator=g.manual_seed(1)).tolist()


@pytest.mark.parametrize("look", [lambda x: bool(x.any()), lambda x: x.nonzero(), lambda x: x[x > 0]])
def test_who_asks_for_values_fails(look: Callable[[Tensor], object]) -> None:
    with pytest.raises(RuntimeError, match="while a script is written"):
        ScriptRecorder(CPU).record(lambda: look(torch.ones(3)))


def test_a_failure_leaves_no_script_behind() -> None:
    calls: list[int] = []
    counter = torch.zeros(2)

    def work() -> None:
        counter.add_(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ScriptRecorder(CPU).record(work)
    assert counter.tolist() == [0, 0]
    note(calls.append, 1, kept=())  # nobody takes note
    assert calls == []


@noted
def _rounded(x: Tensor) -> Tensor:
    return torch.tensor([round(value) for value in x.tolist()])


def test_what_looks_at_values_is_noted_as_a_whole() -> None:
    place = torch.tensor([0.6, 1.4])
    repeat, found = ScriptRecorder(CPU).record(lambda: _rounded(place * 2) + 1)
    assert found.tolist() == [2, 4]
    place.fill_(5.1)
    repeat()
    assert found.tolist() == [11, 11]


def test_kernels_are_noted_by_their_addresses() -> None:
    copy, place = ctypes.memmove, torch.arange(3.0)

    def work() -> Tensor:
        result = torch.empty(3)
        note(copy, result.data_ptr(), place.data_ptr(), 12, kept=(result, place))
        return result

    repeat, found = ScriptRecorder(CPU).record(work)
    place.fill_(7)
    repeat()
    assert found.tolist() == [7, 7, 7]


def test_other_threads_are_not_noted() -> None:
    place, seen = torch.ones(2), list[Tensor]()
    with torch.no_grad(), Script() as script:
        thread = threading.Thread(target=lambda: seen.append(_rounded(place + 0.7)))
        thread.start()
        thread.join()
    script.settle()
    assert script._calls == []
    assert seen[0].tolist() == [2, 2]


def test_a_script_keeps_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    place = torch.ones(100, dtype=torch.float64)
    with torch.no_grad(), Script() as script:
        found = (place[None] * place[:10, None]).sum().add_(place.sum())
    script.settle()
    assert script.size == 8 * (1000 + 1 + 1)
    assert found.item() == 1100
    monkeypatch.setattr(recorder, "KEPT", 7999)
    with pytest.raises(RuntimeError, match="would be kept"):
        ScriptRecorder(CPU).record(lambda: place[None] * place[:10, None])


def settled(work: Callable[[], Kept]) -> tuple[Script, Kept]:
    with torch.no_grad(), Script() as script:
        found = work()
    script.settle()
    return script, found


def test_constants_are_made_once_unless_they_are_written_into() -> None:
    place = torch.ones(2)

    def work() -> tuple[Tensor, Tensor]:
        ones, sums = torch.ones(2), torch.zeros(2)
        return place + ones, sums.add_(place)

    script, (plus, sums) = settled(work)
    assert len(script._calls) == 3, "a sum, zeros, and what is added to them"
    for value in (3.0, 5.0):
        place.fill_(value)
        script.repeat()
        assert plus.tolist() == [value + 1] * 2
        assert sums.tolist() == [value] * 2


def test_what_follows_from_constants_is_one() -> None:
    place = torch.tensor([2.0, -3.0])
    script, found = settled(lambda: place * (torch.ones(2).mul(3) + place.pow(0)).sqrt())
    assert len(script._calls) == 1
    place.fill_(5)
    script.repeat()
    assert found.tolist() == [10, 10]


def test_what_nobody_reads_is_not_made() -> None:
    place, kept = torch.ones(3), []

    def work() -> Tensor:
        double = place * 2
        double.exp().sqrt_()  # two calls for nothing
        kept.append(double.square())
        return double[1:].view(2, 1)

    script, found = settled(work)
    assert len(script._calls) == 2
    assert script.size == 2 * 3 * 4
    place.fill_(3)
    script.repeat()
    assert found.tolist() == [[6], [6]], "a view keeps what it is of"
    assert kept[0].tolist() == [36, 36, 36], "results need not be returned"


def test_what_was_there_before_is_always_written() -> None:
    place, last = torch.ones(2), torch.zeros(2)
    script, _ = settled(lambda: last[1:].copy_((place * 2)[:1]).shape)
    place.fill_(4)
    script.repeat()
    assert last.tolist() == [0, 8]


def test_others_may_change_a_constant_that_they_hold() -> None:
    script, found = settled(lambda: torch.ones(2) * 3)
    found.zero_()
    script.repeat()
    assert found.tolist() == [3, 3]


def test_numbers_that_nobody_reads_are_drawn_for_those_who_come_later() -> None:
    g = torch.Generator()

    def work() -> Tensor:
        torch.rand(3, generator=g)
        return torch.rand(2, generator=g)

    repeat, found = ScriptRecorder(CPU).record(work, [g])
    g.manual_seed(1)
    repeat()
    g.manual_seed(1)
    assert torch.equal(found, work())


def test_what_a_noted_function_was_given_is_made() -> None:
    place = torch.tensor([0.6, 1.4])
    repeat, found = ScriptRecorder(CPU).record(lambda: _rounded((place * 2).sqrt()))
    place.fill_(50)
    repeat()
    assert found.tolist() == [10, 10]


@compiled
def test_kernels_read_what_calls_make_and_write_what_is_empty() -> None:
    place = torch.full((2, 4), 2.0)

    def work() -> Tensor:
        for_nothing, made = native.square_sums(place), native.square_sums(place + torch.zeros(4))
        assert for_nothing is not None
        assert made is not None
        return made + 1

    script, found = settled(work)
    assert len(script._calls) == 3, "a sum, its squares, and one more"
    place.fill_(3)
    script.repeat()
    assert found.tolist() == [19] * 4


def test_what_makes_a_difference() -> None:
    place, other, nobody = torch.ones(2), torch.ones(3), torch.ones(4)

    def work() -> Tensor:
        (nobody * 2).exp()
        return (place + other.pow(0)[:2]) * 3

    script, _ = settled(work)
    assert [script.reads(t) for t in (place, place[1:], other, nobody)] == [True, True, False, False]
