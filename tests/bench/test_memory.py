"""Peaks are those of the tensors that live at once, to the byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cockpit.bench.memory import peak_bytes

KILO = 250  # float32 numbers in 1000 bytes


def test_what_lives_at_once_is_added_up() -> None:
    def build() -> Callable[[], None]:
        kept = torch.zeros(4 * KILO)

        def step() -> None:
            first = torch.zeros(2 * KILO)
            second = torch.zeros(3 * KILO)
            del first, second
            third = torch.zeros(KILO)
            assert len(kept) + len(third) == 5 * KILO

        return step

    assert peak_bytes(build) == 9000


def test_first_steps_do_not_count_but_what_they_keep_does() -> None:
    def build() -> Callable[[], None]:
        kept: list[Tensor] = []

        def step() -> None:
            if not kept:
                large = torch.zeros(100 * KILO)
                kept.append(torch.zeros(2 * KILO))
                del large
            assert torch.zeros(KILO).sum() == 0

        return step

    assert 3000 <= peak_bytes(build, warm=1) < 4000


def test_where_the_system_s_allocator_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    test_what_lives_at_once_is_added_up()
