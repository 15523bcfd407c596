"""The problems: six of DeepOBS, residual networks, language models, a recurrent network."""

from __future__ import annotations

from benchmarks.problems import deepobs, recurrent, residual, transformer
from benchmarks.problems.problem import Problem

PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (*deepobs.PROBLEMS, *residual.PROBLEMS, *transformer.PROBLEMS, recurrent.CHAR_LSTM)
}
