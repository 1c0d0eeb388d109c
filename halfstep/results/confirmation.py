"""What was tried to show that the cause that the traces name is one, and what came of it."""

from __future__ import annotations

from typing import ClassVar, Literal

from halfstep.results.artifact import Document, Record
from halfstep.system import files

CONFIRMATION = files.PROFILE / "confirmation.json"
CONFIRMED_SHARE = 0.5  # of what the traces promise, at least

Outcome = Literal["confirmed", "refuted", "undecided"]


class Intervention(Record):
    """A change that the traces promise to save time by.

    Attributes:
        variant: the candidate.
        layers: paths of the layers that compute in float32 then.
        what: what these are, such as `all DepthwiseConv2D`; None where each stands by itself.
        promised_ms: what a step takes less then, by the traces.
    """

    variant: str
    layers: tuple[str, ...]
    what: str | None = None
    promised_ms: float


class Confirmation(Document):
    """What the candidate's step takes less with the change, from repeats of both in turns.

    Attributes:
        intervention: what was changed, and promised before.
        value, low, high: milliseconds a step, with a 90 % interval: each side has 5 %.
        repeats: of both.
    """

    VERSION: ClassVar[int] = 1

    intervention: Intervention
    value: float
    low: float
    high: float
    repeats: int

    @property
    def outcome(self) -> Outcome:
        """`confirmed` where the interval excludes 0 and half of the promise is saved; `refuted` where it cannot be."""
        least_ms = CONFIRMED_SHARE * self.intervention.promised_ms
        if self.low > 0 and self.value >= least_ms:
            return "confirmed"
        return "refuted" if self.high < least_ms else "undecided"
