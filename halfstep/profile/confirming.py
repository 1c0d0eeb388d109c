"""Tries a change that the traces promise to save time by: the candidate with it and without it, in turns."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import pandas as pd

from halfstep.params.schema import Params
from halfstep.profile import runner
from halfstep.profile.plan import FEWEST_ROUNDS
from halfstep.profile.records import Measurement
from halfstep.profile.repeats import Repeats, amounts
from halfstep.results.confirmation import Confirmation, Intervention
from halfstep.stats.speedup import train_speedup
from halfstep.tasks.trial import Trial

Chooser = Callable[[Params], Intervention | None]

_REPEATS, _REPEATS_ALONE = 3, 4  # where arms take turns, and where each order needs its reverse
_MOST_S, _MOST_SHARE, _ENOUGH_S = 15.0, 0.25, 6.0  # seconds of all, share of the stage, and seconds of timing
_CONFIDENCE = 0.9  # one-sided 5 %
_CHANGED = "with_float32_layers"


def confirm(
    change: Intervention, trials: Mapping[str, Trial], settings: Params, measurement: Measurement, kept: Repeats
) -> Confirmation | None:
    """Measures the candidate with the change and without it; None where `profile.confirm` leaves too little time.

    Args:
        change: what is changed.
        trials: what each arm's workers need, by the arm's name.
        settings: all parameters.
        measurement: of all arms, whose plan says what a repeat costs.
        kept: where that is kept; this has a folder of its own in it.

    Raises:
        ProfileError: a worker failed.
    """
    plan, allowed = measurement.plan, settings.profile.confirm
    if plan is None or allowed is False:
        return None
    repeats = _REPEATS if plan.interleaved else _REPEATS_ALONE
    share = 2 / len(measurement.records)  # of what all arms cost
    least_s = repeats * FEWEST_ROUNDS * plan.round_s * share
    left_s = min(_MOST_S, _MOST_SHARE * measurement.stage_s) - repeats * plan.start_s * share
    if allowed is None and left_s < least_s:
        return None
    timing_s = max(least_s, _ENOUGH_S if allowed else min(_ENOUGH_S, left_s))
    what = change.what or f"'{change.layers[0]}'"
    print(
        f"profile: the traces promise {change.promised_ms:.3g} ms a step with {what} of {change.variant} in float32; "
        "measuring that",
        flush=True,
    )
    trial = trials[change.variant]
    layers = (*trial.variant.float32_layers, *change.layers)
    changed = replace(trial, name=_CHANGED, variant=trial.variant.model_copy(update={"float32_layers": layers}))
    given = {"processes": repeats, "max_seconds": timing_s, "rounds": None, "inference_batch_sizes": ()}
    profile = settings.profile.model_copy(update=given)
    digest = hashlib.sha256(change.model_dump_json().encode()).hexdigest()[:8]
    own = Repeats(kept.folder / f".confirm-{digest}", amounts(profile, 1.0))
    context = runner.MeasurementContext(traces=False, min_speedup=1.0, began_s=time.monotonic())
    tried = runner.measure({change.variant: trial, _CHANGED: changed}, change.variant, profile, context, own)
    own.finish()
    tables = [pd.DataFrame(map(asdict, tried.records[name].times.rounds)) for name in (change.variant, _CHANGED)]
    speedup = train_speedup(*tables, interleaved=plan.interleaved)
    low, high = speedup.interval(_CONFIDENCE)
    value, low, high = (speedup.baseline_time_ms * (1 - 1 / ratio) for ratio in (speedup.run_ratio, low, high))
    return Confirmation(intervention=change, value=value, low=low, high=high, repeats=speedup.processes)
