"""Compares every candidate with the baseline: the statistical objects, of which `judge` makes the document."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from halfstep import files
from halfstep.compare.compatibility import check_initial_weights, check_metrics, check_profiles, check_trainings
from halfstep.compare.explain import arm_failed, explain, explain_profile
from halfstep.compare.explain.account import account_of, with_names
from halfstep.compare.explain.accounts import Accounts
from halfstep.compare.explain.evidence import Evidence, SpeedupFactors
from halfstep.compare.explain.limit import possible_ratios, precision_bound
from halfstep.compare.scale import Scale
from halfstep.compare.study import Study, VariantResult
from halfstep.compare.verdict import (
    Key,
    Parts,
    decide_speed,
    run_tests,
    throttled_measures,
    verdicts,
    void_measures,
)
from halfstep.errors import ComparisonError
from halfstep.params import CompareParams, quality_margin_for
from halfstep.results.comparison import (
    BeforeAfter,
    Control,
    Reason,
    Verdict,
    VerdictTest,
    Waiting,
)
from halfstep.results.occasions import FoundRatio, Pair
from halfstep.results.profile import Profile
from halfstep.stats.bootstrap import MetricChange
from halfstep.stats.classes import FEWEST_OF_CLASS, RecallChange, class_changes
from halfstep.stats.proportions import BinaryChange
from halfstep.stats.quality import QualityChange
from halfstep.stats.scores import score_change
from halfstep.stats.speedup import CONFIDENCE, RUN_SD, Error, Occasion, Speedup, Times, shared_repeats, speedup_of
from halfstep.text import TRAIN

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class JudgedCandidate:
    """One candidate against the baseline. Measures are named `train` and `inference_b<n>`, in that order.

    If a training failed there is nothing to compare: no speed-ups, no quality, and every verdict is `inconclusive`.
    If nothing was trained there is no quality, and there are no tests.

    Attributes:
        evidence: what was measured of both; None if a training failed.
        quality: of two trainings.
        quality_same_weights: of the baseline's trained weights in the candidate's precision.
        tests: by measure, those of the verdicts.
        classes: by measure, the change of recall of each class; none where examples have no class, or other scores.
        waiting: of a training step for input, where that bounds what the precision can bring.
    """

    result: VariantResult
    verdicts: dict[str, Verdict]
    reasons: tuple[Reason, ...] = ()
    evidence: Evidence | None = None
    quality: QualityChange | None = None
    quality_same_weights: QualityChange | None = None
    tests: dict[str, VerdictTest] = field(default_factory=dict)
    classes: dict[str, tuple[RecallChange, ...]] = field(default_factory=dict)
    waiting: Waiting | None = None

    @property
    def variant(self) -> str:
        """Name of the variant."""
        return self.result.variant

    @property
    def speedups(self) -> Mapping[str, Speedup]:
        """By measure; empty if a training failed."""
        return self.evidence.speedups if self.evidence else {}

    @property
    def limit(self) -> float | None:
        """Best speed-up of training that the baseline's trace and its wait for input allow; None if unknown."""
        return self.evidence.limit if self.evidence else None

    @property
    def factors(self) -> Mapping[str, SpeedupFactors]:
        """By measure, only where other settings than the precision differ from the baseline's."""
        return self.evidence.factors if self.evidence else {}

    @property
    def verdict(self) -> Verdict:
        """The verdict on training."""
        return self.verdicts[TRAIN]

    def precision(self, measure: str) -> Speedup | None:
        """The factor of a speed-up that the precision brings; None where no other setting differs."""
        return self.factors[measure].precision if measure in self.factors else None

    def quality_of(self, measure: str) -> QualityChange | None:
        """The quality that a verdict asks for: of two trainings for training, of the same weights for inference."""
        return self.quality if measure == TRAIN else self.quality_same_weights


@dataclass(frozen=True)
class Judging:
    """All candidates against the baseline.

    Attributes:
        control: the ratios of the baseline to its own second copy (A/A).
        void: measures whose verdicts are `inconclusive`: the control differs from 1, or the GPU was throttled.
        throttled: the latter, with the share of the rounds in which it was.
    """

    study: Study
    params: CompareParams
    control: dict[str, Speedup]
    void: frozenset[str]
    candidates: tuple[JudgedCandidate, ...]
    baseline_reasons: tuple[Reason, ...] = ()
    throttled: Mapping[str, float] = field(default_factory=dict)

    @property
    def differing(self) -> frozenset[str]:
        """Measures at which the control differs from 1."""
        return (self.void - self.throttled.keys()) | (void_measures(self.control) & self.throttled.keys())

    @property
    def speed_only(self) -> bool:
        """Whether nothing was trained, so that the verdicts say nothing about quality."""
        return self.study.speed_only

    @property
    def margin(self) -> float:
        """Largest loss of the score that counts as the same, in its units; not for speed only."""
        return quality_margin_for(self.study.score_name, self.params)

    @property
    def scale(self) -> Scale:
        """How the score is written; not for speed only."""
        return Scale(self.study.score_name, self.is_fraction, self.margin)

    @property
    def is_fraction(self) -> bool:
        """Whether the score is a share of the test examples, such as accuracy."""
        changes = [change for item in self.candidates for change in (item.quality, item.quality_same_weights) if change]
        return all(change.is_fraction for change in changes) if changes else self.study.task.has_classes

    @property
    def number_of_tests(self) -> int:
        """How many verdicts share the 5 %; 1 if nothing was compared."""
        return max(1, sum(len(candidate.tests) for candidate in self.candidates))

    @property
    def alpha(self) -> float:
        """Largest p-value of an `adopt` at the first step: the verdicts of the report share 5 %.

        It is at most that with which the low end of the 95 % interval reaches the required ratio, as of a `faster`.
        """
        alone = (1 - CONFIDENCE) / 2
        return alone if self.speed_only else min(alone, (1 - CONFIDENCE) / self.number_of_tests)

    def minutes(self, processes: int) -> float | None:
        """How long it takes to measure so many processes, as long as it took so far; None without a measurement."""
        if self.study.baseline.profile is None:
            return None
        protocol = self.study.baseline.profile.summary.protocol
        return processes * (protocol.stage_seconds or protocol.timing_seconds) / protocol.processes / 60

    def before_after(self, metric: str, candidate: JudgedCandidate) -> BeforeAfter | None:
        """A metric of the baseline's and of a candidate's profile; None unless both have it."""
        before, after = self.study.baseline.profile, candidate.result.profile
        if before is None or after is None or metric not in before.metrics or metric not in after.metrics:
            return None
        return BeforeAfter(baseline=before.metrics[metric], candidate=after.metrics[metric])


def is_traced(profile: Profile) -> bool:
    """Whether a profile has a trace."""
    return any(name.startswith("profiler/") for name in profile.metrics)


def compare(study: Study, params: CompareParams) -> Judging:
    """Compares every candidate of a study with its baseline.

    Raises:
        ComparisonError: variants were not trained or measured under the same conditions, or not measured together.
    """
    check_metrics(study)
    check_trainings(study)
    check_initial_weights(study)
    check_profiles(study)
    baseline = study.baseline.profile
    measured = _with_named_kinds([_measured(study, result, params) for result in study.candidates])
    control = _control(study, baseline, measured) if baseline else {}
    throttled = throttled_measures(baseline, study.inference_batch_sizes) if baseline else {}
    void = void_measures(control) | throttled.keys()
    known = [item.classes for item in measured if item.quality is not None]
    if params.class_margin is not None and known and not any(known):
        raise ComparisonError(
            f"compare.class_margin is {params.class_margin:g}, and no class has {FEWEST_OF_CLASS} test examples with a "
            "score of 0 or 1: set it to null"
        )
    judge = _judged_by_speed if study.speed_only else _judged
    judged = judge(study, measured, void, params)
    rejected = _rejected_policies(judged)
    candidates = tuple(_explained(study, item, control, void, throttled, rejected) for item in judged)
    tried = {profile.policy for item in study.candidates if (profile := item.profile) is not None}
    baseline_reasons = explain_profile(baseline, study.environment, tried, study.classes) if baseline else ()
    return Judging(study, params, control, void, candidates, baseline_reasons, throttled)


def _measured(study: Study, result: VariantResult, params: CompareParams) -> JudgedCandidate:
    """A candidate's numbers, without verdicts and reasons."""
    baseline, profile = study.baseline.profile, result.profile
    if baseline is None or profile is None:
        return JudgedCandidate(result, dict.fromkeys(study.measures_of(result.variant), "inconclusive"))
    speedups = _speedups(study, result.variant, baseline, profile)
    # what an account says is of a step, which has other work in another batch
    accounts = Accounts.of(baseline, profile, study.control) if profile.batch_size == baseline.batch_size else None
    ratios = possible_ratios(baseline, profile, study.environment)
    quality = None if study.speed_only else quality_change(study, _scores(result))
    same_weights = _quality_same_weights(study, result)
    changes = {measure: quality if measure == TRAIN else same_weights for measure in speedups}
    evidence = Evidence(
        baseline=baseline,
        candidate=profile,
        trainings=result.trainings,
        speedups=speedups,
        environment=study.environment,
        min_speedup=params.min_speedup,
        classes=study.classes,
        factors=_factors(study, result.variant, baseline, profile),
        accounts=accounts,
        account=account_of(accounts, speedups[TRAIN].within_run, ratios),  # both are of this run
        lacks_same_weights=not study.speed_only and same_weights is None,
    )
    return JudgedCandidate(
        result=result,
        verdicts={},
        evidence=evidence,
        classes={
            measure: recall_changes
            for measure, change in changes.items()
            if (recall_changes := _classes(study, change))
        },
        quality=quality,
        quality_same_weights=same_weights,
        waiting=precision_bound(baseline, profile),
    )


def _with_named_kinds(measured: Sequence[JudgedCandidate]) -> list[JudgedCandidate]:
    by_variant = {item.variant: item.evidence for item in measured if item.evidence is not None}
    named = with_names({name: data.account for name, data in by_variant.items() if data.account is not None})
    evidence = {name: replace(data, account=named.get(name)) for name, data in by_variant.items()}
    return [replace(item, evidence=evidence.get(item.variant)) for item in measured]


def _judged(
    study: Study, measured: Sequence[JudgedCandidate], void: frozenset[str], params: CompareParams
) -> list[JudgedCandidate]:
    """The candidates with their verdicts, which share the 5 % that an `adopt` may be wrong."""
    parts = {
        (candidate.variant, measure): Parts(
            speedup,
            candidate.precision(measure),
            quality,
            quality_margin_for(study.score_name, params),
            lacks_precision=_lacks_precision(study, candidate, measure),
            bound=candidate.waiting.bound if candidate.waiting and measure == TRAIN else None,
            classes=candidate.classes.get(measure, ()),
        )
        for candidate in measured
        for measure, speedup in candidate.speedups.items()
        if (quality := candidate.quality_of(measure)) is not None
    }
    tests = run_tests(parts, params)
    all_verdicts = verdicts(parts, tests, void, params)
    return [
        replace(candidate, verdicts=_undecided(candidate) | _own(all_verdicts, candidate), tests=_own(tests, candidate))
        for candidate in measured
    ]


def _undecided(candidate: JudgedCandidate) -> dict[str, Verdict]:
    """Each measure as it is where its quality is not known: `inconclusive`."""
    return {**dict.fromkeys(candidate.speedups, "inconclusive"), **candidate.verdicts}


def _lacks_precision(study: Study, candidate: JudgedCandidate, measure: str) -> bool:
    """Whether other settings than the precision differ, and it is not known what the precision brings."""
    profile = candidate.result.profile
    has_bridge = profile is not None and study.bridge_name(profile, measure) is not None
    return has_bridge and candidate.precision(measure) is None


def _judged_by_speed(
    study: Study, measured: Sequence[JudgedCandidate], void: frozenset[str], params: CompareParams
) -> list[JudgedCandidate]:
    """The candidates with their verdicts on speed only."""

    def verdict(candidate: JudgedCandidate, measure: str) -> Verdict:
        speedup, precision = candidate.speedups[measure], candidate.precision(measure)
        lacks_precision = _lacks_precision(study, candidate, measure)
        return decide_speed(speedup, precision, params, void=measure in void, lacks_precision=lacks_precision)

    return [
        replace(item, verdicts=item.verdicts | {measure: verdict(item, measure) for measure in item.speedups})
        for item in measured
    ]


def _rejected_policies(judged: Sequence[JudgedCandidate]) -> frozenset[str]:
    """Policies of candidates that are rejected for training, or slower."""
    profiles = (item.result.profile for item in judged if item.verdict in ("reject", "slower"))
    return frozenset(profile.policy for profile in profiles if profile is not None)


def _own(by_key: Mapping[Key, _Value], candidate: JudgedCandidate) -> dict[str, _Value]:
    """A candidate's values by measure."""
    return {measure: value for (variant, measure), value in by_key.items() if variant == candidate.variant}


def _explained(
    study: Study,
    candidate: JudgedCandidate,
    control: dict[str, Speedup],
    void: frozenset[str],
    throttled: Mapping[str, float],
    rejected: frozenset[str],
) -> JudgedCandidate:
    """The candidate with its reasons."""
    baseline, result = study.baseline, candidate.result
    if candidate.evidence is None:
        left_out = study.task.left_out.get(result.variant)
        failures = [arm_failed(result, left_out=left_out)] if result.failures else []
        failures += [arm_failed(baseline, role="baseline")] if baseline.failures else []
        return replace(candidate, reasons=tuple(failures))
    evidence = replace(candidate.evidence, control=control, void=void, throttled=throttled, rejected=rejected)
    return replace(candidate, evidence=evidence, reasons=explain(evidence))


def _factors(study: Study, variant: str, baseline: Profile, candidate: Profile) -> dict[str, SpeedupFactors]:
    """By measure, the factors of the speed-up; absent where no other setting differs, or the bridge was not needed."""
    bridge = study.bridge(candidate, TRAIN)  # which other settings of inference need, too
    if bridge is None:
        return {}
    settings, precision = _speedups(study, variant, baseline, bridge), _speedups(study, variant, bridge, candidate)
    return {
        measure: SpeedupFactors(settings[measure], precision[measure])
        for measure in settings
        if measure in precision and study.bridge_name(candidate, measure) is not None
    }


def found_ratios(judging: Judging) -> Iterator[FoundRatio]:
    """Yields what this run found by itself: every judged ratio of two arms, those with bridging arms among them."""
    baseline = judging.study.baseline.variant
    for item in judging.candidates:
        for measure, speedup in item.speedups.items():
            yield from _found((baseline, item.variant), measure, speedup)
        profile = item.result.profile
        bridge = judging.study.bridge(profile, TRAIN) if profile else None
        if bridge is None:
            continue
        for measure, factors in item.factors.items():
            yield from _found((baseline, bridge.summary.variant), measure, factors.settings)
            yield from _found((bridge.summary.variant, item.variant), measure, factors.precision)


def _found(arms: Pair, measure: str, speedup: Speedup) -> Iterator[FoundRatio]:
    """Yields it, unless a single round says nothing of its error."""
    occasion = speedup.occasion
    if math.isfinite(occasion.error.standard_error):
        yield FoundRatio(
            arms=arms,
            measure=measure,
            log_ratio=occasion.log_ratio,
            standard_error=occasion.error.standard_error,
            degrees=occasion.error.degrees,
            confidence=occasion.confidence,
        )


def _earlier(study: Study, arms: Pair, measure: str) -> tuple[Occasion, ...]:
    """What other occasions found; nothing of the control, which shows the noise of this run."""
    ratios = () if files.CONTROL in arms else study.earlier.of(arms, measure)
    return tuple(Occasion(item.log_ratio, Error(item.standard_error, item.degrees), item.confidence) for item in ratios)


def ratio_of(speedup: Speedup) -> dict[str, Any]:
    """A ratio with its interval, which is 95 % over all looks, as the fields of `Ratio`."""
    return {
        "value": speedup.ratio,
        "low": speedup.low,
        "high": speedup.high,
        "confidence": CONFIDENCE,
        "n": speedup.processes,
        "occasions": speedup.occasions if speedup.earlier else None,
        "occasion_spread": speedup.occasion_spread,
    }


def controls_of(
    control: Mapping[str, Speedup], differing: Collection[str], throttled: Mapping[str, float]
) -> dict[str, Control]:
    """By measure, the baseline over its second copy.

    Args:
        control: by measure, the ratio.
        differing: measures in which the two differ by more than noise.
        throttled: by measure, as of `Control`.
    """
    return {
        measure: Control(
            **ratio_of(speedup),
            rounds=speedup.rounds,
            differs=measure in differing,
            throttled=throttled.get(measure),
        )
        for measure, speedup in control.items()
    }


def _speedups(study: Study, variant: str, before: Profile, after: Profile) -> dict[str, Speedup]:
    """By measure, time of one arm / time of another.

    The control and bridging arms have only the measures in which they took part in two repeats or more.

    Args:
        study: all that is compared.
        variant: the candidate, or the control; its looks decide the confidence.
        before, after: the two arms.

    Raises:
        ComparisonError: two variants have fewer than two repeats of a measure in common.
    """
    times = times_of(before), times_of(after)
    is_required = all(files.is_variant(profile.summary.variant) for profile in (before, after))
    arms = before.summary.variant, after.summary.variant
    return {
        measure: replace(
            speedup_between(measure, variant, before, after),
            earlier=_earlier(study, arms, measure),
        )
        for measure in study.measures_of(variant)
        if is_required or shared_repeats(measure, *times) > 1
    }


def speedup_between(measure: str, variant: str, before: Profile, after: Profile) -> Speedup:
    """Time of one arm / time of another at a measure, as it is judged; arguments and errors as of `_speedups`."""
    protocol = before.summary.protocol
    confidence = protocol.confidence_of(variant, measure)
    speedup = speedup_of(measure, times_of(before), times_of(after), confidence, interleaved=protocol.interleaved)
    return replace(speedup, run_sd=RUN_SD)


def times_of(profile: Profile) -> Times:
    """The rounds and calls of an arm, as `speedup_of` takes them."""
    return Times(profile.rounds, profile.calls, profile.batch_size)


def _control(study: Study, baseline: Profile, measured: Sequence[JudgedCandidate]) -> dict[str, Speedup]:
    """The ratios of the baseline to its own second copy, by measure."""
    if study.control is None:
        return {}
    speedups = _speedups(study, files.CONTROL, baseline, study.control)
    return with_others(speedups, [item.speedups for item in measured])


def with_others(control: Mapping[str, Speedup], candidates: Sequence[Mapping[str, Speedup]]) -> dict[str, Speedup]:
    """The control's ratios by measure, with those of the candidates, which show how much repeats differ."""
    others = {measure: tuple(item[measure] for item in candidates if measure in item) for measure in control}
    return {measure: replace(speedup, others=others[measure]) for measure, speedup in control.items()}


def quality_change(study: Study, scores: NDArray[np.float64]) -> QualityChange:
    """The change of quality from the baseline's scores to `scores`, `(seeds, ...)`."""
    if study.task.score_kind == "metric":
        return MetricChange(_scores(study.baseline), scores, study.task.examples)
    return score_change(_scores(study.baseline), scores)


def _classes(study: Study, change: QualityChange | None) -> tuple[RecallChange, ...]:
    """The change of recall of each class; empty where examples have none, or are not right or wrong."""
    if study.classes_of_test is None or not isinstance(change, BinaryChange):
        return ()
    return class_changes(change, study.classes_of_test)


def _quality_same_weights(study: Study, result: VariantResult) -> QualityChange | None:
    """The change of quality of the baseline's weights; None if nothing was trained, or their evaluation failed."""
    seeds = [training.seed for training in study.baseline.trainings]
    if study.speed_only or any(seed not in result.same_weights for seed in seeds):
        return None
    return quality_change(study, np.stack([result.same_weights[seed] for seed in seeds]))


def _scores(result: VariantResult) -> NDArray[np.float64]:
    """The scores of each training, `(seeds, ...)`."""
    return np.stack([training.scores for training in result.trainings if training.scores is not None])
