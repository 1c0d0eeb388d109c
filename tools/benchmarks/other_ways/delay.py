"""Measures what a planted delay really amounts to: in one process, steps with it and without take turns.

    python -m tools.benchmarks.other_ways.delay --slower-by 0.2

A wait between two steps also lets the threads of TensorFlow fall asleep, which costs the next step time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from stages.tensorflow_import import tf
from tools.benchmarks.other_ways import digits

PAIRS, STEPS, WARM_UP_STEPS = 300, 10, 50


def measured(slower_by: float) -> float:
    """Time of the steps with the delay over that of the steps without."""
    task = digits.task()
    task.model.compile(**task.compile)
    task.model.make_train_function()
    batches = digits.endless_batches(task)
    arms = [digits.Slowed(task.model.train_function, share) for share in (slower_by, 0.0)]
    for arm in arms:
        _seconds(arm, batches, WARM_UP_STEPS)
    spent_s = [0.0, 0.0]
    for pair in range(PAIRS):
        for place in (0, 1) if pair % 2 else (1, 0):
            spent_s[place] += _seconds(arms[place], batches, STEPS)
    return spent_s[0] / spent_s[1]


def _seconds(step: Callable[[Any], Any], batches: Any, count: int) -> float:
    started_s = time.perf_counter()
    for _ in range(count):
        step(batches)
    tf.test.experimental.sync_devices()
    return time.perf_counter() - started_s


def main() -> None:
    """Prints the ratio in the last line."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.other_ways.delay", description=__doc__)
    parser.add_argument("--slower-by", type=float, required=True)
    print(measured(parser.parse_args().slower_by))


if __name__ == "__main__":
    main()
