"""Turns a study into `comparison.json`: every number, verdict, reason and sentence that the renderers show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from halfstep.compare.explain.account import op_changes
from halfstep.compare.explain.why import why
from halfstep.compare.gate import gate_of
from halfstep.compare.judging import JudgedCandidate, Judging, compare, controls_of, ratio_of, speedup_between
from halfstep.compare.metrics import (
    LARGEST_BATCH,
    LARGEST_BATCH_PER_S,
    PEAK_MEMORY,
    STARTUP,
    metric_values,
    train_times_s,
)
from halfstep.compare.next_steps import next_steps
from halfstep.compare.notes import notes
from halfstep.compare.quality_document import class_recalls, quality_of
from halfstep.compare.quality_sentences import class_sentence, quality_sentence, same_weights_sentence
from halfstep.compare.sentences import verdict_sentence
from halfstep.compare.serving import serving_of
from halfstep.compare.study import Study
from halfstep.compare.training_curves import time_to_score
from halfstep.params import CompareParams
from halfstep.results import comparison as document
from halfstep.results.profile import Profile, Setting, differing_settings
from halfstep.text import TRAIN, joined


def judge(study: Study, params: CompareParams) -> document.Comparison:
    """Compares every candidate of a study with its baseline.

    Args:
        study: the results of all stages.
        params: section `compare` of the parameters.

    Raises:
        ComparisonError: variants were not trained or measured under the same conditions, or not measured together.
    """
    return document_of(compare(study, params))


def document_of(judging: Judging) -> document.Comparison:
    """The content of `comparison.json`."""
    study = judging.study
    failed = tuple(result.variant for result in study.variants if result.failures)
    candidates = {item.variant: _candidate(item, judging) for item in judging.candidates}
    gate = gate_of(candidates, failed, judging.void, judging.params) if judging.params.gate else None
    return document.Comparison(
        baseline=study.baseline.variant,
        environment=study.environment,
        control=controls_of(judging.control, judging.differing, judging.throttled),
        noise_floor={measure: speedup.noise_floor for measure, speedup in judging.control.items()},
        throttled=dict(judging.throttled) or None,
        min_speedup=judging.params.min_speedup,
        score=_score(judging),
        speed_only=judging.speed_only or None,
        why_speed_only=judging.study.why_speed_only,
        gate=gate.state if gate else None,
        gate_text=gate.text if gate else None,
        failed=failed or None,
        time_to_accuracy=_time_to_accuracy(study),
        baseline_reasons=judging.baseline_reasons or None,
        train_time_s=train_times_s(study.variants) or None,
        startup_s=metric_values(study.variants, STARTUP) or None,
        notes=tuple(notes(judging)) or None,
        setup=_setup(study),
        serving=serving_of(judging),
        candidates=candidates,
    )


def _score(judging: Judging) -> document.Score:
    if judging.speed_only:
        return document.Score(name=judging.study.score_name)
    unit: Literal["fraction"] | None = "fraction" if judging.is_fraction else None
    return document.Score(name=judging.study.score_name, unit=unit, margin=judging.margin)


def _time_to_accuracy(study: Study) -> document.TimeToAccuracy | None:
    times = time_to_score(study.variants, study.score_name)
    if times is None:
        return None
    return document.TimeToAccuracy(name=study.score_name, val_accuracy=times.target, time_to_accuracy_s=times.means_s)


def _setup(study: Study) -> document.Setup:
    profiles = {item.variant: item.profile for item in study.variants if item.profile is not None}
    summary = study.baseline.profile.summary if study.baseline.profile else None
    return document.Setup(
        seeds=tuple(training.seed for training in study.baseline.trainings),
        inference_batch_sizes=study.inference_batch_sizes,
        task=study.task,
        data=study.data,
        protocol=summary.protocol if summary else None,
        configuration=summary.configuration if summary else None,
        trained=_trained(study),
        settings={name: _settings(study, profile) for name, profile in profiles.items()},
        xla=tuple(name for name, profile in profiles.items() if profile.summary.in_force.xla),
        warnings={name: warnings for name, profile in profiles.items() if (warnings := profile.summary.warnings)},
        manifests=dict(study.manifests),
    )


def _trained(study: Study) -> document.Trained | None:
    if study.baseline.profile is None:
        return None
    in_force, history = study.baseline.profile.summary.in_force, study.baseline.trainings[0].history
    return document.Trained(
        model=study.model,
        batch_size=in_force.batch_size,
        epochs=None if history is None else len(history),
        learning_rate=in_force.learning_rate,
    )


def _settings(study: Study, profile: Profile) -> dict[str, Setting]:
    """The policy of a variant, the layers that it leaves in float32, and what else differs from the baseline."""
    summary, baseline = profile.summary, study.baseline.profile
    settings: dict[str, Setting] = {"policy": summary.in_force.policy}
    if summary.in_force.float32_layers:
        settings["float32_layers"] = joined(summary.in_force.float32_layers)
    if baseline is not None:
        settings |= differing_settings(baseline.summary.in_force, summary.in_force, summary.configuration.device)
    return settings


def _candidate(candidate: JudgedCandidate, judging: Judging) -> document.Candidate:
    classes, evidence = class_recalls(candidate, judging), candidate.evidence
    return document.Candidate(
        speedup={measure: _speedup(candidate, measure, judging) for measure in candidate.speedups} or None,
        factors={
            measure: document.Factors(
                settings=document.Ratio(**ratio_of(factors.settings)),
                precision=document.Ratio(**ratio_of(factors.precision)),
            )
            for measure, factors in candidate.factors.items()
        }
        or None,
        quality=quality_of(candidate.quality, judging, quality_sentence, candidate.variant),
        quality_same_weights=quality_of(
            candidate.quality_same_weights, judging, same_weights_sentence, candidate.variant
        ),
        classes=classes or None,
        class_sentence=class_sentence(classes),
        limit=None if candidate.limit is None else {TRAIN: candidate.limit},
        account={TRAIN: evidence.account} if evidence and evidence.account is not None else None,
        waiting=candidate.waiting,
        other_batch=_other_batch(candidate, judging),
        over_parent=_over_parent(candidate, judging.study),
        tests=candidate.tests or None,
        sentence=verdict_sentence(candidate, judging),
        why=_why(candidate, judging),
        next_steps=next_steps(candidate, judging) or None,
        reasons=candidate.reasons,
        peak_memory_mib=judging.before_after(PEAK_MEMORY, candidate),
        max_batch_size=judging.before_after(LARGEST_BATCH, candidate),
        max_batch_examples_per_s=judging.before_after(LARGEST_BATCH_PER_S, candidate),
        operations=_operations(candidate),
        **{document.verdict_key(measure): verdict for measure, verdict in candidate.verdicts.items()},
    )


def _other_batch(candidate: JudgedCandidate, judging: Judging) -> document.OtherBatch | None:
    before, after = judging.study.baseline.profile, candidate.result.profile
    if before is None or after is None or before.batch_size == after.batch_size:
        return None
    sizes = document.BeforeAfter(baseline=before.batch_size, candidate=after.batch_size)
    per_s = judging.before_after(f"train_{judging.study.task.examples_word}_per_s", candidate)
    return None if per_s is None else document.OtherBatch(batch_size=sizes, examples_per_s=per_s)


def _over_parent(candidate: JudgedCandidate, study: Study) -> document.OverParent | None:
    """Of training; None where the candidate has no parent, or where that was not measured with it."""
    profile = candidate.result.profile
    parent = profile.summary.entry.parent if profile else None
    parent_profile = next((item.profile for item in study.variants if item.variant == parent), None)
    if profile is None or parent_profile is None:
        return None
    speedup = speedup_between(TRAIN, candidate.variant, parent_profile, profile)
    return document.OverParent(**ratio_of(speedup), parent=parent_profile.summary.variant)


def _why(candidate: JudgedCandidate, judging: Judging) -> str | None:
    """Nothing is explained that is void."""
    if candidate.evidence is None or TRAIN in judging.void:
        return None
    return why(candidate.variant, candidate.reasons, candidate.evidence.account)


def _operations(candidate: JudgedCandidate) -> dict[Literal["gained", "lost"], tuple[document.OpChange, ...]] | None:
    data = candidate.evidence
    if data is None or data.accounts is None or data.account is None or data.account.void:
        return None
    return op_changes(data.accounts) or None


def _speedup(candidate: JudgedCandidate, measure: str, judging: Judging) -> document.MeasuredSpeedup:
    speedup = candidate.speedups[measure]
    return document.MeasuredSpeedup(
        **ratio_of(speedup),
        warnings=tuple(_disturbances(candidate, measure, judging.study.baseline.variant)) or None,
        rounds=speedup.rounds,
        typical_ratio=speedup.typical_ratio,
        baseline_time_ms=speedup.baseline_time_ms,
        candidate_time_ms=speedup.candidate_time_ms,
    )


def _disturbances(candidate: JudgedCandidate, measure: str, baseline: str) -> Iterator[str]:
    """What disturbed a speed-up: stalls."""
    speedup = candidate.speedups[measure]
    if any(reason.code == "stalls" and reason.measure == measure for reason in candidate.reasons):
        yield (
            f"{candidate.variant}: {speedup.run_ratio:.2f}× counts stalls. The ratio of typical steps, which stalls do "
            f"not change, is {speedup.typical_ratio:.2f}×."
        )
