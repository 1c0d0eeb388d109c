"""The batch with which each variant trains the most examples per second.

The sizes are powers of two times the batch in use. Each is timed in a process of its own, one at a time: first larger
ones, as far as they fit in memory, then smaller ones, in both directions until two in a row are slower than the best.
Then all of them are timed once more in the reverse order, because the machine may have changed meanwhile.
The best ones are then measured together, like the variants at their own batch: choosing the fastest of several noisy
times would by itself make it look faster than it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from statistics import median

import psutil

from stages import files
from stages.errors import HalfstepError, ProfileError
from stages.params import Params, ProfileParams
from stages.profile import extras, runner
from stages.profile.extras import Wanted
from stages.profile.records import ArmConfig, ArmRecord, Measurement
from stages.profile.repeats import Repeats
from stages.profile.worker_process import Serve, WorkerProcess, serve_worker
from stages.results.profile import BatchRound, BestBatch, LargestBatch, Protocol
from stages.text import MIB

ROUNDS, WARM_UP_STEPS = 6, 3
TURN_MS = 150.0
MOST_SLOWER = 2  # sizes in a row that are slower than the best, after which there are no more in this direction
MEMORY_SHARE = 0.8  # of the free memory; where all variants need more, one is measured at a time


def at_best_batches(
    configs: Mapping[str, ArmConfig],
    settings: Params,
    largest: Mapping[str, LargestBatch],
    measurement: Measurement,
    context: runner.Context,
    kept: Repeats,
) -> dict[str, BestBatch]:
    """Finds the best batch of each variant, and measures all of them together at these.

    The times are added to the records. What an earlier session found stays, and what fails is a warning.

    Args:
        configs: the arms at the batches in use.
        settings: all parameters.
        largest: the largest batch of each variant whose best one is looked for.
        measurement: at the batches in use.
        context, kept: of that measurement.
    """
    rounds, baseline, records = kept.batches, settings.compare.baseline, measurement.records
    for name, found in largest.items():
        if name in rounds or not found.batch_size or extras.BEST_BATCH in records[name].failed:
            continue
        try:
            rounds[name] = batch_rounds(name, configs[name], found.batch_size)
            kept.keep_batches(rounds)
        except HalfstepError as error:
            extras.failed(records[name], name, extras.BEST_BATCH, error)
    for name, of_one in rounds.items():
        records[name].times.batches = of_one
    best = {name: best_of(of_one) for name, of_one in rounds.items()}
    if baseline not in best:
        return {}
    print(f"profile: best batches: {', '.join(f'{name} {size}' for name, size in best.items())}", flush=True)
    try:
        arms, together = configs_at(configs, best, baseline), kept.at_best_batch()
        measured = measure_at_best(arms, baseline, settings.profile, largest, context, together)
    except HalfstepError as error:
        extras.failed(records[baseline], baseline, extras.BEST_BATCH, error)
        return {}
    for name, record in measured.records.items():
        records[name].times.best_batch = record.times.rounds
    return {name: _result(record, measured.protocol) for name, record in measured.records.items()}


def _result(record: ArmRecord, protocol: Protocol) -> BestBatch:
    peak_mib = record.calibration.peak_mib if record.calibration else None
    return BestBatch(batch_size=record.settings.in_force.batch_size, peak_mib=peak_mib, protocol=protocol)


def at_batch(config: ArmConfig, batch_size: int) -> ArmConfig:
    """The same arm with another batch."""
    train = config.spec.train.model_copy(update={"batch_size": batch_size})
    entry = config.variant.model_copy(update={"batch_size": batch_size})
    return replace(config, spec=replace(config.spec, train=train), variant=entry)


def batch_rounds(name: str, config: ArmConfig, largest: int, serve: Serve = serve_worker) -> list[BatchRound]:
    """Times an arm at several batches.

    Args:
        name: of the arm.
        config: at the batch in use, which is timed first.
        largest: the largest batch that fits in memory.
        serve: what a worker process runs.

    Raises:
        ProfileError: the arm fails at the batch in use, or where it has not failed before.
    """
    start, found = config.spec.train.batch_size, list[BatchRound]()

    def examples_per_s(size: int) -> float | None:
        try:
            rounds = _rounds_at(name, at_batch(config, size), 0, serve)
        except ProfileError:
            if size == start:
                raise
            return None  # of a batch that does not fit, or is larger than the training set
        found.extend(rounds)
        return throughput(rounds)

    search(start, largest, examples_per_s)
    for size in reversed(list(dict.fromkeys(row.batch_size for row in found))):
        found += _rounds_at(name, at_batch(config, size), 1, serve)
    return sorted(found, key=lambda row: (row.batch_size, row.process, row.round))


def _rounds_at(name: str, config: ArmConfig, process: int, serve: Serve) -> list[BatchRound]:
    size = config.spec.train.batch_size
    with closing(WorkerProcess(name, config, serve)) as worker:
        found = worker.call("settings").in_force.batch_size
        if found != size:
            raise ProfileError(f"its batches have {found} examples, whatever train.batch_size says")
        worker.call("warm_up", WARM_UP_STEPS)
        steps = math.ceil(TURN_MS / worker.call("train_round", 1))
        times_ms = [worker.call("train_round", steps, 1) for _ in range(ROUNDS)]
    return [BatchRound(process, size, number, steps, time_ms) for number, time_ms in enumerate(times_ms)]


def throughput(rounds: list[BatchRound]) -> float:
    """Examples per second of rounds at one batch; the median, which few stalls do not change."""
    return 1e3 * median(row.batch_size * row.steps / row.round_time_ms for row in rounds)


def search(start: int, largest: int, speed_at: Callable[[int], float | None]) -> None:
    """Calls `speed_at` with `start`, then with sizes twice and half as large, until it is clear which is the best.

    Args:
        start: the first size.
        largest: sizes are at most this.
        speed_at: the speed at a size; None if it cannot be used, and no larger or smaller one.
    """
    best = speed_at(start) or 0.0
    for sizes in (_larger(start, largest), _smaller(start)):
        slower = 0
        for size in sizes:
            speed = speed_at(size)
            if speed is None:
                break
            slower = 0 if speed > best else slower + 1
            best = max(best, speed)
            if slower == MOST_SLOWER:
                break


def _larger(start: int, largest: int) -> Iterator[int]:
    size = 2 * start
    while size <= largest:
        yield size
        size *= 2


def _smaller(start: int) -> Iterator[int]:
    size = start
    while size % 2 == 0:
        size //= 2
        yield size


def best_of(rounds: list[BatchRound]) -> int:
    """The size with the most examples per second."""
    by_size: dict[int, list[BatchRound]] = {}
    for row in rounds:
        by_size.setdefault(row.batch_size, []).append(row)
    return max(by_size, key=lambda size: throughput(by_size[size]))


def measure_at_best(
    configs: Mapping[str, ArmConfig],
    baseline: str,
    profile: ProfileParams,
    largest: Mapping[str, LargestBatch],
    context: runner.Context,
    kept: Repeats,
) -> Measurement:
    """Measures the training of all arms together, each at its best batch; arguments as of `runner.measure`.

    Args:
        configs: at their best batches.
        baseline, profile, context: as of the measurement at the batches in use.
        largest: the largest batch of each, from which it is estimated how much memory all need together.
        kept: where the times are kept.
    """
    needed_mib = sum(_memory_mib(config, largest[name]) for name, config in configs.items() if name in largest)
    fits = needed_mib < MEMORY_SHARE * psutil.virtual_memory().available / MIB
    protocol = profile.model_copy(
        update={"inference_batch_sizes": (), "interleave": profile.interleave if fits else False, "trace_steps": None}
    )
    wanted = replace(context, wanted=Wanted(traces=False), has_bridges=False, began_s=time.monotonic())
    return runner.measure(configs, baseline, protocol, wanted, kept)


def _memory_mib(config: ArmConfig, largest: LargestBatch) -> float:
    """Memory of an arm, in proportion to its batch."""
    return (largest.peak_mib or 0.0) * config.spec.train.batch_size / max(largest.batch_size, 1)


def configs_at(configs: Mapping[str, ArmConfig], best: Mapping[str, int], baseline: str) -> dict[str, ArmConfig]:
    """The arms at their best batches; the second copy of the baseline at that of the baseline."""
    sizes = {**best, **({files.CONTROL: best[baseline]} if baseline in best and files.CONTROL in configs else {})}
    return {name: at_batch(configs[name], size) for name, size in sizes.items()}
