"""Turns a judging into `comparison.json`: every number, verdict, reason and sentence that the renderers show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from halfstep.compare.answer import answer_of
from halfstep.compare.case import Case, Judging, speedup_between
from halfstep.compare.estimates import controls_of, estimate, quality_of, ratio_of
from halfstep.compare.explain.account import op_changes
from halfstep.compare.explain.why import why
from halfstep.compare.gate import gate_of
from halfstep.compare.metrics import (
    COMPILED,
    LARGEST_BATCH,
    LARGEST_BATCH_PER_S,
    LOADED,
    PEAK_MEMORY,
    STARTUP,
    metric_values,
    train_times_s,
)
from halfstep.compare.next_steps import next_steps
from halfstep.compare.notes import notes
from halfstep.compare.rules.explain import explain
from halfstep.compare.serving import serving_of
from halfstep.compare.study import Study
from halfstep.compare.training_curves import time_to_score
from halfstep.compare.verdict import class_outcome
from halfstep.compare.words import class_sentence, quality_sentence, same_weights_sentence, verdict_sentence
from halfstep.params.schema import CompareParams
from halfstep.results import comparison as document
from halfstep.results.profile import Profile, Setting, differing_settings
from halfstep.words.text import TRAIN, joined


def judged(study: Study, params: CompareParams) -> Judging:
    """Compares every candidate of a study with its baseline; errors as of `Judging`."""
    return Judging(study, params, explain)


def document_of(judging: Judging) -> document.Comparison:
    """The content of `comparison.json`."""
    study, params = judging.study, judging.params
    failed = tuple(result.variant for result in study.variants if result.failures)
    candidates = {case.variant: _candidate(case) for case in judging.cases}
    gate = gate_of(candidates, failed, judging.void, params) if params.gate else None
    times = time_to_score(study.variants, study.score_name)
    score: dict[str, Any] = {}
    if not study.speed_only:
        score = {"unit": "fraction" if judging.is_fraction else None, "margin": judging.margin}
    comparison = document.Comparison(
        baseline=study.baseline.variant,
        environment=study.environment,
        control=controls_of(judging.control, judging.differing, judging.throttled),
        noise_floor={measure: speedup.noise_floor for measure, speedup in judging.control.items()},
        throttled=judging.throttled or None,
        min_speedup=params.min_speedup,
        score=document.Score(name=study.score_name, **score),
        speed_only=study.speed_only or None,
        why_speed_only=study.why_speed_only,
        gate=gate.state if gate else None,
        gate_text=gate.text if gate else None,
        failed=failed or None,
        time_to_accuracy=times
        and document.TimeToAccuracy(name=study.score_name, val_accuracy=times.target, time_to_accuracy_s=times.means_s),
        baseline_reasons=judging.baseline_reasons or None,
        train_time_s=train_times_s(study.variants) or None,
        startup_s=metric_values(study.variants, STARTUP) or None,
        compiled_s=metric_values(study.variants, COMPILED) or None,
        loaded_s=metric_values(study.variants, LOADED) or None,
        notes=tuple(notes(judging)) or None,
        setup=_setup(study),
        serving=serving_of(judging),
        candidates=candidates,
    )
    return comparison.model_copy(update={"answer": answer_of(comparison)})


def _setup(study: Study) -> document.Setup:
    profiles = {item.variant: item.profile for item in study.variants if item.profile is not None}
    summary, trained = study.baseline.profile.summary if study.baseline.profile else None, None
    if summary is not None:
        history = study.baseline.trainings[0].history
        trained = document.Trained(
            model=study.model,
            batch_size=summary.in_force.batch_size,
            epochs=None if history is None else len(history),
            learning_rate=summary.in_force.learning_rate,
        )
    return document.Setup(
        seeds=tuple(training.seed for training in study.baseline.trainings),
        inference_batch_sizes=study.inference_batch_sizes,
        task=study.task,
        data=study.data,
        protocol=summary and summary.protocol,
        configuration=summary and summary.configuration,
        trained=trained,
        settings={name: _settings(profile, study.baseline.profile) for name, profile in profiles.items()},
        xla=tuple(name for name, profile in profiles.items() if profile.summary.in_force.xla),
        warnings={name: warnings for name, profile in profiles.items() if (warnings := profile.summary.warnings)},
        manifests=dict(study.manifests),
    )


def _settings(profile: Profile, baseline: Profile | None) -> dict[str, Setting]:
    """The policy of a variant, the layers that it leaves in float32, and what else differs from the baseline."""
    in_force, settings = profile.summary.in_force, dict[str, Setting](policy=profile.policy)
    if in_force.float32_layers:
        settings["float32_layers"] = joined(in_force.float32_layers)
    if baseline is not None:
        settings |= differing_settings(baseline.summary.in_force, in_force, profile.summary.configuration.device)
    return settings


def _candidate(case: Case) -> document.Candidate:
    steps = list(next_steps(case))
    classes = tuple(_class_recalls(case))
    return document.Candidate(
        speedup={measure: _speedup(case, measure) for measure in case.speedups} or None,
        factors={
            measure: document.Factors(
                settings=document.Ratio(**ratio_of(factors.settings)),
                precision=document.Ratio(**ratio_of(factors.precision)),
            )
            for measure, factors in case.factors.items()
        }
        or None,
        quality=case.quality and quality_of(case.quality, case.judging, quality_sentence(case, case.quality)),
        quality_same_weights=case.same_weights
        and quality_of(case.same_weights, case.judging, same_weights_sentence(case, case.same_weights)),
        classes=classes or None,
        class_sentence=class_sentence(classes),
        limit=None if case.limit is None else {TRAIN: case.limit},
        account=None if case.account is None else {TRAIN: case.account},
        waiting=case.waiting,
        other_batch=_other_batch(case),
        over_parent=_over_parent(case),
        verdicts=case.verdicts,
        tests=case.tests or None,
        sentence=verdict_sentence(case),
        why=why(case.variant, case.reasons, case.account) if case.speedups and TRAIN not in case.void else None,
        next_steps=tuple(step.sentence for step in steps) or None,
        open=tuple(step.question for step in steps if step.question is not None) or None,
        reasons=case.reasons,
        peak_memory_mib=case.before_after(PEAK_MEMORY),
        max_batch_size=case.before_after(LARGEST_BATCH),
        max_batch_examples_per_s=case.before_after(LARGEST_BATCH_PER_S),
        operations=op_changes(case.accounts, case.account) or None
        if case.accounts is not None and case.account is not None and not case.account.void
        else None,
    )


def _speedup(case: Case, measure: str) -> document.MeasuredSpeedup:
    speedup = case.speedups[measure]
    stalls = (
        f"{case.variant}: {speedup.run_ratio:.2f}× counts stalls. The ratio of typical steps, which stalls do not "
        f"change, is {speedup.typical_ratio:.2f}×."
    )
    return document.MeasuredSpeedup(
        **ratio_of(speedup),
        warnings=(stalls,) if case.has_reason("stalls", measure) else None,
        rounds=speedup.rounds,
        typical_ratio=speedup.typical_ratio,
        baseline_time_ms=speedup.baseline_time_ms,
        candidate_time_ms=speedup.candidate_time_ms,
    )


def _other_batch(case: Case) -> document.OtherBatch | None:
    if case.baseline is None or case.baseline.batch_size == case.candidate.batch_size:
        return None
    sizes = document.BeforeAfter(baseline=case.baseline.batch_size, candidate=case.candidate.batch_size)
    per_s = case.before_after(f"train_{case.judging.study.task.examples_word}_per_s")
    return None if per_s is None else document.OtherBatch(batch_size=sizes, examples_per_s=per_s)


def _over_parent(case: Case) -> document.OverParent | None:
    """Of training; None where the candidate has no parent, or where that was not measured with it."""
    parent = case.profile.summary.entry.parent if case.profile else None
    profile = next((item.profile for item in case.judging.study.variants if item.variant == parent), None)
    if profile is None:
        return None
    speedup = speedup_between(TRAIN, case.variant, profile, case.candidate)
    return document.OverParent(**ratio_of(speedup), parent=profile.summary.variant)


def _class_recalls(case: Case) -> Iterator[document.ClassRecall]:
    """The classes whose recall is shown to fall in training, or not shown to stay within `compare.class_margin`."""
    for item in case.classes.get(TRAIN, ()):
        outcome = class_outcome(item, case.judging.params)
        if item.is_lost or outcome not in ("shown", None):
            name = case.judging.study.class_name(item.number)
            yield document.ClassRecall(
                **estimate(item.change, item), unit="fraction", name=name, is_lost=item.is_lost, outcome=outcome
            )
