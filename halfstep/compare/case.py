"""Every candidate against the baseline: one object each, which numbers, verdicts, reasons and sentences are asked of.

Nothing is copied from step to step: what is known follows from the study, and is computed when it is first asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from halfstep.compare.compatibility import check_initial_weights, check_metrics, check_profiles, check_trainings
from halfstep.compare.explain.account import account_of, moved_to_16bit, stayed_in_32bit, with_names
from halfstep.compare.explain.accounts import Accounts
from halfstep.compare.explain.hardware import compute_capability, has_16bit_matrix_work, instruction_sets
from halfstep.compare.explain.limit import (
    compute_ms,
    compute_operations,
    possible_ratios,
    precision_bound,
    train_limit,
)
from halfstep.compare.scale import Scale
from halfstep.compare.study import Study, VariantResult
from halfstep.compare.verdict import Claim, is_bounded, judge, side, throttled_measures, void_measures
from halfstep.errors import ComparisonError
from halfstep.params.margin import quality_margin_for
from halfstep.params.schema import CompareParams
from halfstep.results.comparison import (
    Account,
    BeforeAfter,
    KindChange,
    PartChange,
    Ratio,
    Reason,
    Remedy,
    Verdict,
    VerdictTest,
    Waiting,
)
from halfstep.results.occasions import FoundRatio, Pair
from halfstep.results.profile import AccountRow, Profile, Setting, differing_settings
from halfstep.results.training import Scores, Training
from halfstep.stats.bootstrap import MetricChange
from halfstep.stats.classes import FEWEST_OF_CLASS, RecallChange, class_changes
from halfstep.stats.proportions import BinaryChange
from halfstep.stats.quality import QualityChange
from halfstep.stats.scores import score_change
from halfstep.stats.speedup import CONFIDENCE, RUN_SD, Error, Occasion, Speedup, Times, shared_repeats, speedup_of
from halfstep.system import files
from halfstep.words.outcomes import Side
from halfstep.words.policies import POLICIES, Precision, short_name
from halfstep.words.text import TRAIN, joined, yaml_text

STEP = "profiler/step_time_ms"


class SpeedupFactors(NamedTuple):
    """The two factors of a speed-up: of the candidate's other settings, and of its precision on top of them."""

    settings: Speedup
    precision: Speedup


class Judging:
    """All candidates against the baseline.

    Raises:
        ComparisonError: variants were not trained or measured under the same conditions, or not measured together.
    """

    def __init__(self, study: Study, params: CompareParams, explain: Callable[[Case], tuple[Reason, ...]]) -> None:
        for check in (check_metrics, check_trainings, check_initial_weights, check_profiles):
            check(study)
        self.study, self.params, self.explain, self.baseline = study, params, explain, study.baseline.profile
        self.cases = tuple(Case(result, self.baseline, self) for result in study.candidates)
        known = [case.classes for case in self.cases if case.quality is not None]
        if params.class_margin is not None and known and not any(known):
            raise ComparisonError(
                f"compare.class_margin is {params.class_margin:g}, and no class has {FEWEST_OF_CLASS} test examples "
                "with a score of 0 or 1: set it to null"
            )

    @cached_property
    def control(self) -> dict[str, Speedup]:
        """The ratios of the baseline to its own second copy (A/A), by measure."""
        if self.baseline is None or self.study.control is None:
            return {}
        ratios = self.speedups(files.CONTROL, self.baseline, self.study.control)
        return with_others(ratios, [case.speedups for case in self.cases])

    @cached_property
    def throttled(self) -> dict[str, float]:
        """Measures at which the GPU was throttled too often, with the share of the rounds."""
        return throttled_measures(self.baseline, self.study.inference_batch_sizes) if self.baseline else {}

    @cached_property
    def differing(self) -> frozenset[str]:
        """Measures at which the control differs from 1."""
        return void_measures(self.control)

    @cached_property
    def void(self) -> frozenset[str]:
        """Measures whose verdicts are `inconclusive`."""
        return self.differing | self.throttled.keys()

    @cached_property
    def verdicts(self) -> dict[tuple[str, str], tuple[Verdict, VerdictTest | None]]:
        """By candidate and measure, where the speed, and the quality if anything was trained, are known."""
        claims = {
            (case.variant, measure): claim
            for case in self.cases
            for measure in case.speedups
            if (claim := case.claim(measure)) is not None
        }
        return judge(claims, self.void, self.params)

    @cached_property
    def accounts(self) -> dict[str, Account]:
        """Of training, by candidate; the kinds of all of them share the error of being named."""
        named = with_names({case.variant: own for case in self.cases if (own := case.own_account) is not None})
        tried = self.study.confirmation
        if tried is not None and (variant := tried.intervention.variant) in named:
            named[variant] = named[variant].model_copy(update={"confirmation": tried})
        return named

    @cached_property
    def judged_policies(self) -> frozenset[str]:
        """Policies of the candidates that were compared: their verdicts stand beside any advice."""
        return frozenset(case.policy for case in self.cases if case.speedups)

    @cached_property
    def baseline_reasons(self) -> tuple[Reason, ...]:
        """What limits the baseline by itself."""
        if self.baseline is None:
            return ()
        tried = {case.policy for case in self.cases if case.profile is not None}
        return self.explain(Case.alone(self.baseline, self.study.environment, tried, self.study.classes))

    def side(self, ratio: Speedup | Ratio) -> Side:
        """On which side of `compare.min_speedup` an interval lies."""
        return side(ratio, self.params)

    @property
    def required_text(self) -> str:
        """The smallest speed-up worth having, such as `1.05×`."""
        return f"{self.params.min_speedup:g}×"

    @property
    def margin(self) -> float:
        """Largest loss of the score that counts as the same, in its units; not for speed only."""
        return quality_margin_for(self.study.score_name, self.params)

    @property
    def scale(self) -> Scale:
        """How the score is written; not for speed only."""
        return Scale(self.study.score_name, self.is_fraction, self.margin)

    @property
    def changes(self) -> list[QualityChange]:
        """Those of all candidates, after training and of the same weights."""
        return [change for case in self.cases for change in (case.quality, case.same_weights) if change is not None]

    @cached_property
    def is_fraction(self) -> bool:
        """Whether the score is a share of the test examples, such as accuracy."""
        return all(item.is_fraction for item in self.changes) if self.changes else self.study.task.has_classes

    @property
    def number_of_tests(self) -> int:
        """How many verdicts share the 5 %; 1 if nothing was compared."""
        return max(1, sum(test is not None for _, test in self.verdicts.values()))

    @property
    def alpha(self) -> float:
        """Largest p-value of an `adopt` at the first step: the verdicts of the report share 5 %.

        It is at most that with which the low end of the 95 % interval reaches the required ratio, as of a `faster`.
        """
        alone = (1 - CONFIDENCE) / 2
        return alone if self.study.speed_only else min(alone, (1 - CONFIDENCE) / self.number_of_tests)

    def minutes(self, processes: int) -> float | None:
        """How long it takes to measure so many processes, as long as it took so far; None without a measurement."""
        if self.baseline is None:
            return None
        protocol = self.baseline.summary.protocol
        return processes * (protocol.stage_seconds or protocol.timing_seconds) / protocol.processes / 60

    def speedups(self, variant: str, before: Profile, after: Profile) -> dict[str, Speedup]:
        """By measure, time of one arm / time of another, over all occasions.

        The control and bridging arms have only the measures in which they took part in two repeats or more.

        Args:
            variant: the candidate, or the control; its looks decide the confidence.
            before, after: the two arms.

        Raises:
            ComparisonError: two variants have fewer than two repeats of a measure in common.
        """
        arms, times = (before.summary.variant, after.summary.variant), (times_of(before), times_of(after))
        is_required = all(map(files.is_variant, arms))
        return {
            measure: speedup_between(measure, variant, before, after).over_occasions(self._earlier(arms, measure))
            for measure in self.study.measures_of(variant)
            if is_required or shared_repeats(measure, *times) > 1
        }

    def _earlier(self, arms: Pair, measure: str) -> tuple[Occasion, ...]:
        """What other occasions found; nothing of the control, which shows the noise of this run."""
        ratios = () if files.CONTROL in arms else self.study.earlier.of(arms, measure)
        return tuple(
            Occasion(item.log_ratio, Error(item.standard_error, item.degrees), item.confidence) for item in ratios
        )

    def found_ratios(self) -> Iterator[FoundRatio]:
        """Yields what this run found by itself: every judged ratio of two arms, those with bridging arms among them."""
        name = self.study.baseline.variant
        for case in self.cases:
            for measure, speedup in case.speedups.items():
                yield from _found((name, case.variant), measure, speedup)
            for measure, factors in case.factors.items():
                between = self.study.bridge(case.candidate, TRAIN).summary.variant  # type: ignore[union-attr]
                yield from _found((name, between), measure, factors.settings)
                yield from _found((between, case.variant), measure, factors.precision)


class Case:
    """One candidate against the baseline, or a profile by itself, of which only the rules ask.

    Measures are named `train` and `inference_b<n>`, in that order. If a training failed there is nothing to compare:
    no speed-ups, no quality, and every verdict is `inconclusive`.
    """

    def __init__(
        self,
        result: VariantResult,
        baseline: Profile | None,
        judging: Judging | None = None,
        *,
        environment: dict[str, Any] | None = None,
        judged_policies: Collection[str] = (),
        classes: int | None = None,
    ) -> None:
        self.result, self._judging, self.variant, self.profile = result, judging, result.variant, result.profile
        self.baseline = baseline if result.profile is not None else None
        self.environment = judging.study.environment if judging else environment or {}
        self.image_classes = judging.study.classes if judging else classes
        self.min_speedup = judging.params.min_speedup if judging else 1.0
        self._judged_policies = judged_policies

    @classmethod
    def alone(
        cls, profile: Profile, environment: dict[str, Any], tried: Collection[str] = (), classes: int | None = None
    ) -> Case:
        """A profile by itself, without a comparison; `tried` are policies that are no advice."""
        result = VariantResult(profile.summary.variant, (), profile)
        return cls(result, None, environment=environment, judged_policies=tried, classes=classes)

    @property
    def judging(self) -> Judging:
        """What it is compared in."""
        assert self._judging is not None, "it is a profile by itself"
        return self._judging

    @property
    def short_name(self) -> str:
        """The name in a line of the answer."""
        return short_name(self.variant, [item.variant for item in self.judging.study.variants])

    def side(self, ratio: Speedup | Ratio) -> Side:
        """On which side of `compare.min_speedup` an interval lies; of a profile by itself, of 1."""
        return ratio.side(self.min_speedup)

    # Numbers

    @property
    def candidate(self) -> Profile:
        """Its profile, where no training failed."""
        assert self.profile is not None, "a training failed"
        return self.profile

    @property
    def is_compared(self) -> bool:
        """Whether it is a candidate, and not a profile by itself."""
        return self._judging is not None

    @property
    def trainings(self) -> tuple[Training, ...]:
        """Its trainings."""
        return self.result.trainings

    @property
    def is_trained(self) -> bool:
        """Whether it was trained where the baseline was."""
        study = self.judging.study
        return study.speed_only or not any(training.metrics.not_trained for training in self.trainings)

    @cached_property
    def speedups(self) -> dict[str, Speedup]:
        """By measure; empty if a training failed."""
        if self._judging is None or self.baseline is None:
            return {}
        return self.judging.speedups(self.variant, self.baseline, self.candidate)

    @cached_property
    def factors(self) -> dict[str, SpeedupFactors]:
        """By measure, only where other settings than the precision differ, and a bridging arm was measured."""
        bridge = self.judging.study.bridge(self.candidate, TRAIN) if self._judging and self.baseline else None
        if bridge is None or self._judging is None or self.baseline is None:
            return {}
        settings = self.judging.speedups(self.variant, self.baseline, bridge)
        precision = self.judging.speedups(self.variant, bridge, self.candidate)
        return {
            measure: SpeedupFactors(settings[measure], precision[measure])
            for measure in settings
            if measure in precision and self.judging.study.bridge_name(self.candidate, measure) is not None
        }

    @cached_property
    def quality(self) -> QualityChange | None:
        """Of two trainings; None also where it was not trained."""
        if self._judging is None or self.baseline is None or self.judging.study.speed_only or not self.is_trained:
            return None
        return quality_change(self.judging.study, _scores(self.result))

    @cached_property
    def same_weights(self) -> QualityChange | None:
        """Of the baseline's trained weights in this precision; None also where their evaluation failed."""
        if self._judging is None or self.baseline is None or self.lacks_same_weights:
            return None
        study = self.judging.study
        scores = self.result.same_weights
        return None if study.speed_only else quality_change(study, np.stack([scores[seed] for seed in _seeds(study)]))

    @property
    def lacks_same_weights(self) -> bool:
        """Whether the baseline's weights were not evaluated in this precision."""
        study = self.judging.study if self._judging else None
        return study is not None and not study.speed_only and not {*_seeds(study)} <= self.result.same_weights.keys()

    def quality_of(self, measure: str) -> QualityChange | None:
        """The quality that a verdict asks for: of two trainings for training, of the same weights for inference."""
        return self.quality if measure == TRAIN else self.same_weights

    @cached_property
    def classes(self) -> dict[str, tuple[RecallChange, ...]]:
        """By measure, the change of recall of each class; none where examples have no class, or other scores."""
        numbers = self.judging.study.classes_of_test if self._judging else None
        changes = {measure: self.quality_of(measure) for measure in self.speedups}
        return {
            measure: recalls
            for measure, change in changes.items()
            if numbers is not None and isinstance(change, BinaryChange) and (recalls := class_changes(change, numbers))
        }

    @cached_property
    def waiting(self) -> Waiting | None:
        """Of a training step for input, where that bounds what the precision can bring."""
        return precision_bound(self.baseline, self.candidate) if self.baseline else None

    @property
    def bound(self) -> float | None:
        """Speed-up of training that no precision can exceed, because a step waits for input; None without a bound."""
        return self.waiting.bound if self.waiting else None

    @property
    def is_bounded(self) -> bool:
        """Whether a step waits for input so long that no precision is fast enough, and the timing shows none."""
        return is_bounded(self.speedups[TRAIN], self.bound, self.judging.params)

    @cached_property
    def limit(self) -> float | None:
        """Best speed-up of training that the baseline's trace and its wait for input allow; None if unknown."""
        return train_limit(self.baseline, self.candidate, self.environment) if self.baseline else None

    @cached_property
    def accounts(self) -> Accounts | None:
        """Of the operations of training; a step has other work in another batch."""
        if self._judging is None or self.baseline is None or self.baseline.batch_size != self.candidate.batch_size:
            return None
        return Accounts.of(self.baseline, self.candidate, self.judging.study.control)

    @cached_property
    def own_account(self) -> Account | None:
        """The account without regard to those of other candidates: both it and the speed-up are of this run."""
        if self.accounts is None or self.baseline is None:
            return None
        ratios = possible_ratios(self.baseline, self.candidate, self.environment)
        return account_of(self.accounts, self.speedups[TRAIN].within_run, ratios)

    @property
    def account(self) -> Account | None:
        """What changed in a step of training; None without short traces."""
        return self.judging.accounts.get(self.variant) if self._judging else None

    def before_after(self, metric: str) -> BeforeAfter | None:
        """A metric of the baseline's and of its profile; None unless both have it."""
        values = [profile.metrics.get(metric) for profile in (self.baseline, self.profile) if profile is not None]
        if len(values) < 2 or None in values:
            return None
        return BeforeAfter(baseline=values[0], candidate=values[1])

    # Verdicts and reasons

    def claim(self, measure: str) -> Claim | None:
        """What the verdict on a measure rests on; None where something was trained and its quality is not known."""
        assert self._judging is not None, "it is compared"
        study, quality = self.judging.study, self.quality_of(measure)
        is_trained = measure != TRAIN or self.is_trained
        if quality is None and not study.speed_only and is_trained:
            return None
        precision = self.factors[measure].precision if measure in self.factors else None
        return Claim(
            self.speedups[measure],
            precision,
            quality,
            0.0 if study.speed_only else self.judging.margin,
            lacks_precision=precision is None and study.bridge_name(self.candidate, measure) is not None,
            bound=self.bound if measure == TRAIN else None,
            classes=self.classes.get(measure, ()),
            is_trained=is_trained,
        )

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """By measure; `inconclusive` where the quality is not known."""
        assert self._judging is not None, "it is compared"
        known = self.judging.verdicts
        measures = self.speedups or self.judging.study.measures_of(self.variant)
        return {measure: known.get((self.variant, measure), ("inconclusive", None))[0] for measure in measures}

    @property
    def verdict(self) -> Verdict:
        """The verdict on training."""
        return self.verdicts[TRAIN]

    @property
    def tests(self) -> dict[str, VerdictTest]:
        """Those of the verdicts, by measure; none for speed only."""
        known = self.judging.verdicts.items() if self._judging else ()
        return {measure: test for (name, measure), (_, test) in known if name == self.variant and test is not None}

    @cached_property
    def reasons(self) -> tuple[Reason, ...]:
        """What the rules say."""
        return self.judging.explain(self) if self._judging else ()

    def has_reason(self, code: str, measure: str | None = None) -> bool:
        """Whether a reason is given."""
        return any(item.code == code and measure in (None, item.measure) for item in self.reasons)

    # What the rules ask

    @property
    def void(self) -> Collection[str]:
        """Measures of which nothing timed is a reason."""
        return self.judging.void if self._judging else ()

    @property
    def throttled(self) -> Mapping[str, float]:
        """Measures with a throttled GPU."""
        return self.judging.throttled if self._judging else {}

    @property
    def control(self) -> Mapping[str, Speedup]:
        """The A/A ratios."""
        return self.judging.control if self._judging else {}

    @property
    def judged_policies(self) -> Collection[str]:
        """Policies that are no advice: the report has a verdict on them."""
        return self.judging.judged_policies if self._judging else self._judged_policies

    def timed(self, measure: str) -> Speedup | None:
        """The speed-up of a measure; None if it was not measured, or if the measure is void."""
        return None if measure in self.void else self.speedups.get(measure)

    def factored(self, measure: str) -> SpeedupFactors | None:
        """The factors of a measure; None if there are none, or if the measure is void."""
        return None if measure in self.void else self.factors.get(measure)

    @property
    def speedup(self) -> Speedup | None:
        """The speed-up of training."""
        return self.timed(TRAIN)

    @property
    def precision(self) -> Speedup | None:
        """What the precision alone makes of training: its factor where there is one, else the speed-up.

        None where XLA compiles only one of both, and what that makes was not measured.
        """
        if factors := self.factored(TRAIN):
            return factors.precision
        return self.speedup if self.is_compiled_alike else None

    @property
    def before(self) -> Profile:
        """What is compared with: the baseline, or this profile if there is none."""
        return self.baseline or self.candidate

    @property
    def is_compiled_alike(self) -> bool:
        """Whether XLA compiles both sides, or neither."""
        return self.before.summary.in_force.xla == self.candidate.summary.in_force.xla

    @property
    def is_account_void(self) -> bool:
        """Whether nothing rests on the account: it does not explain the timing, or its copy of the baseline differs."""
        return self.account is not None and not self.account.is_sound

    def kind(self, name: str) -> KindChange | None:
        """What operations of a kind change by; None without an account, if it is void, or if they may not change."""
        change = None if self.account is None or self.is_account_void else self.account.kind(name)
        return change if change is not None and change.named else None

    @property
    def by_operation(self) -> Accounts | None:
        """The traces, if their operations can be compared one by one: not those of a program that XLA compiled."""
        return None if self.is_account_void or not self.is_compiled_alike else self.accounts

    @cached_property
    def moved(self) -> tuple[PartChange, list[dict[str, Any]]] | None:
        """As `moved_to_16bit`; None if operations cannot be compared, or if none moved."""
        moved = None if self.by_operation is None else moved_to_16bit(self.by_operation)
        return moved if moved and moved[1] else None

    @cached_property
    def stayed(self) -> PartChange | None:
        """The change of the operations that the candidate computes in float32; None if they cannot be compared."""
        return None if self.by_operation is None else stayed_in_32bit(self.by_operation)

    @cached_property
    def operations(self) -> list[AccountRow]:
        """What computes in the candidate's step, in the mean over the repeats."""
        return compute_operations(self.candidate)

    @property
    def compute_ms(self) -> float | None:
        """Compute time in the candidate's traced step."""
        return compute_ms(self.candidate)

    @property
    def policy(self) -> str:
        """Keras dtype policy of the candidate."""
        return self.candidate.policy

    @property
    def compute(self) -> Precision:
        """The precision that the candidate's layers compute in."""
        return self.candidate.dtype_policy.compute

    @property
    def is_16bit(self) -> bool:
        """Whether the candidate computes in 16 bit."""
        return self.compute.bits == 16

    @property
    def is_about_16bit(self) -> bool:
        """Whether 16 bit is compared, or could be tried next; false if both variants are 32-bit."""
        return self.is_16bit or self.baseline is None

    @property
    def on_gpu(self) -> bool:
        """Whether the candidate computes on a GPU."""
        return self.candidate.on_gpu

    @property
    def compute_capability(self) -> float | None:
        """The GPU's compute capability, such as 8.0; None without a GPU, or if the driver does not report it."""
        return compute_capability(self.environment) if self.on_gpu else None

    @property
    def policy_to_try(self) -> str | None:
        """The mixed policy that this machine has hardware for, or may have, and that the report has no verdict on."""
        policy = "mixed_float16" if self.on_gpu else "mixed_bfloat16"
        has_hardware = self.has_hardware_for(POLICIES[policy].compute)
        return None if has_hardware is False or policy in self.judged_policies else policy

    @property
    def has_instructions(self) -> bool:
        """Whether the CPU is known to have instructions for the candidate's precision."""
        return not instruction_sets(self.environment).isdisjoint(self.compute.cpu_ratios)

    @property
    def lacks_instructions(self) -> bool:
        """Whether the CPU is known to have no instructions for the candidate's 16-bit type."""
        is_known = bool(instruction_sets(self.environment)) and not self.on_gpu and self.is_16bit
        return is_known and self.has_hardware_for(self.compute) is False

    def has_hardware_for(self, precision: Precision) -> bool | None:
        """Whether the device has hardware for matrix products in a precision; None if unknown."""
        return has_16bit_matrix_work(precision, self.environment, on_gpu=self.on_gpu)

    def settings(self, measure: str = TRAIN) -> dict[str, Setting]:
        """The settings beside the policy that have an effect on a measure and differ from the baseline's."""
        if self.baseline is None:
            return {}
        before, after = self.baseline.summary, self.candidate.summary
        return differing_settings(before.in_force, after.in_force, after.configuration.device, measure)

    @property
    def settings_text(self) -> str:
        """Those of training, such as `` `onednn: false` ``."""
        return joined([f"`{name}: {yaml_text(value)}`" for name, value in self.settings().items()])

    def changed(
        self,
        key: str,
        to: Setting | tuple[str, ...],
        at_most: float | None = None,
        layers: str | None = None,
        *,
        of: Profile | None = None,
    ) -> Remedy:
        """A change of this variant's entry, or of that of another profile.

        Args:
            key: of the entry.
            to: its new value.
            at_most: the largest speed-up that it may bring; None if unknown.
            layers: what the layers in `to` are, where they have something in common.
            of: the other profile.
        """
        summary = (of or self.candidate).summary
        before = getattr(summary.entry, key)
        return Remedy(key=f"variants.{summary.variant}.{key}", before=before, to=to, at_most=at_most, layers=layers)

    def share_of_step(self, part: str) -> float | None:
        """Share of the candidate's traced step that a part takes; None unless both were measured."""
        step_ms, part_ms = self.candidate.metrics.get(STEP), self.candidate.metrics.get(part)
        return None if not step_ms or part_ms is None else part_ms / step_ms

    def part_of_step(self, part: str) -> dict[str, float]:
        """A measured part of the candidate's traced step and the whole step, as evidence."""
        return {name: self.candidate.metrics[name] for name in (part, STEP)}


def speedup_between(measure: str, variant: str, before: Profile, after: Profile) -> Speedup:
    """Time of one arm / time of another at a measure, with what whole runs differ by; as `Judging.speedups`."""
    protocol = before.summary.protocol
    confidence = protocol.confidence_of(variant, measure)
    speedup = speedup_of(measure, times_of(before), times_of(after), confidence, interleaved=protocol.interleaved)
    tuned = sum(bool(arm.summary.in_force.xla) for arm in (before, after)) if protocol.compilations else 0
    return replace(speedup, run_sd=RUN_SD, tuned=tuned)


def times_of(profile: Profile) -> Times:
    """The rounds and calls of an arm, as `speedup_of` takes them."""
    return Times(profile.rounds, profile.calls, profile.batch_size)


def with_others(control: Mapping[str, Speedup], candidates: Sequence[Mapping[str, Speedup]]) -> dict[str, Speedup]:
    """The control's ratios by measure, with those of the candidates, which show how much repeats differ."""
    others = {measure: tuple(item[measure] for item in candidates if measure in item) for measure in control}
    return {measure: replace(speedup, others=others[measure]) for measure, speedup in control.items()}


def quality_change(study: Study, scores: Scores) -> QualityChange:
    """The change of quality from the baseline's scores to `scores`, `(seeds, ...)`."""
    if study.task.score_kind == "metric":
        return MetricChange(_scores(study.baseline), scores, study.task.examples)
    return score_change(_scores(study.baseline), scores)


def _scores(result: VariantResult) -> Scores:
    return np.stack([training.scores for training in result.trainings if training.scores is not None])


def _seeds(study: Study) -> list[int]:
    return [training.seed for training in study.baseline.trainings]


def _found(arms: Pair, measure: str, speedup: Speedup) -> Iterator[FoundRatio]:
    """Yields it, unless a single round says nothing of its error."""
    occasion = speedup.occasion
    error = occasion.error
    if math.isfinite(error.standard_error):
        yield FoundRatio(
            arms=arms,
            measure=measure,
            log_ratio=occasion.log_ratio,
            standard_error=error.standard_error,
            degrees=error.degrees,
            confidence=occasion.confidence,
        )
