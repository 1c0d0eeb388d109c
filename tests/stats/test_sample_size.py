"""How much more must be measured: each number settles the question with the power that it promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from stages.prepare.__main__ import main
from stages.stats.bootstrap import MetricChange
from stages.stats.proportions import BinaryChange, tango_interval, tango_p
from stages.stats.quality import degrees_over_both
from stages.stats.sample_size import (
    examples_needed,
    processes_needed,
    seeds_needed,
    smallest_test_set,
    too_few_examples,
)
from stages.stats.scores import ScoreChange
from tests.small_study import measured_speedup

MARGIN = 0.01
MIN_SPEEDUP = 1.05
SIX = 0.05 / 6  # the error of the first of six verdicts


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
    assert message.startswith("567 test examples cannot show compare.quality_margin 0.01 for 6 verdicts")
    assert "568" in message


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
    assert ("test examples cannot show compare.quality_margin 0.01" in capsys.readouterr().out) is reported


def _change(gained: list[int], lost: list[int], examples: int) -> BinaryChange:
    """One entry a seed; the examples that are lost follow those that are gained."""
    baseline, candidate = np.ones((len(lost), examples), bool), np.ones((len(lost), examples), bool)
    for seed, (more, fewer) in enumerate(zip(gained, lost, strict=True)):
        baseline[seed, :more] = False
        candidate[seed, more : more + fewer] = False
    return BinaryChange(baseline, candidate)


def _power(gained: float, lost: float, pairs: int, alpha: float, runs: int = 2000) -> float:
    """How often Tango's test shows the margin at these rates, by simulation."""
    draws = np.random.default_rng(0).multinomial(pairs, (gained, lost, 1 - gained - lost), size=runs)
    return sum(tango_p(more, fewer, pairs, MARGIN) <= alpha for more, fewer, _ in draws) / runs


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (4, 5), (6, 6)])
@pytest.mark.parametrize("alpha", [0.025, SIX])
def test_needed_examples_have_the_power(gained: int, lost: int, alpha: float) -> None:
    """At the rates that were seen, each with one example more."""
    needed = examples_needed(_change([gained], [lost], 200), MARGIN, alpha)
    assert needed is not None
    rates = (gained + 1) / 202, (lost + 1) / 202
    assert _power(*rates, needed, alpha) == pytest.approx(0.8, abs=0.05)


def test_more_discordance_and_more_verdicts_need_more_examples() -> None:
    needed = [examples_needed(_change([n], [n], 200), MARGIN, alpha) or 0 for alpha in (0.05, SIX) for n in (0, 3, 9)]
    assert 200 < needed[0] < needed[1] < needed[2]
    assert needed[0] < needed[3] < needed[4] < needed[5]


def test_seen_gain_is_not_planned_with() -> None:
    """A change of +7 examples is planned as none: the distance to the margin is the margin itself."""
    change = _change([9], [2], 120)
    needed = examples_needed(change, MARGIN, SIX)
    assert needed is not None
    assert needed > stats.norm.isf(SIX) ** 2 * (10 / 122 + 3 / 122 - (7 / 122) ** 2) / MARGIN**2


def test_loss_that_is_seen_is_refuted_at_the_needed_number() -> None:
    needed = examples_needed(_change([1], [9], 300), MARGIN)
    assert needed is not None
    assert needed > 300
    draws = np.random.default_rng(0).multinomial(needed, (2 / 302, 10 / 302, 290 / 302), size=1000)
    refuted = sum(tango_interval(more, fewer, needed)[1] < -MARGIN for more, fewer, _ in draws)
    assert refuted / 1000 == pytest.approx(0.8, abs=0.05)


def test_no_number_of_examples_settles_a_change_at_the_margin() -> None:
    assert examples_needed(_change([2], [5], 300), MARGIN) is None


def test_settled_quality_needs_nothing() -> None:
    for change in (_change([0], [0], 400), _change([0], [80], 400)):
        assert examples_needed(change, MARGIN) is None
        assert seeds_needed(change, MARGIN) is None
    assert examples_needed(_change([0], [0], 400), MARGIN, SIX) is not None


def test_more_examples_alone_do_not_settle_seeds_that_disagree() -> None:
    change = _change([12, 0, 0], [0, 0, 9], 2000)
    assert examples_needed(change, MARGIN, SIX) is None
    seeds = seeds_needed(change, MARGIN, SIX)
    assert seeds is not None
    assert 3 < seeds < 15
    assert _seeds_power(change, seeds) >= 0.78
    assert _seeds_power(change, seeds - 1) < 0.82


def _seeds_power(change: BinaryChange, seeds: int) -> float:
    """How often a t test over so many normal seeds shows the margin, by simulation."""
    by_seed = change.difference.mean(axis=1)
    draws = np.random.default_rng(0).normal(min(by_seed.mean(), 0), by_seed.std(ddof=1), size=(4000, seeds))
    return float((stats.ttest_1samp(draws, -MARGIN, axis=1, alternative="greater").pvalue <= SIX).mean())


def test_more_examples_settle_seeds_that_agree() -> None:
    """By simulation, at the spread that was seen: the error over seeds stays, and that over examples shrinks."""
    change = _change([6, 6, 6], [7, 6, 6], 500)
    needed = examples_needed(change, MARGIN)
    assert needed is not None
    generator, draws, of_seeds = np.random.default_rng(0), 20_000, change.by_seed.std(ddof=1)
    over_examples = change.standard_error(3) * np.sqrt(500 / needed)
    by_seed = change.delta + generator.normal(0, of_seeds, (draws, 3)) + generator.normal(0, over_examples, (draws, 1))
    over_seeds = stats.sem(by_seed, axis=1)
    degrees = np.array([degrees_over_both(over_examples, seen, 3) for seen in over_seeds])
    statistic = (by_seed.mean(axis=1) + MARGIN) / np.hypot(over_examples, over_seeds)
    assert (stats.t.sf(statistic, degrees) <= 0.025).mean() == pytest.approx(0.8, abs=0.05)
    assert needed > 500


def test_one_seed_gives_no_estimate_of_seeds() -> None:
    assert seeds_needed(_change([4], [5], 300), MARGIN) is None


def test_more_seeds_or_examples_settle_an_open_margin_of_two() -> None:
    baseline, candidate = np.ones((2, 500), bool), np.ones((2, 500), bool)
    baseline[0, :8], baseline[1, 20:28] = False, False  # each seed has other examples, as real trainings do
    candidate[0, 40:48], candidate[1, 60:69] = False, False
    change = BinaryChange(baseline, candidate)
    assert change.outcome(MARGIN) == "not established"
    seeds, examples = seeds_needed(change, MARGIN), examples_needed(change, MARGIN)
    assert seeds is not None
    assert examples is not None
    assert seeds > 2
    assert examples > 500


def _scores(differences: NDArray[np.float64]) -> ScoreChange:
    """A change with these differences, of examples whose scores lie between 0 and 1."""
    baseline = np.linspace(0, 1, differences.shape[-1])[None]
    return ScoreChange(np.broadcast_to(baseline, np.atleast_2d(differences).shape), baseline + differences)


def test_needed_examples_of_scores_have_the_power() -> None:
    """By simulation with Student's test, at the spread that was seen and no change."""
    generator = np.random.default_rng(0)
    noise = generator.normal(0, 0.3, 1000)
    change = _scores(noise - noise.mean())
    needed = examples_needed(change, MARGIN, SIX)
    assert needed is not None
    assert needed > 1000
    sd, draws = float(change.by_example.std()), 4000
    means = generator.normal(min(change.delta, 0), sd / np.sqrt(needed), draws)
    shown = stats.norm.sf((means + MARGIN) / (sd / np.sqrt(needed))) <= SIX
    assert shown.mean() == pytest.approx(0.8, abs=0.03)


def test_needed_examples_of_a_metric_grow_with_its_variance() -> None:
    def change(spread: float) -> MetricChange:
        generator = np.random.default_rng(0)
        replicates, jackknife = generator.normal(0, spread, 2000), generator.normal(0, spread / 20, 200)
        return MetricChange(np.zeros((1, 2201)), np.concatenate([[0.0], replicates, jackknife])[None], 600)

    few, many = (examples_needed(change(spread), MARGIN) for spread in (0.01, 0.02))
    assert few is not None
    assert many is not None
    assert few == pytest.approx(600 * ((1.96 + 0.8416) * 0.01 / MARGIN) ** 2, rel=0.1)
    assert many == pytest.approx(4 * few, rel=0.01)


def test_too_few_examples_of_scores_need_at_least_what_is_promised() -> None:
    assert examples_needed(_scores(np.random.default_rng(0).normal(0, 0.001, 300)), MARGIN) == 1000


def test_differences_that_are_few_or_skewed_promise_nothing() -> None:
    few, skewed = np.zeros(1000), -0.001 * np.random.default_rng(0).lognormal(0, 2.5, 1000)
    few[:9] = -0.9
    for change in (_scores(few), _scores(skewed)):
        assert change.outcome(MARGIN) == "not established"
        assert examples_needed(change, MARGIN) is None
        assert seeds_needed(change, MARGIN) is None


def test_more_seeds_settle_scores_that_differ_between_seeds() -> None:
    change = _scores(np.random.default_rng(0).normal(0, 0.2, (3, 1500)) + np.array([[-0.008], [0.0], [0.008]]))
    seeds = seeds_needed(change, MARGIN)
    assert seeds is not None
    assert 3 < seeds < 40


@pytest.mark.parametrize(("ratio", "error"), [(1.08, 0.05), (1.08, SIX), (1.02, 0.05)])
def test_needed_processes_have_the_power(ratio: float, error: float) -> None:
    """By simulation: above the threshold at the error of the verdict, below it at that of a 95 % interval."""
    speedup = measured_speedup(ratio, -0.05, 0.05, -0.03, 0.03)
    number = processes_needed(speedup, MIN_SPEEDUP, error)
    assert number is not None
    distance, sd = np.log(ratio / MIN_SPEEDUP), speedup.standard_error * 2

    def power(processes: int) -> float:
        draws = np.random.default_rng(0).normal(abs(distance), sd, size=(20_000, processes))
        p_values = stats.ttest_1samp(draws, 0.0, axis=1, alternative="greater").pvalue
        return float((p_values <= (error if distance > 0 else 0.025)).mean())

    assert power(number) >= 0.79
    assert power(number - 1) < 0.81


def test_processes_grow_with_the_square_of_the_spread_and_the_interim_looks() -> None:
    few, many = (processes_needed(measured_speedup(1.08, -sd, sd, -sd, sd), MIN_SPEEDUP, SIX) for sd in (0.05, 0.1))
    assert few is not None
    assert many is not None
    assert 3.5 * few < many < 4 * few
    paid = processes_needed(measured_speedup(1.08, -0.05, 0.05, -0.05, 0.05, confidence=0.965), MIN_SPEEDUP, SIX)
    assert paid is not None
    assert paid > few


def test_other_side_can_be_assumed() -> None:
    speedup = measured_speedup(1.06, -0.05, 0.05, -0.03, 0.03)
    assert processes_needed(speedup, MIN_SPEEDUP, true_ratio=speedup.low) == processes_needed(
        measured_speedup(speedup.low, -0.05, 0.05, -0.03, 0.03), MIN_SPEEDUP
    )


def test_ratio_at_the_threshold_is_never_settled() -> None:
    assert processes_needed(measured_speedup(1.05, -0.05, 0.05), MIN_SPEEDUP) is None
    assert processes_needed(measured_speedup(1.0501, -0.05, 0.05), MIN_SPEEDUP) is None


def test_processes_that_agree_need_two() -> None:
    assert processes_needed(measured_speedup(2.0, 0.0, 0.0), MIN_SPEEDUP) == 2
