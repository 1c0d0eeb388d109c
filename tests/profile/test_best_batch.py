"""The batch with which a variant trains the most examples per second."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stages import files
from stages.fork_server import stop_servers
from stages.params import ModelParams, ProfileParams, TaskParams, TrainParams, Variant
from stages.profile.best_batch import at_batch, batch_rounds, best_of, configs_at, measure_at_best, search, throughput
from stages.profile.extras import Wanted
from stages.profile.records import ArmConfig
from stages.profile.repeats import Repeats, amounts
from stages.profile.runner import Context
from stages.profile.worker_process import WorkerProcess
from stages.results.profile import BatchRound, LargestBatch
from stages.tasks.spec import TaskSpec

PROTOCOL = ProfileParams(processes=2, rounds=2, steps_per_round=2, warmup_steps=1, inference_batch_sizes=(1,))


def config(policy: str = "float32", batch_size: int = 8) -> ArmConfig:
    spec = TaskSpec(TaskParams(), ModelParams(), TrainParams(batch_size=batch_size))
    return ArmConfig(spec, Variant(policy=policy), seed=0)


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """Interpreters that the tests start beside `measure`, which ends its own."""
    yield
    stop_servers()


@pytest.mark.parametrize(
    ("speeds", "start", "largest", "tried"),
    [
        ({8: 3, 16: 2, 32: 1, 4: 2, 2: 1, 1: 9}, 8, 64, [8, 16, 32, 4, 2]),  # two slower ones end a direction
        ({8: 1, 16: 2, 32: 3, 64: 4, 4: 0.5, 2: 0.4}, 8, 64, [8, 16, 32, 64, 4, 2]),  # up to what fits
        ({8: 1, 16: None, 4: 2, 2: 3, 1: 4}, 8, 64, [8, 16, 4, 2, 1]),  # down to a single example
        ({6: 1, 12: 2, 24: 1, 48: 1, 3: 0.5}, 6, 64, [6, 12, 24, 48, 3]),  # 3 cannot be halved
    ],
)
def test_sizes_are_tried_until_the_best_is_clear(
    speeds: dict[int, float | None], start: int, largest: int, tried: list[int]
) -> None:
    found: list[int] = []

    def speed_at(size: int) -> float | None:
        found.append(size)
        return speeds[size]

    search(start, largest, speed_at)
    assert found == tried


def test_best_batch_has_the_most_examples_per_second() -> None:
    rounds = [BatchRound(0, 8, 0, 10, 100.0), BatchRound(0, 8, 1, 10, 60.0), BatchRound(0, 16, 0, 5, 90.0)]
    assert throughput(rounds[:2]) == pytest.approx((800 + 80_000 / 60) / 2)
    assert best_of(rounds) == 8


@pytest.mark.slow
def test_real_batches_are_timed_up_to_the_training_set(folder: Path) -> None:
    """The prepared images are fewer than the largest batch that fits into memory."""
    rounds = batch_rounds("float32", config(), largest=4096)
    sizes = sorted({row.batch_size for row in rounds})
    assert 8 in sizes
    assert 16 in sizes
    assert all(later == 2 * size for size, later in itertools.pairwise(sizes))
    assert max(sizes) < 4096
    assert all(row.round_time_ms > 0 for row in rounds)
    assert {row.process for row in rounds} == {0, 1}  # a second time in the reverse order


def test_arms_are_measured_together_at_their_best_batches(folder: Path, tmp_path: Path) -> None:
    arms = {"float32": config(), "mixed_bfloat16": config("mixed_bfloat16"), files.CONTROL: config()}
    at_best = configs_at(arms, {"float32": 16, "mixed_bfloat16": 32}, "float32")
    largest = {name: LargestBatch(batch_size=64, peak_mib=100.0) for name in ("float32", "mixed_bfloat16")}
    kept = Repeats(tmp_path / "kept", amounts(PROTOCOL, 1.05))
    found = measure_at_best(at_best, "float32", PROTOCOL, largest, Context(Wanted()), kept).records
    sizes = {name: record.settings.in_force.batch_size for name, record in found.items()}
    assert sizes == {"float32": 16, "mixed_bfloat16": 32, files.CONTROL: 16}
    assert all(len(record.times.rounds) >= 2 for record in found.values())
    assert all(
        record.trace is None and not record.times.calls and not record.times.account for record in found.values()
    )


def test_worker_has_the_settings_of_its_entry(folder: Path) -> None:
    """They are those in force, as the worker finds them, and not what the entry asks for."""
    entry = Variant(policy="float32", threads=1, cache_input=True, prefetch_to_device=True)
    arm = at_batch(ArmConfig(config().spec, entry, seed=0), 16)
    with closing(WorkerProcess("float32", arm)) as worker:
        found = worker.call("settings").in_force
        worker.call("warm_up", 2)
        assert worker.call("train_round", 3) > 0
    assert (found.batch_size, found.threads, found.threads_between) == (16, 1, 1)
    assert (found.cache_input, found.prefetch_to_device) == (True, False)  # there is no GPU
