"""`data/compare/comparison.json`: everything that the verdicts rest on, for programs."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, model_validator

from stages import files
from stages.results.artifact import Document, Record
from stages.stats.quality import Outcome
from stages.text import ms_text, number_text

COMPARISON = files.COMPARE / "comparison.json"

Verdict = Literal["adopt", "reject", "inconclusive", "faster", "slower"]  # the last two for speed only
_VERDICT_KEY = re.compile(r"verdict_inference_b\d+")


class RatioResult(Record):
    """A ratio of times with its 95 % interval."""

    ratio: float
    low: float
    high: float


class ControlResult(RatioResult):
    """Time of the baseline / time of its second copy. Only noise makes it differ from 1.

    Attributes:
        differs: whether it differs from 1 at 99 %, over all measures together: then the measure decides nothing.
        throttled: share of the rounds in which the GPU was throttled, if it is so large that the measure decides
            nothing.
    """

    differs: bool = False
    throttled: float | None = None


class StateResult(RatioResult):
    """The speed-up in the `rounds` during which the machine was in one of its two states."""

    baseline_time_ms: float
    rounds: int


class SpeedupResult(RatioResult):
    """Time of the baseline / time of the candidate, with an interval of `confidence` over `processes`.

    Attributes:
        typical_ratio: ratio of typical rounds, which a stall does not change.
        baseline_time_ms, candidate_time_ms: mean time of a step or call. Their quotient is `ratio`.
        states: only where the machine was in two states and the ratio differs between them.
    """

    confidence: float
    rounds: int
    processes: int
    typical_ratio: float
    baseline_time_ms: float
    candidate_time_ms: float
    states: tuple[StateResult, ...] | None = None


class FactorsResult(Record):
    """The two factors of a speed-up: of the candidate's other settings, and of its precision on top of them."""

    settings: RatioResult
    precision: RatioResult


class VerdictTestResult(Record):
    """The one-sided p-value of a verdict `adopt`, by itself and adjusted for all verdicts of the report (Holm 1979)."""

    p: float
    p_adjusted: float


class ReconciliationResult(Record):
    """The change of a training step, candidate − baseline, in milliseconds: timed, and as the operations add up.

    Attributes:
        measured_ms, low_ms, high_ms: the timed change with its 95 % interval.
        operations_ms: sum of the changes of all operations in the traces, multiplied by `scale`.
        unexplained_ms: `measured_ms - operations_ms`.
        floor_ms: what the sum may be by noise alone, from the traces of the baseline and its own second copy.
        scale: time of the timed step for each millisecond of the traces.
    """

    measured_ms: float
    low_ms: float
    high_ms: float
    operations_ms: float
    unexplained_ms: float
    floor_ms: float
    scale: float = 1.0


class Waiting(Record):
    """How long a training step waits for its input. That of the baseline bounds what the precision can bring.

    Attributes:
        step_ms, cached_ms: mean time of a step on the input pipeline, and on a cached batch.
        low, high: 95 % interval of the wait as a share of the step.
        rounds: rounds with both.
    """

    step_ms: float
    cached_ms: float
    low: float
    high: float
    rounds: int

    @property
    def wait_ms(self) -> float:
        """Time of a step that waits for input."""
        return self.step_ms - self.cached_ms

    @property
    def share(self) -> float:
        """The wait as a share of the step."""
        return self.wait_ms / self.step_ms

    @property
    def bound(self) -> float | None:
        """Speed-up that no precision can exceed, by the lower end of the interval; None if it may wait for nothing."""
        return 1 / self.low if self.low > 0 else None

    @property
    def text(self) -> str:
        """Such as `135 of 137 ms of a training step wait for input`."""
        return f"{number_text(self.wait_ms)} of {ms_text(self.step_ms)} of a training step wait for input"


class SameWeights(Record):
    """The baseline's trained weights computed in the candidate's precision, against the baseline's; all seeds together.

    Attributes:
        images: number of test images.
        agreement: share of the predictions with the same class; an overflow has none.
        max_probability_difference: the largest difference of a probability, overflows left out.
        accuracy: in the candidate's precision, as a fraction.
    """

    images: int
    agreement: float
    max_probability_difference: float
    accuracy: float


class QualityResult(Record):
    """The score called `name`: candidate − baseline as `delta`, with its 95 % interval.

    Attributes:
        margin: largest loss that counts as the same.
        examples: number of test examples.
        unit: `fraction` for 0/1 scores such as accuracy, which are shown in percent; None for others.
        outcome: whether a loss of more than `margin` is excluded (`shown`), shown (`refuted`), or neither.
        reason: why it is not established, where the interval by itself does not tell; None otherwise.
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
    unit: Literal["fraction"] | None = None
    outcome: Outcome
    reason: str | None = None
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
    """Operations of one type in one layer, in milliseconds a traced step; None for a side without them.

    `floor_ms` is the change that noise alone may make; None without a trace of the control.
    """

    layer: str
    operation: str
    baseline_ms: float | None = None
    candidate_ms: float | None = None
    baseline_dtype: str | None = None
    candidate_dtype: str | None = None
    delta_ms: float
    floor_ms: float | None = None


class BeforeAfter(Record):
    """A number of the baseline and of the candidate."""

    baseline: float
    candidate: float


class TimeToAccuracyResult(Record):
    """Mean seconds of training, by variant, until the validation score that all of them reach.

    Attributes:
        name: of the score; `accuracy` for images. The names of the other keys are older than other scores.
        val_accuracy: that validation score.
    """

    name: str = "accuracy"
    val_accuracy: float
    time_to_accuracy_s: dict[str, float]


class CandidateResult(Record):
    """One candidate. `verdict` is on training; `verdict_inference_b<n>` are further keys.

    Speed-ups, factors and tests are keyed by measure: `train`, `inference_b<n>`. Without measurements only verdicts,
    sentence, next steps and reasons are present.

    Attributes:
        factors: only where other settings than the precision differ from the baseline's.
        quality: of two trainings.
        quality_same_weights: of the baseline's trained weights in the candidate's precision.
        tests: those of the verdicts.
        waiting: of a training step for its input.
        reconciliation: of training; only with traces.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Verdict]

    speedup: dict[str, SpeedupResult] | None = None
    factors: dict[str, FactorsResult] | None = None
    quality: QualityResult | None = None
    quality_same_weights: QualityResult | None = None
    limit: dict[Literal["train"], float] | None = None
    waiting: Waiting | None = None
    verdict: Verdict
    tests: dict[str, VerdictTestResult] | None = None
    sentence: str
    next_steps: tuple[str, ...] | None = None
    reasons: tuple[Reason, ...]
    peak_memory_mib: BeforeAfter | None = None
    max_batch_size: BeforeAfter | None = None
    same_weights: SameWeights | None = None
    operations: dict[Literal["gained", "lost"], tuple[OpChangeResult, ...]] | None = None
    reconciliation: ReconciliationResult | None = None

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
        speed_only: true where nothing was trained, so that verdicts say nothing about quality; None otherwise.
        gate: None without `compare.gate`.
        baseline_reasons: what limits the baseline by itself.
        train_time_s: seconds of a whole training by variant, validation and compilation included; mean over seeds.
        startup_s: processor seconds to import, to build the model and to run the first step, by variant.
        notes: sentences on what limits all of it, such as a measure that decides nothing.
    """

    VERSION: ClassVar[int] = 3

    baseline: str
    environment: dict[str, Any]
    control: dict[str, ControlResult]
    noise_floor: dict[str, float]
    min_speedup: float
    speed_only: Literal[True] | None = None
    gate: Literal["passed", "failed"] | None = None
    time_to_accuracy: TimeToAccuracyResult | None = None
    baseline_reasons: tuple[Reason, ...] | None = None
    train_time_s: dict[str, float] | None = None
    startup_s: dict[str, float] | None = None
    notes: tuple[str, ...] | None = None
    candidates: dict[str, CandidateResult]
