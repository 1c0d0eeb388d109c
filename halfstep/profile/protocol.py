"""How the measurement went, for the reader of the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from halfstep.profile import extras, gpu_conditions
from halfstep.profile.machine_load import OtherLoad
from halfstep.profile.records import ArmRecord, Measurement
from halfstep.profile.steady_state import unsteady_measures
from halfstep.results.profile import GpuConditions, Protocol, largest_move
from halfstep.system import files

BUSY_SHARE = 0.05  # of the machine's cores; if other programs keep more than this busy, the protocol has a warning


def protocol_of(
    measurement: Measurement,
    baseline: str,
    *,
    drifting: int,
    load: OtherLoad,
    gpus: tuple[GpuConditions, ...],
    repeated: tuple[str, ...],
) -> Protocol:
    """The protocol of a measurement that has ended.

    Args:
        measurement: what is known of it.
        baseline: name of the baseline's arm.
        drifting: number of repeats that still drift.
        load: of other programs, in this session.
        gpus: what the GPUs did, in this session.
        repeated: warnings about rounds that were repeated.
    """
    assert measurement.plan is not None, "nothing was measured"
    records = measurement.records
    bridges = [seconds for name, seconds in measurement.seconds.items() if name.startswith(files.BRIDGE_PREFIX)]
    first = records.get(baseline) or next(iter(records.values()))
    return Protocol(
        processes=measurement.repeats,
        rounds=sum(row.counted for row in first.times.rounds),
        steps_per_round=measurement.plan.steps_of(first.settings.in_force.batch_size),
        timing_seconds=measurement.timing_s,
        bridge_seconds=sum(bridges) if bridges else None,
        control_seconds=measurement.seconds.get(files.CONTROL),
        account_seconds=measurement.account_s or None,
        stage_seconds=measurement.stage_s,
        interleaved=measurement.plan.interleaved,
        compilations=measurement.compilations,
        endings=measurement.endings,
        drifting_processes=drifting,
        unsteady=unsteady_measures(records),
        target_precision=measurement.asked["target_precision"] or 0.0,
        other_load_cores=load.cores(),
        gpus=gpus,
        warnings=(
            *filter(None, [next(iter(records.values())).settings.warning]),  # the other arms say the same
            *(line for name, record in records.items() for line in extras.warnings(name, record)),
            *repeated,
            *load.warnings(BUSY_SHARE),
            *gpu_conditions.warnings(gpus),
            *_drift_warnings(drifting, measurement.repeats, records, baseline),
        ),
    )


def _drift_warnings(drifting: int, repeats: int, records: Mapping[str, ArmRecord], baseline: str) -> Iterator[str]:
    """Yields a line if the times of several repeats were still changing, in a way that moves a speed-up."""
    ratios = {
        name: (_ratio(records[baseline], record), _ratio(records[baseline], record, 0.5))
        for name, record in records.items()
        if drifting > 1 and files.is_variant(name) and name != baseline and baseline in records
    }
    if (name := largest_move(ratios)) is not None:
        whole, late = ratios[name]
        yield (
            f"the step times of {drifting} of {repeats} repeats still changed during the counted rounds: by the later "
            f"half of these, the speed-up of {name} would be {late:.2f}× in place of {whole:.2f}×; raise "
            "profile.max_seconds, or look for a machine whose clock does not change"
        )


def _ratio(before: ArmRecord, after: ArmRecord, skipped: float = 0.0) -> float:
    """Speed-up of training over the counted rounds, without this share of the first ones of each repeat."""
    times_ms = [
        {(row.process, row.round): row.round_time_ms / (row.steps * size) for row in record.times.rounds if row.counted}
        for record in (before, after)
        for size in [record.settings.in_force.batch_size]
    ]
    shared = sorted(times_ms[0].keys() & times_ms[1].keys())
    by_repeat = [[place for place in shared if place[0] == repeat] for repeat in {repeat for repeat, _ in shared}]
    late = [place for places in by_repeat for place in places[int(skipped * len(places)) :]]
    return sum(times_ms[0][place] for place in late) / sum(times_ms[1][place] for place in late) if late else 1.0
