"""What counting costs is measured on the real kernels, and shown for people and for programs."""

from __future__ import annotations

import json

import pytest

from benchmarks import histograms


@pytest.mark.parametrize("kind", histograms.KINDS)
def test_every_way_is_timed(kind: str) -> None:
    found = histograms.measured(kind, "cpu", positions=50, repeats=2)
    assert {"reading", "100 bins", "40 x 50 bins", "products, 40 x 50 bins", "torch.histc"} <= set(found)
    assert all(milliseconds >= 0 for milliseconds in found.values())


@pytest.mark.parametrize("programs", [False, True])
def test_what_is_printed(
    programs: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["histograms", "--device", "cpu", "--positions", "20", "--repeats", "1"]
    monkeypatch.setattr("sys.argv", [*told, "--json"] if programs else told)
    monkeypatch.setattr(histograms.torch, "set_num_threads", lambda n: None)
    histograms.main()
    printed = capsys.readouterr().out
    if programs:
        assert set(json.loads(printed)["ms"]) == set(histograms.KINDS)
    else:
        assert "40 x 50 bins" in printed
