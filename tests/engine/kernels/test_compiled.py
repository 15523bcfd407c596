"""Without a GPU the kernels are compiled for one: the interpreter knows neither their PTX nor who holds a value."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cockpit.engine.kernels.cells import LEAST
from cockpit.engine.kernels.language import INTERPRETED

HERE = Path(__file__).parent
PROGRAM = """import sys, torch
torch.version.cuda = torch.version.cuda or "12.8"
from engine.kernels.compiled import main
main(*sys.argv[1:])"""
SPILLS = {
    "multiplied, wide",
    "multiplied, low",
    "multiplied, single",
    "multiplied, tall",
    "multiplied by place, tall",
}
"""Have a few registers too many, but not where it counts."""
ROOM = 48 * 1024
"""Bytes of shared memory that a program may have without asking; Triton asks where its own share alone is larger."""

Call = tuple[str, list[int], str]
"""Of instructions on counters: themselves, the shape of the operand, its layout."""


def calls(ttgir: str) -> list[Call]:
    layouts = dict(re.findall(r"^(#\w+) = (#ttg\..*)$", ttgir, re.MULTILINE))
    pattern = r'elementwise_inline_asm "([^"]*)" \{.*\} %\w+ : tensor<((?:\d+x)+)i32, (.*?)> -> '
    found = [(asm, shape, layout) for asm, shape, layout in re.findall(pattern, ttgir) if "cockpit" in asm]
    assert len(found) == sum(bool(re.search("cockpit_cells", line)) for line in ttgir.splitlines())
    return [
        (
            asm,
            [int(n) for n in shape[:-1].split("x")],
            re.sub(r"#(?!ttg)\w+", lambda m: layouts[m[0]], layout),
        )
        for asm, shape, layout in found
    ]


def copies(shape: list[int], layout: str) -> float:
    """Return how many registers of all threads hold each element (of a slice: at most)."""
    if part := re.fullmatch(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>", layout):
        dim = int(part[1])
        return copies([*shape[:dim], 1, *shape[dim:]], part[2])
    if layout.startswith("#ttg.linear"):
        return 2 ** len(re.findall(r"\[[\d, ]+\]", layout)) / math.prod(shape)
    if layout.startswith("#ttg.nvidia_mma"):
        version, warps, size = (
            [int(n) for n in re.search(rf"{key} = \[?([\d, ]+)", layout)[1].split(",") if n.strip()]  # type: ignore[index]
            for key in ("versionMajor", "warpsPerCTA", "instrShape")
        )
        rows = 16 * warps[0]
        columns = size[1] * warps[1]
        assert version[0] in (2, 3)
        return max(1.0, rows / shape[0]) * max(1.0, columns / shape[1])
    assert layout.startswith("#ttg.blocked"), layout
    sizes = [
        [int(n) for n in re.search(rf"{key} = \[([\d, ]+)\]", layout)[1].split(",")]  # type: ignore[index]
        for key in ("sizePerThread", "threadsPerWarp", "warpsPerCTA")
    ]
    return math.prod(max(1.0, math.prod(n) / extent) for extent, *n in zip(shape, *sizes, strict=True))


def blocked(size: list[int], threads: list[int], warps: list[int]) -> str:
    return f"#ttg.blocked<{{sizePerThread = {size}, threadsPerWarp = {threads}, warpsPerCTA = {warps}}}>"


MMA = "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>"


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ([8, 512], blocked([1, 4], [1, 32], [1, 4]), 1),
        ([8, 64], blocked([1, 4], [1, 32], [1, 4]), 8),
        ([128], "#ttg.slice<{dim = 1, parent = " + blocked([1, 1], [32, 1], [4, 1]) + "}>", 1),
        ([128], "#ttg.slice<{dim = 0, parent = " + blocked([1, 1], [2, 16], [1, 4]) + "}>", 2),
        ([64, 64], MMA, 1),
        ([32, 128], MMA, 2),
        ([64, 32], MMA, 2),
        ([4, 2], "#ttg.linear<{register = [[0, 1]], lane = [[1, 0], [2, 0]], warp = [], block = []}>", 1),
        (
            [4, 2],
            "#ttg.linear<{register = [[0, 1]], lane = [[1, 0], [2, 0]], warp = [[0, 0]], block = []}>",
            2,
        ),
    ],
)
def test_layouts_are_understood(shape: list[int], layout: str, expected: int) -> None:
    assert copies(shape, layout) == expected


def compiled(folder: Path, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    environment = os.environ | {
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": str(HERE.parents[1]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM, str(folder), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, Any]] = json.loads((folder / "compiled.json").read_text())
    return found


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("block", "segments", "outer, low", "by place", "multiplied"), id="some"),
        pytest.param((), id="all", marks=pytest.mark.slow),
    ],
)
def test_kernels_are_compiled_and_count_every_value_once(names: tuple[str, ...], tmp_path: Path) -> None:
    for name, made in compiled(tmp_path, names).items():
        counters = [int(n) for n in re.findall(r"\.b8 cockpit_cells\[(\d+)\]", made["ptx"])]
        assert len(counters) == 1, f"{name}: counters are declared elsewhere or twice"
        assert counters[0] % 1024 == 0, f"{name}: what lies behind {counters} bytes is not aligned"
        fits = sum(counters) + made["shared"] <= ROOM or made["shared"] > ROOM
        assert fits, f"{name}: {counters} + {made['shared']} bytes"
        assert ("STL" in made["sass"]) <= (name in SPILLS), f"{name}: registers are spilled"
        counting = [found for found in calls(made["ttgir"]) if "red.shared" in found[0]]
        assert counting, f"{name}: who counts?"
        for _, shape, layout in counting:
            assert copies(shape, layout) == 1, f"{name}: {shape} in {layout}"
            held = math.prod(shape) // made["lanes"]
            assert held % LEAST == 0, f"{name}: a lane holds {held} values"
        assert "ATOMS.POPC.INC" in made["sass"], f"{name}: those that meet in one counter wait for each other"
