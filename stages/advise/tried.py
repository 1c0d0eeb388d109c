"""`.halfstep/advise.json`: what was tried, and what it brought."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from stages import files
from stages.results.artifact import Document, Record
from stages.results.comparison import Ratio, Remedy, Verdict

FILE = files.WORK_DIR / "advise.json"


class Trial(Record):
    """One change that was tried.

    Attributes:
        variant: that was made; its entry names its parent.
        entry: its entry of `variants`.
        experiment: name of the DVC experiment.
        change: what was changed.
        reason: code of the reason.
        over_parent: speed-up of training over the parent, from the same rounds; None where it could not be compared.
        verdict: against the baseline.
        quality: outcome of the quality of two trainings: `shown`, `refuted` or `not established`.
        kept: whether the interval of `over_parent` reaches `compare.min_speedup`, and the quality is not refuted.
        seconds: that it took.
    """

    variant: str
    parent: str
    entry: dict[str, Any]
    experiment: str
    change: Remedy
    reason: str
    over_parent: Ratio | None = None
    verdict: Verdict
    quality: str | None = None
    kept: bool
    seconds: float


class Trials(Document):
    """All changes that were tried, the oldest first."""

    VERSION: ClassVar[int] = 1

    trials: tuple[Trial, ...] = Field(default=())


def read() -> Trials:
    """What was tried in this checkout; a file of another release counts as nothing."""
    path = files.original_root() / FILE
    return Trials.read(path) if path.is_file() else Trials()


def add(trial: Trial) -> None:
    """Adds a trial, in the place of an earlier one of the same experiment."""
    others = [found for found in read().trials if found.experiment != trial.experiment]
    Trials(trials=(*others, trial)).write(files.original_root() / FILE)
