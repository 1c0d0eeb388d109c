"""`data/compare/comparison.json`: everything that the verdicts rest on, for programs."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from halfstep.operations.op_kinds import StepKind
from halfstep.results.artifact import Document, Record
from halfstep.results.confirmation import Confirmation
from halfstep.results.prepared import PreparedInfo
from halfstep.results.profile import Configuration, Protocol, Setting
from halfstep.results.serving import Alone, ExportedFile, ServedArm, in_float32
from halfstep.results.task import TaskInfo
from halfstep.system import files
from halfstep.words.outcomes import Outcome, Side, side_of
from halfstep.words.text import TRAIN, end_text, ms_text, number_text

ANSWER_WIDTH = 69  # columns of a line of the answer beside its label
COMPARISON = files.COMPARE / "comparison.json"

Verdict = Literal["adopt", "reject", "inconclusive", "faster", "slower"]  # the last two for speed only
GateState = Literal["passed", "failed"]
_INFERENCE = "verdict_inference_b"


def verdict_key(measure: str) -> str:
    """The key of a measure's verdict in comparison.json, and the beginning of its tag in MLflow."""
    return "verdict" if measure == TRAIN else f"verdict_{measure}"


class Estimate(Record):
    """A number with its uncertainty.

    Attributes:
        value: in `unit`.
        low, high: its interval.
        confidence: confidence level of the interval, after paying for interim looks.
        n: number of repeats, or of test examples, that the interval is over.
        unit: `×` for a ratio of times; `fraction` for a share, which is shown in percent; None for plain numbers.
        warnings: sentences on what the interval does not say.
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    value: float
    low: float
    high: float
    confidence: float | None = None
    n: int | None = None
    unit: Literal["×", "fraction"] | None = None
    warnings: tuple[str, ...] | None = None


class Ratio(Estimate):
    """A ratio of times. In the file its value is called `ratio`, and `n`, the number of repeats, `processes`.

    Attributes:
        occasions: number of occasions that it is the mean of; None of one. The repeats are of the newest one.
        occasion_spread: standard deviation of its logarithm between them.
    """

    value: float = Field(alias="ratio")
    n: int | None = Field(default=None, alias="processes")
    unit: Literal["×"] = "×"
    occasions: int | None = None
    occasion_spread: float | None = None

    @property
    def ratio(self) -> float:
        """The value."""
        return self.value

    def side(self, required: float) -> Side:
        """On which side of a required ratio the interval lies."""
        return side_of(self.low, self.high, required)


class Control(Ratio):
    """Time of the baseline / time of its second copy. Only noise makes it differ from 1.

    Attributes:
        rounds: that it is over, fewer than those of the variants.
        differs: whether it differs from 1 at 99 %, over all measures together: then the measure decides nothing.
        throttled: share of the rounds in which the GPU was throttled, if it is so large that the measure decides
            nothing.
    """

    rounds: int | None = None
    differs: bool = False
    throttled: float | None = None

    @property
    def noise_floor(self) -> float:
        """How far its interval reaches from 1."""
        return max(abs(self.low - 1), abs(self.high - 1))


class MeasuredSpeedup(Ratio):
    """Time of the baseline / time of the candidate.

    Attributes:
        typical_ratio: ratio of typical rounds, which a stall does not change.
        baseline_time_ms, candidate_time_ms: mean time of a step or call. Their quotient is the ratio.
    """

    n: int = Field(alias="processes")
    rounds: int
    typical_ratio: float
    baseline_time_ms: float
    candidate_time_ms: float


class Factors(Record):
    """The two factors of a speed-up: of the candidate's other settings, and of its precision on top of them."""

    settings: Ratio
    precision: Ratio


class VerdictTest(Record):
    """The one-sided p-value of a verdict `adopt`, by itself and adjusted for all verdicts of the report (Holm 1979)."""

    p: float
    p_adjusted: float


class BeforeAfter(Record):
    """A number of the baseline and of the candidate."""

    baseline: float
    candidate: float


class Change(Estimate):
    """A change of time, candidate − baseline. In the file its value is called `delta`."""

    value: float = Field(alias="delta")

    @property
    def delta(self) -> float:
        """The value."""
        return self.value

    @property
    def includes_0(self) -> bool:
        """Whether the interval includes 0."""
        return self.low <= 0 <= self.high


class PartChange(Change):
    """The change of a part of the step, and its mean time on both sides."""

    baseline_ms: float
    candidate_ms: float


class KindChange(PartChange):
    """What operations of one kind change by.

    Attributes:
        plain_ms: the change before both arms are brought to a common inflation.
        limit_ms: what the limit would leave of the baseline's time.
        p: two-sided p-value that they do not change; None where an arm has none of them, which is a fact.
        least_ms: the smallest change that these traces would show beside the other kinds of the account.
        named: true if they do, at 5 % over all kinds of all accounts of the report (Holm).
    """

    kind: StepKind
    plain_ms: float
    limit_ms: float | None = None
    p: float | None = None
    least_ms: float | None = None
    named: Literal[True] | None = None


class LayerClassChange(PartChange):
    """What operations of one kind change by in all layers of one class, of which there are `layers`."""

    layer_class: str
    kind: StepKind
    layers: int


Tier = Literal["explained", "suggested", "not_known"]
_EXPLAINED, _OVERSHOT = 0.5, 1.5  # of the measured change: at least, and at most
_NEARLY_ALL = 0.8  # of what the named kinds cost
_APART = 1.25  # arms whose traced steps are inflated by factors that differ more are not compared


class Account(Record):
    """What changed in a step: measured = kinds + disturbance.

    Attributes:
        measured: as it was timed.
        calm: the calm step without the profiler.
        kinds: of operations, and `host` for instants without one: their share of traced steps, times the calm step; the
            largest change first.
        disturbance: what is measured beyond the kinds.
        inflation: the traced step / the calm one.
        repeats: of the baseline with traces.
        copy_kinds: those by which the baseline's copy differs from it. Only noise makes them differ.
        void: true if there are some, at 99 %: then no reason rests on the account.
        classes: by layers' class and kind, of the kinds that are named, the largest change first; small ones, and those
            that may be 0, are left out.
        confirmation: what came of a change that the traces promise to save time by.
    """

    unit: Literal["ms a step"] = "ms a step"
    measured: Change
    calm: PartChange
    kinds: tuple[KindChange, ...]
    disturbance: Change
    inflation: BeforeAfter
    repeats: int
    copy_kinds: tuple[KindChange, ...] | None = None
    void: Literal[True] | None = None
    classes: tuple[LayerClassChange, ...] | None = None
    confirmation: Confirmation | None = None

    @property
    def cost_ms(self) -> float:
        """What the named kinds cost that take longer."""
        return math.fsum(max(0.0, kind.delta) for kind in self.named)

    @property
    def is_refuted(self) -> bool:
        """Whether nearly all of what the traces name was tried, and is no cause."""
        tried = self.confirmation
        if tried is None or tried.outcome != "refuted":
            return False
        return tried.intervention.promised_ms >= _NEARLY_ALL * self.cost_ms

    @property
    def named(self) -> tuple[KindChange, ...]:
        """The kinds that change beyond doubt."""
        return tuple(kind for kind in self.kinds if kind.named)

    @property
    def explained_ms(self) -> float:
        """What the named kinds add up to."""
        return math.fsum(kind.delta for kind in self.named)

    @property
    def tier(self) -> Tier:
        """What may be said of the cause.

        `explained`: the named kinds add up to 0.5 to 1.5 times what was measured, as they are and at a common inflation
        of both arms, and these inflations are alike. `suggested`: they have its sign and are no more than 1.5 times it.
        """
        if self.void or self.is_refuted or self.measured.includes_0 or not self.named:
            return "not_known"
        plain_ms = math.fsum(kind.plain_ms for kind in self.named)
        shares = [total_ms / self.measured.delta for total_ms in (self.explained_ms, plain_ms)]
        inflations = sorted((self.inflation.baseline, self.inflation.candidate))
        if all(_EXPLAINED <= share <= _OVERSHOT for share in shares) and inflations[1] <= _APART * inflations[0]:
            return "explained"
        return "suggested" if 0 < shares[0] <= _OVERSHOT else "not_known"

    @property
    def is_sound(self) -> bool:
        """Whether reasons may rest on it."""
        return not self.void and (self.tier != "not_known" or self.measured.includes_0)

    def kind(self, name: str) -> KindChange | None:
        """The change of a kind; None if no step has it."""
        return next((change for change in self.kinds if change.kind == name), None)


LEAST_WAIT = 0.1  # share of a step: a wait whose interval reaches below it is neither a cause nor a bound


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
    def is_impossible(self) -> bool:
        """Whether the interval is wholly below 0: a step cannot wait less than nothing."""
        return self.high < 0

    @property
    def bound(self) -> float | None:
        """Speed-up that no precision can exceed, by the lower end of the interval; None if it may hardly wait."""
        return 1 / self.low if self.low > LEAST_WAIT else None

    @property
    def text(self) -> str:
        """Such as `135 of 137 ms of a training step wait for input`."""
        return f"{number_text(self.wait_ms)} of {ms_text(self.step_ms)} of a training step wait for input"


class PairedChange(Estimate):
    """Candidate − baseline, of `name`, on the same test examples. In the file its value is called `delta`.

    Attributes:
        n: number of test examples; in the file `examples`.
        baseline, candidate: the mean over the seeds.
    """

    value: float = Field(alias="delta")
    n: int = Field(alias="examples")
    name: str
    baseline: float
    candidate: float


class Quality(PairedChange):
    """The change of a score.

    Attributes:
        margin: largest loss that counts as the same.
        kind: `binary` for scores that are 0 or 1, `score` for other scores of each example, `metric` for one number of
            the whole test set.
        outcome: whether a loss of more than `margin` is excluded (`shown`), shown (`refuted`), or neither.
        reason: why it is not established, where the interval by itself does not tell; None otherwise.
        mcnemar_p: p-value of McNemar's exact test, for one seed.
        sentence: what is known, in words.
        too_few: a sentence where the test set can never show the margin.
    """

    margin: float
    seeds: int
    kind: Literal["binary", "score", "metric"] | None = None
    outcome: Outcome
    reason: str | None = None
    mcnemar_p: float | None = None
    sentence: str | None = None
    too_few: str | None = None

    @property
    def delta(self) -> float:
        """The value."""
        return self.value


class ClassRecall(PairedChange):
    """The change of the recall of the class called `name`, as a fraction of its test examples.

    Attributes:
        low, high: an interval at the level at which it is tested beside the other classes.
        is_lost: whether a loss is shown.
        outcome: of `compare.class_margin`, as of `Quality`; None without one.
    """

    is_lost: bool
    outcome: Outcome | None = None


class Remedy(Record):
    """A change of one parameter. In the file, `before` is called `from`.

    Attributes:
        key: dotted name in params.yaml, such as `variants.float32.xla`.
        before, to: its value now, and the one to try; None where it follows `train`, or TensorFlow chooses. Layers in
            `to` join those of `float32_layers`.
        layers: what the layers in `to` are, such as `all DepthwiseConv2D`; None where each stands by itself.
        at_most: the largest speed-up that it may bring by what was measured; None where that is not known.
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    key: str
    before: bool | int | str | tuple[str, ...] | None = Field(default=None, alias="from")
    to: bool | int | str | tuple[str, ...] | None
    layers: str | None = None
    at_most: float | None = None


class Reason(Record):
    """A cause of what `measure` shows.

    Attributes:
        time_ms: the part of a step that it explains; None if it has no time.
        change: what may remedy it, and can be tried; None if nothing here can.
        more_changes: others that may.
    """

    code: str
    measure: str = "train"
    text: str
    evidence: dict[str, Any]
    advice: str
    time_ms: float | None = None
    change: Remedy | None = None
    more_changes: tuple[Remedy, ...] | None = None


class OpChange(Record):
    """The operations of one type in one layer, in milliseconds a step; None for a side without them.

    Attributes:
        layer: path of the layer, such as `cnn/conv2d`; empty for operations outside layers.
        operation: op type, such as `Conv2D` or `Mul (gradient)`.
        baseline_dtype, candidate_dtype: the data type with the most time.
        delta_ms: candidate − baseline: negative if the step gained. A side without the operations counts as 0.
        low_ms, high_ms: its interval.
    """

    layer: str
    operation: str
    baseline_ms: float | None = None
    candidate_ms: float | None = None
    baseline_dtype: str | None = None
    candidate_dtype: str | None = None
    delta_ms: float
    low_ms: float
    high_ms: float


class TimeToAccuracy(Record):
    """Mean seconds of training, by variant, until the validation score that all of them reach.

    Attributes:
        name: of the score; `accuracy` for images. The names of the other keys are older than other scores.
        val_accuracy: that validation score.
    """

    name: str = "accuracy"
    val_accuracy: float
    time_to_accuracy_s: dict[str, float]


class Score(Record):
    """What the quality is judged by.

    Attributes:
        name: such as `accuracy`.
        unit: `fraction` for a share of the test examples, which is shown in percent; None for others.
        margin: largest loss that counts as the same; None for speed only.
    """

    name: str
    unit: Literal["fraction"] | None = None
    margin: float | None = None


class Trained(Record):
    """What the baseline trained, and with which settings; what a task's own code decides is None.

    Attributes:
        model: `model.name` of images.
        batch_size: examples a step.
        epochs: that its first training ran; None where nothing was trained.
        learning_rate: largest of the schedule.
    """

    model: str | None = None
    batch_size: int
    epochs: int | None = None
    learning_rate: float | None = None


class Setup(Record):
    """What was compared, and how it was measured.

    Attributes:
        seeds: of the trainings of each variant.
        inference_batch_sizes: that were timed.
        task: what was trained.
        data: the images; None for other tasks.
        protocol, configuration: of the measurement; None if a training of the baseline failed.
        trained: by the baseline; None in documents of before 0.4, or if a training of it failed.
        settings: by variant its policy, and of candidates what differs from the baseline in force.
        xla: variants that were compiled with XLA.
        warnings: by variant, about its trace and memory.
        manifests: sha256 of the manifest of each folder that was read, by its path.
    """

    seeds: tuple[int, ...]
    inference_batch_sizes: tuple[int, ...]
    task: TaskInfo
    data: PreparedInfo | None = None
    protocol: Protocol | None = None
    configuration: Configuration | None = None
    trained: Trained | None = None
    settings: dict[str, dict[str, Setting]] = Field(default_factory=dict)
    xla: tuple[str, ...] = ()
    warnings: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    manifests: dict[str, str] = Field(default_factory=dict)


class OpenQuestion(Record):
    """What is not decided, and is worth the time that would decide it.

    Attributes:
        text: in a few words, such as `training of bfloat16 (about 4 min)`.
        settings: parameters of a measurement that would decide it, by dotted name; None where that takes other data.
        again: the stage to run again without an edit, because the measurement was disturbed.
        of: what it is about, if that is one of the two.
    """

    text: str
    of: Literal["training", "inference"] | None = None
    settings: dict[str, Any] | None = None
    again: Literal["profile"] | None = None


class Answer(Record):
    """The result in six lines of at most 80 columns; a command that fits in none of them stands below.

    Attributes:
        training, inference: yes or no, and what was measured; `inference` is None where only training was timed.
        why: the cause of the training's result; None where nothing was measured.
        open: what is worth more time.
        next: the one thing to do.
        command: that does it, to paste into a shell; None where `next` is no command.
        report: where the page is.
    """

    training: str
    why: str | None = None
    inference: str | None = None
    open: str
    next: str
    command: str | None = None
    report: str

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The lines, each with its label; the command is in that of `next` where it fits there."""
        fits = self.command is not None and len(f"{self.next}{self.command}") + 2 <= ANSWER_WIDTH
        following = f"{self.next}{f': {self.command}' if fits else ''}"
        texts = {"Training": self.training, "Why": self.why, "Inference": self.inference, "Open": self.open}
        rows = texts | {"Next": following, "Report": self.report}
        return [(label, text) for label, text in rows.items() if text]

    @property
    def long_command(self) -> str | None:
        """The command, where it needs a line of its own."""
        return None if self.command is None or any(self.command in text for _, text in self.rows) else self.command


class OverParent(Ratio):
    """Speed-up of training over the variant that a candidate was made from, in the same rounds."""

    parent: str

    @property
    def sentence(self) -> str:
        """For every report."""
        return (
            f"Over {self.parent}, from which it was made, its speed-up of training is {self.ratio:.2f}× "
            f"({end_text(self.low)} to {end_text(self.high)})."
        )


class OtherBatch(Record):
    """Batches of which the candidate's differ from the baseline's: examples of a step, and examples per second."""

    batch_size: BeforeAfter
    examples_per_s: BeforeAfter


class Latency(Ratio):
    """Time of Keras / time of a format, for a prediction from inputs on the host to outputs on the host."""

    time_ms: float


class ServedRow(ExportedFile):
    """The weights of one variant in one format, beside the baseline's Keras.

    The file, its size and the seconds of its export are those of the first seed, `file` from the working folder on;
    `difference` is the largest of all seeds, and the agreement is of all of them.

    Attributes:
        threads: of the runtime; None: its default.
        alone: times in a process of its own; None for Keras with quantized weights.
        latency: by measure; None for a format that was not timed.
        quality: change of the score from the baseline's predictions by Keras; None without a training.
        verdict: at the first batch size; None where no verdict was asked for.
        test: of that verdict.
    """

    threads: int | None = None
    alone: Alone | None = None
    latency: dict[str, Latency] | None = None
    quality: Quality | None = None
    verdict: Verdict | None = None
    test: VerdictTest | None = None

    @property
    def arm(self) -> str:
        """The name of the arm with its times."""
        return ServedArm(format=self.format, threads=self.threads).name

    @property
    def label(self) -> str:
        """As people say it, with the number of threads."""
        return ServedArm(format=self.format, threads=self.threads).label

    @property
    def is_good(self) -> bool:
        """Whether the format is shown to be faster, without a loss of the score where that is known."""
        return self.verdict in ("adopt", "faster")

    @property
    def timed(self) -> dict[str, Latency]:
        """The latencies by measure; empty where it was not timed."""
        return self.latency or {}


class Serving(Record):
    """The trained weights in float32, in the formats in which they can be served, beside Keras.

    Attributes:
        weights: the variant whose weights are judged.
        threads: of each runtime, in documents of earlier releases; now rows have their own.
        measures: that were timed; the first one decides.
        keras_ms: by measure, mean time of a prediction by the baseline's Keras function.
        control: the ratio of that to its second copy, by measure.
        on_cpu: formats that predict on the CPU where Keras predicts on a GPU.
        rows: by format and number of threads; in earlier releases of other variants, too.
        warnings: about the timing of the formats.
        best: the arm to serve with; None where none is shown to be faster with the same score.
        best_ratio: time of Keras / its time at the first batch size; the interval covers that it was picked.
        sentence: what to serve with.
    """

    weights: str
    threads: int | None = None
    measures: tuple[str, ...] = ()
    keras_ms: dict[str, float] = Field(default_factory=dict)
    control: dict[str, Control] = Field(default_factory=dict)
    on_cpu: tuple[str, ...] | None = None
    rows: Annotated[tuple[ServedRow, ...], BeforeValidator(in_float32)] = ()
    warnings: tuple[str, ...] | None = None
    best: str | None = None
    best_ratio: Ratio | None = None
    sentence: str

    @property
    def judged_rows(self) -> list[ServedRow]:
        """Those of the weights that are judged."""
        return [row for row in self.rows if row.variant == self.weights]

    @property
    def best_row(self) -> ServedRow | None:
        """The judged weights as they should be served; None without any."""
        return next((row for row in self.judged_rows if row.arm == self.best), None)


class Candidate(Record):
    """One candidate.

    Speed-ups, factors, verdicts and tests are keyed by measure: `train`, `inference_b<n>`. Without measurements only
    verdicts, sentence, next steps and reasons are present.

    Attributes:
        factors: only where other settings than the precision differ from the baseline's.
        quality: of two trainings.
        quality_same_weights: of the baseline's trained weights in the candidate's precision.
        classes: after training, those whose recall is shown to fall, or not shown to hold `compare.class_margin`.
        class_sentence: those that lose recall, in words; None without any.
        limit: best speed-up that the baseline's trace and its wait for input allow.
        verdicts: in the file each has a key of its own, `verdict` or `verdict_inference_b<n>`.
        tests: those of the verdicts.
        account: of training; only with traces.
        waiting: of a training step for its input.
        over_parent: None without a parent.
        other_batch: where the steps have other numbers of examples; the speed-up is then one of examples per second.
        why: the main cause of what training gains or loses, in a sentence or two.
        next_steps: what would decide each open verdict, in sentences.
        open: those that are worth the time.
        max_batch_examples_per_s: with the largest batch of each, alone on the machine.
    """

    speedup: dict[str, MeasuredSpeedup] | None = None
    factors: dict[str, Factors] | None = None
    quality: Quality | None = None
    quality_same_weights: Quality | None = None
    classes: tuple[ClassRecall, ...] | None = None
    class_sentence: str | None = None
    limit: dict[Literal["train"], float] | None = None
    account: dict[Literal["train"], Account] | None = None
    waiting: Waiting | None = None
    other_batch: OtherBatch | None = None
    over_parent: OverParent | None = None
    verdicts: dict[str, Verdict]
    tests: dict[str, VerdictTest] | None = None
    sentence: str
    why: str | None = None
    next_steps: tuple[str, ...] | None = None
    open: tuple[OpenQuestion, ...] | None = None
    reasons: tuple[Reason, ...]
    peak_memory_mib: BeforeAfter | None = None
    max_batch_size: BeforeAfter | None = None
    max_batch_examples_per_s: BeforeAfter | None = None
    operations: dict[Literal["gained", "lost"], tuple[OpChange, ...]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_file(cls, content: Any) -> Any:
        if not isinstance(content, dict) or "verdict" not in content:
            return content
        inference = {key: key.removeprefix("verdict_") for key in content if key.startswith(_INFERENCE)}
        keys = {"verdict": TRAIN} | inference
        verdicts = {measure: content[key] for key, measure in keys.items()}
        return {key: value for key, value in content.items() if key not in keys} | {"verdicts": verdicts}

    @model_serializer(mode="wrap")
    def _for_file(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content = handler(self)
        return content | {verdict_key(measure): verdict for measure, verdict in content.pop("verdicts").items()}

    @property
    def verdict(self) -> Verdict:
        """The verdict on training."""
        return self.verdicts[TRAIN]

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is said of the candidate: the verdict, why, and what it brought over its parent."""
        over_parent = self.over_parent.sentence if self.over_parent else None
        texts = (self.sentence, self.class_sentence, self.why, over_parent)
        return tuple(text for text in texts if text)

    @property
    def training_account(self) -> Account | None:
        """The account of training; None without short traces."""
        return self.account["train"] if self.account else None

    @property
    def speedups(self) -> dict[str, MeasuredSpeedup]:
        """The speed-ups by measure; empty where nothing could be compared."""
        return self.speedup or {}

    def has_reason(self, code: str, measure: str) -> bool:
        """Whether a reason is given for what a measure shows."""
        return any((reason.code, reason.measure) == (code, measure) for reason in self.reasons)


class Comparison(Document):
    """All candidates against the baseline.

    Attributes:
        environment: the machine, as in `data/environment.json`.
        control: the A/A comparison by measure.
        noise_floor: by measure, how far the control's interval reaches from 1.
        throttled: share of the rounds in which the GPU was throttled, of each measure that therefore decides nothing.
        min_speedup: smallest speed-up worth having.
        score: what the quality is judged by.
        speed_only: true where nothing was trained or learned: verdicts say nothing about quality. None otherwise.
        why_speed_only: which of them, in words; None where quality is judged.
        gate: None without `compare.gate`.
        gate_text: what it fails by, or else what it leaves open; None if nothing.
        failed: variants with a training that failed.
        baseline_reasons: what limits the baseline by itself.
        train_time_s: seconds of a whole training by variant, validation and compilation included; mean over seeds.
        startup_s: processor seconds to import, to build the model and to run the first step, by variant.
        compiled_s, loaded_s: seconds of the first step by variant, where XLA compiled it and where a later process
            loaded it; None where no process has loaded anything.
        notes: sentences on what limits all of it, such as a measure that decides nothing.
        answer: all of it in six lines; None in files of earlier releases.
        setup: what was compared, and how it was measured.
        serving: the trained weights in other formats; None without `serve.formats`.
    """

    VERSION: ClassVar[int] = 6

    baseline: str
    environment: dict[str, Any]
    control: dict[str, Control]
    noise_floor: dict[str, float]
    throttled: dict[str, float] | None = None
    min_speedup: float
    score: Score | None = None
    speed_only: Literal[True] | None = None
    why_speed_only: str | None = None
    gate: GateState | None = None
    gate_text: str | None = None
    failed: tuple[str, ...] | None = None
    time_to_accuracy: TimeToAccuracy | None = None
    baseline_reasons: tuple[Reason, ...] | None = None
    train_time_s: dict[str, float] | None = None
    startup_s: dict[str, float] | None = None
    compiled_s: dict[str, float] | None = None
    loaded_s: dict[str, float] | None = None
    notes: tuple[str, ...] | None = None
    answer: Answer | None = None
    setup: Setup | None = None
    serving: Serving | None = None
    candidates: dict[str, Candidate]

    def as_json(self) -> dict[str, Any]:
        """The file's content; a reason without a remedy says so."""
        content = super().as_json()
        reasons = [*(content.get("baseline_reasons") or ())]
        reasons += [reason for item in content["candidates"].values() for reason in item["reasons"]]
        for reason in reasons:
            reason.setdefault("change", None)
        return content

    @property
    def reasons(self) -> dict[str, tuple[Reason, ...]]:
        """The reasons of every variant, the baseline first."""
        of_candidates = {name: item.reasons for name, item in self.candidates.items()}
        return {self.baseline: self.baseline_reasons or (), **of_candidates}

    def side(self, ratio: Ratio) -> Side:
        """On which side of the smallest speed-up worth having an interval lies."""
        return ratio.side(self.min_speedup)

    def is_void(self, measure: str) -> bool:
        """Whether this measurement is invalid."""
        control = self.control.get(measure)
        is_throttled = measure in (self.throttled or {})
        return is_throttled or (control is not None and (control.differs or control.throttled is not None))
