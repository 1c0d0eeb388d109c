"""`.halfstep/search/<variant>.json`: what a search tried, and what it found."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from stages.results.artifact import Document, Record
from stages.results.comparison import Change, Ratio

Outcome = Literal["needed", "faster", "nothing needed", "none pays", "not located", "out of time"]


class TrainingTried(Record):
    """A training with some layers in float32.

    Attributes:
        float32_layers: these.
        trains: whether it ended with finite numbers, a loss scale of at least 1, and no layer without gradients.
        why: what was wrong; None if nothing was.
        named: layers that it says to keep in float32, too.
        val_score: validation score of the last epoch; None without one.
    """

    float32_layers: tuple[str, ...]
    trains: bool
    why: str | None = None
    named: tuple[str, ...] = ()
    val_score: float | None = None
    seconds: float


class CandidateTried(Record):
    """A set of layers that was timed.

    Attributes:
        name: what the layers are, in words.
        float32_layers: these.
        over_variant: time of a step of the variant / of this candidate, in its last measurement; None for the variant.
        over_baseline: time of a step of the baseline / of this candidate.
        stage: number of the last measurement that it took part in, from 1.
        val_change: change of the mean validation score where the baseline's weights are used in this precision.
        training: its own, of the fastest set; None for the others.
        trained_val_change: change of the mean validation score from the baseline's training to that one.
    """

    name: str
    float32_layers: tuple[str, ...]
    over_variant: Ratio | None = None
    over_baseline: Ratio | None = None
    stage: int = 0
    val_change: Change | None = None
    training: TrainingTried | None = None
    trained_val_change: Change | None = None


class Search(Document):
    """A search, with its outcome.

    Attributes:
        key: identifies parameters, code, data and machine; of another key, nothing is taken over.
        outcome: None while it is not finished.
        entry: that was added to `variants`; None if none was.
    """

    VERSION: ClassVar[int] = 1

    variant: str
    key: str
    trainings: tuple[TrainingTried, ...] = ()
    candidates: tuple[CandidateTried, ...] = ()
    outcome: Outcome | None = None
    sentence: str | None = None
    new_variant: str | None = None
    entry: dict[str, Any] | None = None
    seconds: float = 0.0
