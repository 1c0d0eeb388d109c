"""The sentences that say how an inconclusive verdict can be settled."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from pydantic import ValidationError

from halfstep.compare.case import Judging
from halfstep.compare.next_steps import MOST_PROCESSES
from halfstep.params.schema import ProfileParams
from halfstep.stats.sample_size import times_as_long
from tests.small_study import PROTOCOL, SmallStudy, given, sentences


def _spread(project: SmallStudy, by: float) -> None:
    """Spreads mixed_bfloat16's times of training over the processes. So far the stage took one minute."""
    project.spread_processes("mixed_bfloat16", "rounds.csv", by)
    project.edit_profile("float32", protocol=PROTOCOL.model_copy(update={"target_precision": 0.02}))


def _training_only(comparison: Judging) -> Judging:
    """The comparison with the second candidate's training alone."""
    second = comparison.cases[1]
    tests = {"train": second.tests["train"]}
    speedups = {"train": second.speedups["train"]}
    alone = given(second, speedups=speedups, verdicts={"train": second.verdict}, tests=tests, reasons=second.reasons)
    return given(comparison, cases=(alone,))


def test_open_speedup_names_minutes_and_parameters(project: SmallStudy) -> None:
    _spread(project, 1.08)
    comparison = _training_only(project.compare(min_speedup=1.5))
    cost, how = sentences(comparison.cases[0])
    ratio = comparison.cases[0].speedups["train"]
    needed = times_as_long(ratio, 1.5)
    assert needed is not None
    times = math.ceil(needed)
    assert times > 2
    so_far = f"{ratio.ratio:.2f}×, anywhere from {ratio.low:.2f}× to {ratio.high:.2f}×"
    minutes = f"about {times} times as long (about {times} min)"  # so far it took one minute
    assert cost == f"Training step: {so_far}. Measuring {minutes} would probably settle it."
    changes = f"profile.processes to {4 * times}, profile.max_seconds to about {30 * times}"
    assert how.startswith(f"To measure that long, set {changes} and profile.target_precision to 0.0")


def test_ratio_that_only_runs_leave_open_asks_for_another_occasion(project: SmallStudy) -> None:
    """The repeats of this run agree, so `profile` would end it as early as before, whatever is asked for."""
    project.scale_times("mixed_bfloat16", "rounds.csv", 1.6 / 1.07)
    comparison = _training_only(project.compare(min_speedup=1.05))
    candidate = comparison.cases[0]
    speedup = candidate.speedups["train"]
    agreeing = replace(speedup, by_process=tuple(replace(speedup.by_process[0]) for _ in range(4)))
    assert agreeing.within_run.low > 1.05 > agreeing.low
    (sentence,) = sentences(given(candidate, speedups={"train": agreeing}))
    assert "anywhere from 1.05× to 1.12× after one run" in sentence
    assert sentence.endswith(
        "Set profile.occasion to another word and run `dvc repro`: the runs so far are kept, and the verdict is on "
        "all of them."
    )


def test_most_processes_are_those_that_the_parameter_allows() -> None:
    assert ProfileParams(processes=MOST_PROCESSES).processes == MOST_PROCESSES
    with pytest.raises(ValidationError):
        ProfileParams(processes=MOST_PROCESSES + 1)


def test_quality_is_left_out_if_the_speedup_points_to_reject(project: SmallStudy) -> None:
    """Below the required ratio with a wide interval is inconclusive, but not adopted whatever the quality is."""
    project.spread_processes("mixed_bfloat16", "rounds.csv", 1.2)
    comparison = _training_only(project.compare(quality_margin=0.002, min_speedup=1.65))
    assert comparison.cases[0].verdict == "inconclusive"
    assert [text for text in (sentences(comparison.cases[0])) if "accuracy" in text] == []
