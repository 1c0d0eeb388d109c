"""Times candidates in turns, by successive halving: the slower half is left out after each measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

import pandas as pd

from stages import files
from stages.params import Params, ProfileParams, Variant
from stages.profile import repeats, runner
from stages.profile.extras import Wanted
from stages.profile.records import ArmConfig, Measurement
from stages.results.comparison import Ratio
from stages.search.deadline import Deadline
from stages.stats.speedup import Speedup, train_speedup
from stages.tasks.spec import TaskSpec

_FINALISTS = 2
_SHORT, _FINAL = 2, 8  # repeats
_ARM_S = 2.5  # of timing for each arm of a short measurement
_FINAL_S = 15.0  # for each arm of the last one
# By candidate the speed-up over the variant that is searched, None for itself, and over the baseline.
Timed = dict[str, tuple[Ratio | None, Ratio]]
Report = Callable[[int, Timed], None]


def halving(
    settings: Params,
    entries: Mapping[str, Variant],
    report: Report,
    deadline: Deadline,
    done: tuple[int, Timed] = (0, {}),
) -> Timed:
    """Times the variant, its candidates and the baseline until two candidates are left, and those longer.

    Args:
        settings: all parameters.
        entries: of the candidates, by name; the first one is the variant that is searched.
        report: called after each measurement with its number and what it found.
        deadline: no measurement starts after it.
        done: number of the last measurement of an earlier search, and what it found.

    Returns:
        What the last measurement found.

    Raises:
        OutOfTimeError: the time was up before the last measurement.
    """
    first, *others = entries
    counts, (number, found) = list(_counts(len(others))), done
    while number < len(counts):
        deadline.require()
        if found:
            others = sorted(found.keys() - {first}, key=lambda name: -found[name][1].ratio)[: counts[number]]
        number += 1
        is_last = number == len(counts)
        found = _measured(settings, entries, [first, *others], None if is_last else number, deadline.left_s)
        report(number, found)
    return found


def _counts(candidates: int) -> Iterator[int]:
    """How many candidates each measurement has."""
    while candidates > _FINALISTS:
        yield candidates
        candidates = max(_FINALISTS, math.ceil(candidates / 2))
    yield candidates


def _measured(
    settings: Params, entries: Mapping[str, Variant], names: list[str], stage: int | None, seconds_left: float
) -> Timed:
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
    asked, most = settings.profile, _FINAL if stage is None else _SHORT
    arm_s = _FINAL_S if stage is None else _ARM_S
    protocol = ProfileParams(
        processes=min(most, asked.processes or most),
        max_seconds=max(1.0, min(arm_s * len(configs), seconds_left, asked.max_seconds or math.inf)),
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
