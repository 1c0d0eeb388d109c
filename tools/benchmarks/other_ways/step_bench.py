"""What a user of pyperf writes: a benchmark of one training step. pyperf runs this file in each of its processes."""

from __future__ import annotations

import os

import pyperf

from tools.benchmarks.other_ways import digits

SLOWER_BY = "HALFSTEP_SLOWER_BY"


def main() -> None:
    """Measures the step, or a part of it."""
    task = digits.task(slower_by=float(os.environ[SLOWER_BY]))
    task.model.compile(**task.compile)
    task.model.make_train_function()
    batches = digits.endless_batches(task)
    pyperf.Runner().bench_func("training step", lambda: task.model.train_function(batches))


if __name__ == "__main__":
    main()
