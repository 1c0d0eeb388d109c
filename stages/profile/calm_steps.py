"""The account's rows of a repeat, from its calm steps.

Other programs, or another user of a virtual machine's processor, make a step longer by as much as a precision does, for
a second or two at a time. A few short traces cannot average that out, so only the fastest quarter of the traced
stretches of an arm counts, and the lower quartile of its untraced rounds. The timing counts all rounds; what
disturbances make of the timed change is part of what the account leaves unexplained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from stages.profile.records import TracedPart, TracedStretch
from stages.results.profile import PROFILER, AccountRow, Round

_CALM = 0.25  # of the stretches, and of the rounds


def account_rows(repeat: int, stretches: Sequence[TracedStretch], rounds: Iterable[Round]) -> Iterator[AccountRow]:
    """Yields what the calm stretches of an arm's traced steps were spent on, and what the profiler costs.

    Args:
        repeat: its number.
        stretches: of all short traces in the repeat, at least one.
        rounds: of training, without the profiler; those of other repeats are left out.
    """
    untraced_ms = [row.round_time_ms / row.steps for row in rounds if row.process == repeat]
    # this estimate of a quartile does not depend on the number of rounds, which differs between arms
    calm_ms = float(np.quantile(untraced_ms, _CALM, method="median_unbiased"))
    fastest = sorted(stretches, key=lambda stretch: stretch.step_ms)[: math.ceil(_CALM * len(stretches))]
    for number, stretch in enumerate(fastest):
        for part in (*stretch.parts, TracedPart(PROFILER, time_ms=calm_ms - stretch.step_ms)):
            yield AccountRow(repeat, number, **part._asdict())
