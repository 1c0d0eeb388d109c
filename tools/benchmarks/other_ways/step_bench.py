"""What a user of pyperf writes: a benchmark of one training step. pyperf runs this file in each of its processes."""

from __future__ import annotations

import os

import pyperf

from tools.benchmarks.other_ways import digits

SLOWER_BY = "HALFSTEP_SLOWER_BY"


def main() -> None:
    """Measures the step, or a part of it."""
    step = digits.compiled_step(digits.task(slower_by=float(os.environ[SLOWER_BY])))
    pyperf.Runner().bench_func("training step", step)


if __name__ == "__main__":
    main()
