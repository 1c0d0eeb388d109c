"""How much more must be measured: each number ends an interval at the threshold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from halfstep.stats.proportions import BinaryChange, tango_interval
from halfstep.stats.sample_size import (
    examples_needed,
    occasions_needed,
    smallest_test_set,
    times_as_long,
    too_few_examples,
)
from halfstep.stats.scores import ScoreChange
from halfstep.stats.speedup import Error, occasion_confidence
from stages.prepare import main
from tests.small_study import measured_speedup

MARGIN = 0.01
MIN_SPEEDUP = 1.05


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("margin", [0.003, 0.01, 0.05, 0.5])
@pytest.mark.parametrize("verdicts", [1, 6, 20])
def test_one_image_fewer_cannot_show_the_margin(margin: float, seeds: int, verdicts: int) -> None:
    enough = smallest_test_set(margin, seeds, verdicts)
    for images, shown in ((enough - 1, False), (enough, True)):
        if images:
            correct = np.ones((seeds, images), bool)
            assert (BinaryChange(correct, correct).p_loss(margin) <= min(0.05 / verdicts, 0.025)) is shown


def test_smallest_test_set_follows_the_number_of_verdicts() -> None:
    """z² 0.99 / 0.01 with z = 1.96, which a 95 % interval asks for, and 2.394 for one of six."""
    assert smallest_test_set(0.01) == smallest_test_set(0.01, verdicts=2) == 381
    assert smallest_test_set(0.01, verdicts=6) == 568
    assert too_few_examples(568, "accuracy", 0.01, seeds=1, verdicts=6) is None
    message = too_few_examples(567, "accuracy", 0.01, seeds=1, verdicts=6)
    assert message is not None
    assert message.startswith(
        "With 567 test examples, a loss of at most 0.01 of accuracy cannot be shown for 6 verdicts"
    )
    assert message.endswith(
        "use at least 568, compare fewer variants, raise compare.quality_margin to 0.02, or judge the speed only"
    )
    assert "raise compare.quality_margin to 0.05, or judge" in str(too_few_examples(120, "accuracy", 0.01, 1, 6))


@pytest.mark.parametrize(("margin", "reported"), [(0.01, True), (0.05, False)])
def test_prepare_reports_that_the_test_set_is_too_small(
    project: Path,
    write_params: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    margin: float,
    reported: bool,
) -> None:
    write_params(data={"source": "digits", "test_fraction": 0.1, "image_size": 8}, compare={"quality_margin": margin})
    assert main() == 0
    assert ("a loss of at most 0.01 of accuracy cannot be shown" in capsys.readouterr().out) is reported


def test_prepare_names_what_no_later_stage_can_use(
    project: Path, write_params: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"source": "digits", "test_fraction": 0.02, "image_size": 8}
    write_params(data=data, train={"variants": ["float32"]})
    assert main() == 0
    out = capsys.readouterr().out
    assert "train.variants has float32 alone: it is timed, and there is nothing to compare it with" in out
    assert "has 3 test images, and 9 more classes have few: too few to say what a variant does to it" in out
    write_params(data=data, train={"batch_size": 2000})
    assert main() == 0
    assert "train.batch_size is 2000; allowed is at most 1" in capsys.readouterr().out


def _change(gained: list[int], lost: list[int], examples: int) -> BinaryChange:
    """One entry a seed; the examples that are lost follow those that are gained."""
    baseline, candidate = np.ones((len(lost), examples), bool), np.ones((len(lost), examples), bool)
    for seed, (more, fewer) in enumerate(zip(gained, lost, strict=True)):
        baseline[seed, :more] = False
        candidate[seed, more : more + fewer] = False
    return BinaryChange(baseline, candidate)


def test_needed_examples_end_the_interval_at_the_margin() -> None:
    """Of so many examples at the rates that were seen, about half of the intervals lie above −margin."""
    change = _change([4], [5], 200)
    needed = examples_needed(change, MARGIN)
    assert needed is not None
    draws = np.random.default_rng(0).multinomial(needed, (4 / 200, 5 / 200, 191 / 200), size=1000)
    shown = sum(tango_interval(more, fewer, needed)[0] > -MARGIN for more, fewer, _ in draws)
    assert shown / 1000 == pytest.approx(0.5, abs=0.1)


def test_seen_gain_is_not_planned_with() -> None:
    """A change of +7 examples is planned as none: the distance to the margin is the margin itself."""
    change = _change([9], [2], 120)
    half_width = (change.high - change.low) / 2
    assert examples_needed(change, MARGIN) == math.ceil(120 * (half_width / MARGIN) ** 2)


def _scores(differences: NDArray[np.float64]) -> ScoreChange:
    """A change with these differences, of examples whose scores lie between 0 and 1."""
    baseline = np.linspace(0, 1, differences.shape[-1])[None]
    return ScoreChange(np.broadcast_to(baseline, np.atleast_2d(differences).shape), baseline + differences)


def test_differences_that_are_few_or_skewed_promise_nothing() -> None:
    few, skewed = np.zeros(1000), -0.001 * np.random.default_rng(0).lognormal(0, 2.5, 1000)
    few[:9] = -0.9
    for change in (_scores(few), _scores(skewed)):
        assert change.outcome(MARGIN) == "not established"
        assert examples_needed(change, MARGIN) is None


def test_run_that_many_times_as_long_ends_at_the_threshold() -> None:
    """Deviations that shrink with the square root of the length: then the interval ends there."""
    speedup = measured_speedup(1.08, -0.05, 0.05, -0.03, 0.03)
    times = times_as_long(speedup, MIN_SPEEDUP)
    assert times is not None
    assert times > 1
    shrunk = [deviation / math.sqrt(times) for deviation in (-0.05, 0.05, -0.03, 0.03)]
    assert measured_speedup(1.08, *shrunk).low == pytest.approx(MIN_SPEEDUP)


def test_no_run_settles_what_runs_differ_by() -> None:
    """The interval of one run is 2.8 % wide, however long it is; with occasions it shrinks."""
    speedup = replace(measured_speedup(1.07, -0.001, 0.001), run_sd=0.01)
    assert times_as_long(speedup, MIN_SPEEDUP) is None
    speedup = replace(speedup, by_process=measured_speedup(1.072, -0.001, 0.001).by_process)
    assert occasions_needed(speedup, MIN_SPEEDUP) == 5
    assert occasions_needed(replace(speedup, run_sd=0.02), MIN_SPEEDUP) is None
    halves = [
        Error(0.01 * math.sqrt(2 / number), math.inf).quantile(occasion_confidence(number - 1))
        for number in range(1, 6)
    ]
    assert [half <= math.log(speedup.ratio / MIN_SPEEDUP) for half in halves] == [False, False, False, False, True]
    assert times_as_long(replace(speedup, run_sd=0.0), MIN_SPEEDUP) is not None
