"""Times candidates in turns, by successive halving: the slower half is left out after each measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict

import pandas as pd

from stages import files
from stages.params import Params, ProfileParams, Variant
from stages.profile import repeats, runner
from stages.profile.extras import Wanted
from stages.profile.records import ArmConfig, Measurement
from stages.results.comparison import Ratio
from stages.stats.speedup import Speedup, train_speedup
from stages.tasks.spec import TaskSpec

_FINALISTS = 2
_SHORT, _FINAL = 2, 8  # repeats
_ARM_S = 2.5  # of timing for each arm of a short measurement
_FINAL_S = 15.0  # for each arm of the last one
Report = Callable[[int, Mapping[str, tuple[Ratio | None, Ratio]]], None]


def halving(
    settings: Params, variant: str, entries: Mapping[str, Variant], report: Report, seconds_left: Callable[[], float]
) -> dict[str, tuple[Ratio | None, Ratio]]:
    """Times the variant, its candidates and the baseline until two candidates are left, and those longer.

    Args:
        settings: all parameters.
        variant: name of the variant that is searched.
        entries: of the candidates, by name; the first one is the variant itself.
        report: called after each measurement with its number and what it found.
        seconds_left: how long the search may go on.

    Returns:
        By candidate of the last measurement the speed-up over the first of `entries`, None for itself, and over the
        baseline.
    """
    first, *others = entries
    found: dict[str, tuple[Ratio | None, Ratio]] = {}
    stage = 0
    while len(others) > _FINALISTS:
        stage += 1
        found = _measured(settings, entries, [first, *others], stage, seconds_left())
        report(stage, found)
        kept = max(_FINALISTS, math.ceil(len(others) / 2))
        others = sorted(others, key=lambda name: -found[name][1].ratio)[:kept]
    found = _measured(settings, entries, [first, *others], None, seconds_left())
    report(stage + 1, found)
    return found


def _measured(
    settings: Params, entries: Mapping[str, Variant], names: list[str], stage: int | None, seconds_left: float
) -> dict[str, tuple[Ratio | None, Ratio]]:
    """One measurement in turns; `stage` is None for the last one."""
    baseline, digest = settings.compare.baseline, files.verify_manifest(files.PREPARED)
    arms = {f"candidate_{list(entries).index(name)}": entries[name] for name in names}
    together = settings.model_copy(update={"variants": {**settings.variants, **arms}})
    seed = settings.train.seeds[0]
    configs = {
        arm: ArmConfig(TaskSpec.of(together, arm, digest), together.variants[arm], seed) for arm in (baseline, *arms)
    }
    if stage is None:
        configs[files.CONTROL] = configs[baseline]
    arm_s = _FINAL_S if stage is None else _ARM_S
    protocol = ProfileParams(
        processes=_FINAL if stage is None else _SHORT,
        max_seconds=max(1.0, min(arm_s * len(configs), seconds_left)),
        inference_batch_sizes=(),
        interleave=settings.profile.interleave,
        seed=settings.profile.seed,
    )
    listed = settings.train.model_copy(update={"variants": tuple(configs)})
    measured = together.model_copy(update={"profile": protocol, "train": listed})
    key = repeats.measurement_key(
        measured.model_copy(update={"variants": {name: config.variant for name, config in configs.items()}}),
        {"search": stage, "data": digest},
    )
    with repeats.opened(key, repeats.amounts(protocol, settings.compare.min_speedup)) as kept:
        context = runner.Context(Wanted(traces=False), min_speedup=settings.compare.min_speedup, has_bridges=False)
        found = runner.measure(configs, baseline, protocol, context, kept)
        kept.finish()
    first = next(iter(arms))
    return {
        name: (None if arm == first else _ratio(found, first, arm), _ratio(found, baseline, arm))
        for name, arm in zip(names, arms, strict=True)
    }


def _ratio(measurement: Measurement, before: str, after: str) -> Ratio:
    tables = [pd.DataFrame([asdict(row) for row in measurement.records[name].times.rounds]) for name in (before, after)]
    found: Speedup = train_speedup(tables[0], tables[1], interleaved=measurement.protocol.interleaved)
    return Ratio(value=found.ratio, low=found.low, high=found.high, confidence=found.confidence, n=found.processes)
