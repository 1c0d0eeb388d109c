"""`.halfstep/advise.json`: the changes that `stages.advise` tried, and what they brought."""

from __future__ import annotations

import hashlib
import json
from typing import ClassVar

from pydantic import Field

from stages import files
from stages.params import Params
from stages.results.artifact import Document
from stages.results.comparison import Trial

FILE = files.WORK_DIR / "advise.json"


class Trials(Document):
    """All changes that were tried, the oldest first."""

    VERSION: ClassVar[int] = 2

    trials: tuple[Trial, ...] = Field(default=())


def read() -> Trials:
    """What was tried in this checkout; a file of another release counts as nothing."""
    path = files.original_root() / FILE
    return Trials.read(path) if path.is_file() else Trials()


def of(settings: Params) -> tuple[Trial, ...]:
    """What was tried with these parameters, whatever the variants."""
    return tuple(trial for trial in read().trials if trial.parameters_sha256 == digest_of(settings))


def digest_of(settings: Params) -> str:
    """Identifies the sections that decide what is compared, without the variants."""
    kept = settings.model_dump(mode="json", include={"task", "data", "model", "train", "compare"})
    del kept["train"]["variants"]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def add(trial: Trial) -> None:
    """Adds a trial, in the place of an earlier one of the same experiment."""
    others = [found for found in read().trials if found.experiment != trial.experiment]
    Trials(trials=(*others, trial)).write(files.original_root() / FILE)
