"""`data/compare/comparison.json`: everything that the verdicts rest on, for programs."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, model_validator

from stages import files
from stages.results.artifact import Document, Record
from stages.results.profile import SameWeights
from stages.stats.quality import Outcome

COMPARISON = files.COMPARE / "comparison.json"

Verdict = Literal["adopt", "reject", "inconclusive"]
_VERDICT_KEY = re.compile(r"verdict_inference_b\d+")


class ControlResult(Record):
    """Time of the baseline / time of its second copy, with the 95 % interval. Only noise makes it differ from 1."""

    ratio: float
    low: float
    high: float


class SpeedupResult(ControlResult):
    """Time of the baseline / time of the candidate, with an interval of `confidence` over `processes`."""

    confidence: float
    rounds: int
    processes: int


class QualityResult(Record):
    """The score called `name`: candidate − baseline as `delta`, with its 95 % interval, from two trainings.

    Attributes:
        margin: largest loss that counts as the same.
        examples: number of test examples.
        outcome: whether a loss of more than `margin` is excluded (`shown`), shown (`refuted`), or neither.
        mcnemar_p: p-value of McNemar's exact test, for one seed.
        sample_size: test `examples` and `seeds`, either of which alone would settle the outcome; None if settled.
    """

    name: str
    baseline: float
    candidate: float
    delta: float
    low: float
    high: float
    margin: float
    seeds: int
    examples: int
    outcome: Outcome
    mcnemar_p: float | None = None
    sample_size: dict[Literal["examples", "seeds"], int] | None = None


class Reason(Record):
    """A cause of what `measure` shows; `time_ms` is the part of a step that it explains, None if it has no time."""

    code: str
    measure: str = "train"
    text: str
    evidence: dict[str, Any]
    advice: str
    time_ms: float | None = None


class OpChangeResult(Record):
    """Operations of one type in one layer, in milliseconds a step; None for a side without them."""

    layer: str
    operation: str
    baseline_ms: float | None = None
    candidate_ms: float | None = None
    baseline_dtype: str | None = None
    candidate_dtype: str | None = None
    delta_ms: float


class BeforeAfter(Record):
    """A number of the baseline and of the candidate."""

    baseline: float
    candidate: float


class TimeToAccuracyResult(Record):
    """Mean seconds of training, by variant, until the validation accuracy that all of them reach."""

    val_accuracy: float
    time_to_accuracy_s: dict[str, float]


class CandidateResult(Record):
    """One candidate. `verdict` is on training; `verdict_inference_b<n>` are further keys.

    Speed-ups are keyed by measure: `train`, `inference_b<n>`. Without measurements only verdicts, sentence, next steps
    and reasons are present.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Verdict]

    speedup: dict[str, SpeedupResult] | None = None
    quality: QualityResult | None = None
    limit: dict[Literal["train"], float] | None = None
    verdict: Verdict
    sentence: str
    next_steps: tuple[str, ...] | None = None
    reasons: tuple[Reason, ...]
    peak_memory_mib: BeforeAfter | None = None
    max_batch_size: BeforeAfter | None = None
    same_weights: SameWeights | None = None
    operations: dict[Literal["gained", "lost"], tuple[OpChangeResult, ...]] | None = None

    @model_validator(mode="after")
    def _no_other_keys(self) -> Self:
        unknown = [key for key in self.__pydantic_extra__ if not _VERDICT_KEY.fullmatch(key)]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: unknown keys")
        return self

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts by measure."""
        others = {key.removeprefix("verdict_"): verdict for key, verdict in self.__pydantic_extra__.items()}
        return {"train": self.verdict, **others}


class ComparisonResult(Document):
    """All candidates against the baseline.

    Attributes:
        environment: the machine, as in `data/environment.json`.
        control: the A/A comparison by measure.
        noise_floor: by measure, how far the control's interval reaches from 1.
        min_speedup: smallest speed-up worth having.
        gate: None without `compare.gate`.
        baseline_reasons: what limits the baseline by itself.
    """

    VERSION: ClassVar[int] = 2

    baseline: str
    environment: dict[str, Any]
    control: dict[str, ControlResult]
    noise_floor: dict[str, float]
    min_speedup: float
    gate: Literal["passed", "failed"] | None = None
    time_to_accuracy: TimeToAccuracyResult | None = None
    baseline_reasons: tuple[Reason, ...] | None = None
    candidates: dict[str, CandidateResult]
