"""Intervals against published values, their definition, and their nominal coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from halfstep.stats.proportions import BinaryChange, examples_interval, mcnemar_p, tango_interval, tango_p


def test_tango_published_value() -> None:
    """Airway hyper-responsiveness before and after transplantation, 1 and 7 discordant of 21 pairs (Fagerland 2014)."""
    assert tango_interval(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_mcnemar_published_value() -> None:
    """The same patients: exact conditional p = 0.070 (Fagerland, Lydersen and Laake 2013), which is 18 / 256."""
    assert mcnemar_p(1, 7) == pytest.approx(0.070, abs=5e-4)
    assert mcnemar_p(1, 7) == mcnemar_p(7, 1) == pytest.approx(18 / 256)


@pytest.mark.parametrize(
    ("gained", "lost", "pairs"),
    [(1, 7, 21), (40, 20, 160), (3, 0, 400), (0, 5, 381), (10, 10, 60), (5, 4, 9), (1, 0, 44)],
)
def test_tango_ends_are_where_the_score_test_rejects(gained: int, lost: int, pairs: int) -> None:
    low, high = tango_interval(gained, lost, pairs)
    assert low <= (gained - lost) / pairs <= high
    for end, outwards in ((low, -1), (high, 1)):
        assert _score_z(end, gained, lost, pairs) == pytest.approx(stats.norm.ppf(0.975), rel=1e-3)
        assert _score_z(end + outwards * 0.003, gained, lost, pairs) > 1.96
        assert _score_z(end - outwards * 0.003, gained, lost, pairs) < 1.96


def _score_z(difference: float, gained: int, lost: int, pairs: int) -> float:
    """|z| of the score test with the nuisance found by maximising the likelihood, without Tango's formula."""
    least = max(0.0, -difference)

    def negative_log_likelihood(losing: float) -> float:
        rest = 1 - 2 * losing - difference
        return -float(
            stats.multinomial.logpmf([gained, lost, pairs - gained - lost], pairs, [losing + difference, losing, rest])
        )

    minimum = optimize.minimize_scalar(
        negative_log_likelihood, bounds=(least, (1 - difference) / 2), method="bounded", options={"xatol": 1e-12}
    )
    variance = (2 * minimum.x + difference - difference**2) * pairs
    return float(abs(gained - lost - pairs * difference) / np.sqrt(variance))


@pytest.mark.parametrize(("pairs", "shown"), [(380, False), (381, True)])
def test_equal_variants_need_381_examples_to_show_a_margin_of_one_percent(pairs: int, shown: bool) -> None:
    assert (tango_interval(0, 0, pairs)[0] >= -0.01) is shown


def test_tango_is_antisymmetric_and_closed_at_the_ends() -> None:
    low, high = tango_interval(9, 2, 50)
    assert tango_interval(2, 9, 50) == pytest.approx((-high, -low))
    assert tango_interval(20, 0, 20)[1] == 1.0
    assert tango_interval(0, 20, 20)[0] == -1.0


def test_examples_interval_is_bonett_price_for_one_seed() -> None:
    gained, lost, pairs = 12, 5, 300
    differences = np.repeat([1.0, -1.0, 0.0], [gained, lost, pairs - gained - lost])
    p_gained, p_lost = (gained + 1) / (pairs + 2), (lost + 1) / (pairs + 2)
    half = stats.norm.ppf(0.975) * np.sqrt((p_gained + p_lost - (p_gained - p_lost) ** 2) / (pairs + 2))
    assert examples_interval(differences) == pytest.approx((p_gained - p_lost - half, p_gained - p_lost + half))


def test_one_seed_uses_tango() -> None:
    baseline, candidate = np.ones((1, 400), bool), np.ones((1, 400), bool)
    candidate[0, :3], baseline[0, 10] = False, False
    change = BinaryChange(baseline, candidate)
    assert change.delta == pytest.approx(-2 / 400)
    assert (change.low, change.high) == tango_interval(1, 3, 400)


def test_two_seeds_average_each_example_first() -> None:
    baseline, candidate = np.ones((2, 400), bool), np.ones((2, 400), bool)
    candidate[0, :4] = False
    change = BinaryChange(baseline, candidate)
    per_example = np.repeat([-0.5, 0.0], [4, 396])
    assert change.delta == pytest.approx(-2 / 400)
    assert (change.low, change.high) == pytest.approx(examples_interval(per_example))


@pytest.mark.parametrize("unlucky", [12, 4])  # examples that one seed loses: seeds differ more than examples, or less
def test_variance_of_three_seeds_is_added_to_that_of_the_examples(unlucky: int) -> None:
    baseline, candidate = np.ones((3, 400), bool), np.ones((3, 400), bool)
    candidate[0, :unlucky] = False
    change = BinaryChange(baseline, candidate)
    low, high = examples_interval(np.repeat([-1 / 3, 0.0], [unlucky, 400 - unlucky]), 1.0)
    over_examples, over_seeds = (high - low) / 2, stats.sem([-unlucky / 400, 0.0, 0.0])
    degrees = max(2.0, 2 * (1 + (over_examples / over_seeds) ** 2) ** 2 / 2)
    half = stats.t.isf(0.025, degrees) * np.hypot(over_examples, over_seeds)
    middle = (low + high) / 2
    assert (change.low, change.high) == pytest.approx((middle - half, middle + half))
    assert change.degrees == pytest.approx(degrees)
    assert (degrees > 2) == (unlucky == 4)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_loss_at_the_margin_is_rarely_shown_to_be_none(seeds: int) -> None:
    """Nominal are 2.5 %, and 3.5 % two standard errors above; of two seeds, whose truth is that of these trainings."""
    generator, margin, wrong, trials = np.random.default_rng(0), 0.05, 0, 1000
    for _ in range(trials):
        losses = np.clip(margin + generator.normal(0.0, 0.03, (seeds, 1)), -0.2, 0.2)
        truth = float(losses.mean()) if seeds < 3 else margin
        draws = generator.random((seeds, 500))
        change = BinaryChange(draws > (0.2 - losses) / 2, draws < 1 - (0.2 + losses) / 2)
        wrong += change.p_loss(truth) <= 0.025
    assert wrong / trials <= 0.035


@pytest.mark.parametrize(
    ("lost", "images", "outcome"), [(0, 400, "shown"), (0, 380, "not established"), (40, 400, "refuted")]
)
def test_outcome(lost: int, images: int, outcome: str) -> None:
    candidate = np.ones((1, images), bool)
    candidate[0, :lost] = False
    change = BinaryChange(np.ones((1, images), bool), candidate)
    assert change.outcome(0.01) == outcome
    assert (change.gained, change.lost) == (0, lost)


@pytest.mark.parametrize("seeds", [1, 2])
def test_loss_at_the_margin_is_rarely_shown_as_the_same(seeds: int) -> None:
    """A candidate exactly at the margin passes in at most 5 % of cases, the risk of a wrong adoption."""
    generator, images, margin, runs = np.random.default_rng(1), 400, 0.01, 2000
    shown = 0
    for _ in range(runs):
        outcome = generator.choice([0, 1, 2], size=(seeds, images), p=[0.9825, 0.00375, 0.01375])
        shown += BinaryChange(outcome != 1, outcome != 2).low >= -margin
    assert shown / runs <= 0.05


def _counts(gained: int, lost: int, pairs: int, seeds: int = 1) -> BinaryChange:
    """The same counts with each seed, at other examples."""
    baseline, candidate = np.ones((seeds, pairs), bool), np.ones((seeds, pairs), bool)
    for seed in range(seeds):
        baseline[seed, :gained] = candidate[seed, gained : gained + lost] = False
        baseline[seed], candidate[seed] = np.roll(baseline[seed], seed), np.roll(candidate[seed], seed)
    return BinaryChange(baseline, candidate)


def _p_agrees_with_the_interval(change: BinaryChange, margin: float) -> bool:
    return (change.p_loss(margin) <= 0.025) == (change.low >= -margin) == (change.outcome(margin) == "shown")


def test_p_is_at_most_a_half_of_the_error_exactly_where_the_interval_excludes_the_margin() -> None:
    """Over random counts, also fractions of few and many discordant examples, and margins on either side."""
    generator, sides = np.random.default_rng(3), set()
    for _ in range(3000):
        pairs = int(generator.integers(2, 600))
        gained, lost = generator.multinomial(pairs, generator.dirichlet((0.3, 0.3, 1.0)))[:2]
        low = tango_interval(gained, lost, pairs)[0]
        margin = float(generator.choice([0.001, 0.01, 0.1, 0.5, abs(low) * 0.999, abs(low) * 1.001]))
        if 0 < margin < 1:
            p = tango_p(gained, lost, pairs, margin)
            assert (p <= 0.025) == (low >= -margin), (gained, lost, pairs, margin, p, low)
            sides.add(p <= 0.025)
    assert sides == {True, False}


@pytest.mark.parametrize(("gained", "lost", "pairs"), [(0, 0, 381), (0, 0, 380), (0, 0, 1), (0, 20, 20), (20, 0, 20)])
@pytest.mark.parametrize("margin", [0.001, 0.01, 0.5, 0.999])
def test_p_at_the_edges_agrees_with_the_interval(gained: int, lost: int, pairs: int, margin: float) -> None:
    change = _counts(gained, lost, pairs)
    assert 0 <= change.p_loss(margin) <= 1
    assert _p_agrees_with_the_interval(change, margin)


def test_p_of_tango_by_hand() -> None:
    """Without a discordant example the variance is n margin (1 - margin), so that z² = n margin / (1 - margin)."""
    assert tango_p(0, 0, 400, 0.01) == pytest.approx(stats.norm.sf(np.sqrt(400 * 0.01 / 0.99)))
    assert tango_p(1, 7, 21, 0.2) == pytest.approx(
        stats.norm.sf(np.sign(-6 / 21 + 0.2) * _score_z(-0.2, 1, 7, 21)), rel=1e-3
    )


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_p_of_several_seeds_agrees_with_the_interval(seeds: int) -> None:
    generator, sides = np.random.default_rng(seeds), set()
    for _ in range(500):
        images, rates = int(generator.integers(50, 800)), generator.uniform(0, 0.03, size=2)
        draws = generator.random((seeds, images))
        change = BinaryChange(draws >= rates[0], draws <= 1 - rates[1])
        margin = float(np.clip(generator.choice([0.01, abs(change.low) * 0.999, abs(change.low) * 1.001]), 1e-4, 0.9))
        assert _p_agrees_with_the_interval(change, margin)
        sides.add(change.outcome(margin) == "shown")
    assert sides == {True, False}


def test_seeds_that_all_lose_the_same_are_decided_by_the_examples() -> None:
    change = _counts(0, 2, 4000, seeds=3)
    assert change.p_loss(0.01) < 0.001
    assert change.p_loss(0.0001) > 0.5
