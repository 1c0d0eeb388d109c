"""Measures what a planted delay really amounts to: in one process, steps with it and without take turns.

python -m tools.benchmarks.other_ways.delay --slower-by 0.2
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from stages.tensorflow_import import tf
from tools.benchmarks.other_ways import digits

PAIRS, STEPS = 150, 20


def measured(slower_by: float) -> float:
    """Time of the steps with the delay over that of the steps without."""
    step = digits.compiled_step(digits.task())
    slowed = digits.Slowed(step, digits.compiled_step(digits.task()), slower_by) if slower_by else step
    arms, spent_s = (slowed, step), [0.0, 0.0]
    for arm in arms:
        _seconds(arm, STEPS)
    for pair in range(PAIRS):
        for place in (0, 1) if pair % 2 else (1, 0):
            spent_s[place] += _seconds(arms[place], STEPS)
    return spent_s[0] / spent_s[1]


def _seconds(step: Callable[[], Any], count: int) -> float:
    started_s = time.perf_counter()
    for _ in range(count):
        step()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - started_s


def main() -> None:
    """Prints the ratio in the last line."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.other_ways.delay", description=__doc__)
    parser.add_argument("--slower-by", type=float, required=True)
    print(measured(parser.parse_args().slower_by))


if __name__ == "__main__":
    main()
