"""Several tests that share one error rate."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

_Key = TypeVar("_Key", bound=Hashable)


def holm(p_values: Mapping[_Key, float]) -> dict[_Key, float]:
    """p-values adjusted by Holm's step-down method (Holm, Scand. J. Statistics 6, 1979, p. 65), by the same keys.

    Rejecting where the adjusted value is at most 5 % makes one false rejection or more in at most 5 % of families,
    however the tests depend on each other. The smallest of m values counts m times, the next m - 1 times, and none
    less than the one before it.
    """
    adjusted: dict[_Key, float] = {}
    largest = 0.0
    for rank, key in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[key]))
        adjusted[key] = largest
    return {key: adjusted[key] for key in p_values}


def discoveries(p_values: NDArray[np.float64], rate: float) -> NDArray[np.bool_]:
    """Which of many hypotheses to reject, so that at most `rate` of the rejections are false on average, `(tests,)`.

    Benjamini and Hochberg, Controlling the false discovery rate, J. R. Statist. Soc. B 57, 1995, p. 289.
    """
    return stats.false_discovery_control(p_values) <= rate if len(p_values) else np.zeros(0, dtype=bool)
