"""Each variant at the batch with which it trains the most examples per second, beside all of them at equal batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stages.compare.judging import Judging, ratio_of
from stages.compare.verdict import decide_speed, void_measures
from stages.results import comparison as document
from stages.results.profile import InForce, Profile
from stages.stats.speedup import RUN_SD, Speedup, train_speedup
from stages.text import TRAIN

QUARTILES = (0.25, 0.5, 0.75)


def best_batches(judging: Judging) -> document.BestBatches | None:
    """The variants at their best batches; None without `profile.find_max_batch`, or where it failed."""
    study = judging.study
    profiles = {item.variant: item.profile for item in study.variants if item.profile is not None}
    baseline = profiles.get(study.baseline.variant)
    measured = {name: profile for name, profile in profiles.items() if profile.summary.best_batch is not None}
    if baseline is None or study.baseline.variant not in measured:
        return None
    control = _speedup(study.baseline.variant, baseline, study.control) if study.control else None
    is_void = control is not None and bool(void_measures({TRAIN: control}))
    found = {name: _variant(name, baseline, profile, judging, is_void=is_void) for name, profile in measured.items()}
    return document.BestBatches(
        control=None if control is None else document.Ratio(**ratio_of(control)),
        void=is_void or None,
        variants=found,
        curve=tuple(point for name, profile in profiles.items() for point in _curve(name, profile)),
    )


def _variant(name: str, baseline: Profile, profile: Profile, judging: Judging, *, is_void: bool) -> document.BestBatch:
    best = profile.summary.best_batch
    assert best is not None, "it was measured"
    speedup = None if profile is baseline else _speedup(name, baseline, profile)
    counted = profile.best_batch[profile.best_batch["counted"].astype(bool)]
    per_s = 1e3 * best.batch_size * counted["steps"].sum() / counted["round_time_ms"].sum()
    return document.BestBatch(
        batch_size=best.batch_size,
        examples_per_s=float(per_s),
        peak_memory_mib=best.peak_mib,
        speedup=None if speedup is None else document.Ratio(**ratio_of(speedup)),
        verdict=None if speedup is None else decide_speed(speedup, None, judging.params, void=is_void),
        trained_as=_trained_as(profile, best.batch_size, judging),
    )


def _speedup(name: str, baseline: Profile, profile: Profile) -> Speedup | None:
    """Examples per second over those of the baseline, each at its best batch; None unless both were measured so."""
    before, after = (found.summary.best_batch for found in (baseline, profile))
    if before is None or after is None or profile.best_batch.empty:
        return None
    protocol = before.protocol
    found = train_speedup(
        baseline.best_batch,
        profile.best_batch,
        protocol.confidence_of(name, TRAIN),
        batch_sizes=(before.batch_size, after.batch_size),
        interleaved=protocol.interleaved,
    )
    return replace(found, run_sd=RUN_SD)


def _trained_as(profile: Profile, batch_size: int, judging: Judging) -> str | None:
    """The variant that was trained with these settings and this batch, whose quality is known; None without one."""
    wanted = _apart_from_training(profile.summary.in_force, batch_size)
    for item in judging.candidates:
        found = item.result.profile
        if found is None or item.quality is None:
            continue
        if _apart_from_training(found.summary.in_force, found.batch_size) == wanted:
            return item.variant
    return None


def _apart_from_training(in_force: InForce, batch_size: int) -> InForce:
    return in_force.model_copy(update={"batch_size": batch_size, "learning_rate": None})


def _curve(name: str, profile: Profile) -> Iterator[document.BatchPoint]:
    """Examples per second by batch: the median of the turns, and their quartiles."""
    for size, per_s in profile.examples_per_s_by_batch:
        low, middle, high = per_s.quantile(list(QUARTILES))
        yield document.BatchPoint(
            variant=name, batch_size=int(size), examples_per_s=float(middle), low=float(low), high=float(high)
        )
