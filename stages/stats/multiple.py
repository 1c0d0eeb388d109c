"""Several tests that share one error rate."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

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
