"""The cost of watching, measured side by side: this package, its peers, and the untracked step.

`python -m benchmarks` measures (see `--help`), `python -m benchmarks report` writes tables and plots into
the docs. The package runs in environments where `cockpit` is the original, so only `contestants.cockpit`,
`run` and what belongs to the driver import ours.
"""
