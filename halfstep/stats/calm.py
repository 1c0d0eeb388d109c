"""The calm value of a series of times: around its lower quartile, where other programs disturb little.

Other programs, or another user of a virtual machine's processor, make a step longer by as much as a precision does, for
a second or two at a time. A few short traces cannot average that out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FROM, _TO = 1 / 8, 3 / 8  # the quarter of the sorted values that counts


def calm_weights(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of the values, `(n,)`, that add up to 1: those from the 12.5th to the 37.5th percentile count.

    From four values on, the expectation of the weighted mean hardly depends on their number, unlike that of the
    fastest quarter: a copy of the baseline takes part in fewer rounds than the baseline.
    """
    count = len(values)
    places = np.arange(count)
    within = np.minimum(places + 1, _TO * count) - np.maximum(places, _FROM * count)
    weights = np.empty(count)
    weights[np.argsort(values, kind="stable")] = np.maximum(within, 0.0) / ((_TO - _FROM) * count)
    return weights


def calm_mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    """The weighted mean."""
    return float(np.dot(calm_weights(values), values))
