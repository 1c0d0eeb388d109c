"""What each way answers to one question: is a training step of the candidate at least 1.05 times as fast?

The ways that time `fit` have no interval: the ratio itself is the answer. pyperf's way is that of pyperf 2.10
(`doc/runner.rst`, `_compare.py` and `_utils.py` of its repository): by default 20 processes one after the other, and in
each one value that is left out and three that count, each of as many loops, a power of two, as take 100 ms.
`compare_to` tests the 60 values of each side by Student's t for two samples of equal variance at 5 %, and says "Not
significant!", or how many times faster or slower the mean is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from stages.params import CompareParams
from tools.benchmarks.other_ways.recordings import Fit

Answer = Literal["yes", "no", "undecided"]

MIN_SPEEDUP = CompareParams().min_speedup
PROCESSES, VALUES, MIN_VALUE_US = 20, 3, 100_000
SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Found:
    """What a way says: its estimate of the speed-up, its answer, the seconds that it took, and its interval if any."""

    ratio: float
    answer: Answer
    seconds: float
    interval: tuple[float, float] | None = None


def answer_of(ratio: float) -> Answer:
    """The answer of a way without an interval."""
    return "yes" if ratio >= MIN_SPEEDUP else "no"


def is_wrong(answer: Answer, truth: float) -> bool:
    """Whether the answer is false; `undecided` never is. At a truth of exactly 1.05, `no` is false."""
    return answer == ("no" if truth >= MIN_SPEEDUP else "yes")


def stopwatch(before: Fit, after: Fit, epochs: int) -> float:
    """The ratio of the wall times of `fit`."""
    return before.seconds(epochs) / after.seconds(epochs)


def progress_bar(before: Fit, after: Fit, epochs: int) -> float:
    """The ratio of the times per step that the progress bar shows at the end of the last epoch."""
    return shown_ms(before, epochs) / shown_ms(after, epochs)


def shown_ms(fit: Fit, epochs: int) -> float:
    """What the progress bar shows per step, rounded as it does (`Progbar` of Keras 3).

    It counts from the end of the epoch's first step to its last update, which comes after the validation.
    """
    last = epochs - 1
    spent_us = fit.step_us[last, 1:].sum() + fit.gap_us[last, 1:].sum() + fit.tail_us[last]
    step_us = float(spent_us) / (fit.step_us.shape[1] - 1)
    if step_us < 1000:
        return round(step_us) / 1000
    return float(round(step_us / 1000) if step_us < 1e6 else 1000 * round(step_us / 1e6))


def loops_of(fit: Fit) -> int:
    """Steps in a value: the smallest power of two that takes long enough; no more than were recorded."""
    step_us = float(np.median(fit.step_us.ravel()[1:]))
    wanted = 1 << max(0, int(np.ceil(np.log2(MIN_VALUE_US / step_us))))
    return min(wanted, fit.step_us.size // (1 + VALUES))


def values_of(fit: Fit, loops: int) -> NDArray[np.float64]:
    """Microseconds of a step in each of the values that count; the steps of the first value compile and warm up."""
    steps = fit.step_us.ravel()[loops : loops * (1 + VALUES)]
    return steps.reshape(VALUES, loops).mean(axis=1)


def timed_s(fit: Fit) -> float:
    """Seconds of all steps that one process runs, those that warm up included."""
    return 1e-6 * float(fit.step_us.ravel()[: loops_of(fit) * (1 + VALUES)].sum())


def pyperf_answer(before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[float, Answer]:
    """What `compare_to` says of the values of both sides: the ratio of the means, and whether it is significant."""
    ratio = float(before.mean() / after.mean())
    if np.ptp(before) == np.ptp(after) == 0:  # no variance: the test divides by 0
        return ratio, "undecided" if ratio == 1 else answer_of(ratio)
    is_significant = stats.ttest_ind(before, after).pvalue <= SIGNIFICANCE
    return ratio, answer_of(ratio) if is_significant else "undecided"


def pyperf(before: Sequence[Fit], after: Sequence[Fit]) -> tuple[float, Answer]:
    """The answer from 1 + 20 processes of each side, of which the first one calibrates the loops."""
    sides = []
    for calibration, *counted in (before, after):
        loops = loops_of(calibration)
        sides.append(np.concatenate([values_of(fit, loops) for fit in counted]))
    return pyperf_answer(*sides)
