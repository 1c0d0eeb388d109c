"""When a measurement ends: told by a course that is fed with made-up rounds."""

from __future__ import annotations

import time

import numpy as np
import pytest

from stages.params import ProfileParams
from stages.profile.protocol import FEWEST_PROCESSES, Course, speedups
from stages.profile.records import ArmRecord, Call, Round

QUIET = 0.001  # standard deviation of a round's logarithm


def played(
    profile: ProfileParams, noise: float, *, rounds: int = 10, seconds: float = 0.0, speedup: float = 1.3
) -> tuple[Course, dict[str, ArmRecord]]:
    """A course with rounds that take `seconds` each, until it says that it is over."""
    records = {name: ArmRecord() for name in ("float32", "mixed_bfloat16", "_control")}
    course, generator = Course(profile, "float32", records), np.random.default_rng(1)
    for process in range(profile.processes):
        with course.timing():
            for number in course.rounds():
                time.sleep(seconds)
                if number == rounds:
                    break
                for name, record in records.items():
                    time_ms = 100 * np.exp(noise * generator.normal()) / (speedup if name == "mixed_bfloat16" else 1)
                    record.rounds.append(Round(process, number, 0, 1, time_ms))
                    record.calls.append(Call(process, number, 1, 0, time_ms))
        if course.is_over():
            return course, records
    raise AssertionError("a course ends with its last process at the latest")


def protocol(**changes: object) -> ProfileParams:
    return ProfileParams.model_validate({"inference_batch_sizes": [1], **changes})


def test_a_quiet_machine_is_done_at_the_first_look() -> None:
    told = played(protocol(), QUIET)[0].protocol()
    assert (told.ended_by, told.processes, told.looks_held) == ("target_precision", 4, 1)
    assert told.confidence == 0.995


def test_no_look_before_thirty_rounds() -> None:
    told = played(protocol(), QUIET, rounds=5)[0].protocol()
    assert (told.processes, told.rounds, told.looks_held) == (6, 30, 1)


def test_a_noisy_machine_goes_on_to_the_end() -> None:
    told = played(protocol(rounds=10), noise=0.2)[0].protocol()
    assert (told.ended_by, told.processes, told.looks_held) == ("rounds", 8, 4)
    assert told.confidence == pytest.approx(0.965)  # three early looks were paid for


def test_the_time_is_shared_by_the_processes_and_ends_the_measurement() -> None:
    course, records = played(protocol(max_seconds=1.6), noise=0.2, rounds=1000, seconds=0.02)
    told = course.protocol()
    assert (told.ended_by, told.processes) == ("max_seconds", 8)
    assert told.timing_seconds > 1.4
    of_process = np.unique([row.process for row in records["float32"].rounds], return_counts=True)[1]
    assert of_process.min() >= 2
    assert told.rounds == sum(of_process) <= 1.6 / 0.02 + 8  # each process may begin one round too many


def test_slow_arms_have_a_round_in_each_of_a_few_processes() -> None:
    course, _ = played(protocol(max_seconds=0.1), noise=0.2, seconds=0.06)
    told = course.protocol()
    assert (told.ended_by, told.processes, told.rounds) == ("max_seconds", FEWEST_PROCESSES, FEWEST_PROCESSES)
    assert told.timing_seconds > 0.2
    assert told.confidence == 0.95  # no look was held before


def test_inference_must_be_narrow_too() -> None:
    profile = protocol()
    _, records = played(profile, QUIET)
    found = speedups(records, "float32", profile, 0.95)
    assert [ratio.ratio for ratio in found] == pytest.approx([1.3, 1.3], rel=0.01)


def test_without_a_candidate_the_control_is_looked_at() -> None:
    profile = protocol()
    _, records = played(profile, QUIET)
    del records["mixed_bfloat16"]
    assert [ratio.ratio for ratio in speedups(records, "float32", profile, 0.95)] == pytest.approx([1, 1], rel=0.01)
    assert speedups(records, "absent", profile, 0.95) == []
