"""How often a loss at the margin is shown to be none, in simulation: the table in docs/measuring.md.

    python -m tools.benchmarks.quality                 2,000 trials a row: about half an hour on one core
    python -m tools.benchmarks.quality --trials 100    a taste
    python -m tools.benchmarks.quality methods         Student's t, Johnson's modified t and BCa for scores

The true loss is the margin, so that each `shown` is a false one, and with it each `adopt`. One seed; the seeds of the
generator are fixed. Nothing is asserted; tables are printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from stages.stats import resampling
from stages.stats.bootstrap import Bootstrap, MetricChange
from stages.stats.proportions import tango_p
from stages.stats.quality import QualityChange, Z
from stages.stats.resampling import REPLICATES
from stages.stats.sample_size import SHOWN_ERROR
from stages.stats.scores import ScoreChange, johnson_end

SIX = 0.05 / 6  # the first step of a report with six verdicts

Draw = Callable[[Generator, int], NDArray[np.float64]]


@dataclass(frozen=True)
class Losses:
    """What examples lose: a sample of n, its expectation, and the range of the baseline's scores.

    The baseline's scores are equal but for two that have this range: no range is smaller.
    """

    name: str
    draw: Draw
    mean: float
    score_range: float = 0.0


def _rare(share: float, size: Draw) -> Draw:
    return lambda generator, n: (generator.random(n) < share) * size(generator, n)


def _ones(_: Generator, n: int) -> NDArray[np.float64]:
    return np.ones(n)


def losses() -> Iterator[Losses]:
    """The promised kinds first, then worse ones."""
    yield Losses("normal", lambda g, n: g.normal(0.5, 1.0, n), 0.5)
    yield Losses("lognormal losses, sigma = 1", lambda g, n: g.lognormal(0, 1, n), float(np.exp(0.5)))
    yield Losses("lognormal gains, sigma = 1", lambda g, n: np.exp(0.5) + 0.5 - g.lognormal(0, 1, n), 0.5)
    yield Losses("1 % lose, all as much", _rare(0.01, _ones), 0.01, 1.0)
    yield Losses("1 % lose, uniform", _rare(0.01, lambda g, n: g.random(n)), 0.005, 1.0)
    yield Losses("1 % lose, exponential", _rare(0.01, lambda g, n: g.exponential(size=n)), 0.01, 3.0)
    yield Losses("1 % lose, the others normal", lambda g, n: (g.random(n) < 0.01) + g.normal(0, 0.02, n), 0.01, 1.0)
    yield Losses("0.3 % lose, all as much", _rare(0.003, _ones), 0.003, 1.0)
    yield Losses("0.3 % lose, exponential", _rare(0.003, lambda g, n: g.exponential(size=n)), 0.003, 3.0)
    yield Losses("3 % lose, exponential", _rare(0.03, lambda g, n: g.exponential(size=n)), 0.03, 3.0)
    yield Losses("worse: lognormal, sigma = 1.5", lambda g, n: g.lognormal(0, 1.5, n), float(np.exp(1.125)))
    yield Losses("worse: lognormal, sigma = 2", lambda g, n: g.lognormal(0, 2, n), float(np.exp(2)))
    yield Losses("worse: lognormal, sigma = 3", lambda g, n: g.lognormal(0, 3, n), float(np.exp(4.5)))
    yield Losses("worse: Pareto, infinite variance", lambda g, n: g.pareto(1.8, n), 1 / 0.8)


def score_change(generator: Generator, kind: Losses, examples: int) -> ScoreChange:
    """A change by these losses."""
    baseline = np.zeros((1, examples))
    baseline[0, 0] = kind.score_range
    return ScoreChange(baseline, baseline - kind.draw(generator, examples))


@dataclass(frozen=True)
class Ranking:
    """A ranking of two classes by two variants: the candidate's scores from the labels and the baseline's."""

    name: str
    candidate: Callable[[Generator, NDArray[np.int64], NDArray[np.float64]], NDArray[np.float64]]
    positive: float = 0.5


def _replaced(share: float) -> Callable[[Generator, NDArray[np.int64], NDArray[np.float64]], NDArray[np.float64]]:
    """A share of the examples get a random score."""

    def candidate(g: Generator, _: NDArray[np.int64], s: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(g.random(len(s)) < share, g.normal(0.9, 1.3, len(s)), s)

    return candidate


def _noisy(sd: float) -> Callable[[Generator, NDArray[np.int64], NDArray[np.float64]], NDArray[np.float64]]:
    return lambda g, _, s: s + g.normal(0, sd, len(s))


def rankings() -> Iterator[Ranking]:
    """ROC AUC of about 0.9."""
    yield Ranking("AUC, every score noisier", _noisy(0.5))
    yield Ranking("AUC, every score a little noisier", _noisy(0.15))
    yield Ranking("AUC, the same with 10 % positive", _noisy(0.5), 0.1)
    yield Ranking("AUC, two trainings", lambda g, y, _: 1.6 * y + g.normal(size=len(y)))
    yield Ranking("AUC, 1 % random", _replaced(0.01))
    yield Ranking("AUC, 5 % random", _replaced(0.05))
    yield Ranking("AUC, 0.5 % last", lambda g, y, s: np.where(g.random(len(y)) < 0.005, 9.0 - 18 * y, s))


class AreaUnderCurve:
    """The array of `metric_scores` for ROC AUC, by matrix products: a resample is a count of each example."""

    def __init__(self, examples: int) -> None:
        chosen = [indices for indices, _ in resampling._selections(examples, resampling.SEED)]
        counts = [np.ones(examples), *(np.bincount(indices, minlength=examples) for indices in chosen)]
        self._counts = np.stack(counts).astype(np.float32)

    def __call__(self, labels: NDArray[np.int64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """The array, float64 `(1 + REPLICATES + groups,)`."""
        positive, negative = labels == 1, labels == 0
        above = np.sign(scores[positive][:, None] - scores[negative][None]) / 2 + 0.5
        pairs = ((self._counts[:, positive] @ above.astype(np.float32)) * self._counts[:, negative]).sum(axis=1)
        return (pairs / (self._counts[:, positive].sum(axis=1) * self._counts[:, negative].sum(axis=1))).astype(float)


def area(labels: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
    """ROC AUC by ranks."""
    positive = labels == 1
    ranks, count = stats.rankdata(scores), int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(labels) - count)))


def ranked(
    generator: Generator, kind: Ranking, examples: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Labels, the baseline's and the candidate's scores."""
    labels = (generator.random(examples) < kind.positive).astype(np.int64)
    scores = 1.8 * labels + generator.normal(size=examples)
    return labels, scores, kind.candidate(generator, labels, scores)


def true_loss(kind: Ranking) -> float:
    """From 200 test sets of 20,000 examples."""
    generator = np.random.default_rng(99)
    draws = (ranked(generator, kind, 20_000) for _ in range(200))
    return float(np.mean([area(labels, before) - area(labels, after) for labels, before, after in draws]))


def shares(changes: Iterator[QualityChange], margin: float, trials: int) -> dict[str, str]:
    """Shares of the trials: shown, at the first step of six verdicts, doubted, cautious, refuted."""
    shown = six = doubt = caution = 0
    for change in changes:
        outcome = change.outcome(margin)
        shown += outcome == "shown"
        six += change.p_loss(margin) <= SIX
        doubt += change.doubt is not None
        caution += change.caution is not None and change.doubt is None
    found = {"shown": shown, "at 0.83 %": six, "no answer": doubt, "widened": caution}
    return {name: f"{count / trials:.1%}" for name, count in found.items()}


def scores_table(trials: int) -> pd.DataFrame:
    """False `shown` of scores."""
    rows = {}
    for seed, kind in enumerate(losses()):
        for examples in (1000, 5000):
            generator = np.random.default_rng([seed, examples])
            changes = (score_change(generator, kind, examples) for _ in range(trials))
            rows[kind.name, f"{examples:,}"] = shares(changes, kind.mean, trials)
    return pd.DataFrame(rows).T


def metrics_table(trials: int) -> pd.DataFrame:
    """False `shown` of ROC AUC."""
    rows = {}
    for examples in (500, 1000):
        arrays = AreaUnderCurve(examples)
        for seed, kind in enumerate(rankings()):
            generator = np.random.default_rng([seed, examples])
            changes = (metric_change(arrays, *ranked(generator, kind, examples)) for _ in range(trials))
            rows[kind.name, f"{examples:,}"] = shares(changes, true_loss(kind), trials)
    return pd.DataFrame(rows).T


def metric_change(
    arrays: AreaUnderCurve, labels: NDArray[np.int64], before: NDArray[np.float64], after: NDArray[np.float64]
) -> MetricChange:
    """The change of ROC AUC."""
    return MetricChange(arrays(labels, before)[None], arrays(labels, after)[None], len(labels))


def binary_table() -> pd.DataFrame:
    """False `shown` of 0/1 scores with one seed, exactly: the worst of seven rates of differing examples."""
    rows = {}
    for examples in (50, 100, 200, 381, 500, 1000, 2000, 5000):
        worst = max(binary_share(examples, 0.01, gains) for gains in (0, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05))
        rows["0/1, margin 0.01", f"{examples:,}"] = {"shown": f"{worst:.1%}"}
    return pd.DataFrame(rows).T


def binary_share(examples: int, margin: float, gains: float) -> float:
    """Probability that Tango's interval excludes the margin where that is the true loss."""
    total = 0.0
    counts = np.arange(examples + 1)
    lost = stats.binom.pmf(counts, examples, margin + gains)
    for losses_seen in counts[lost > 1e-9]:
        gained = stats.binom.pmf(counts, examples - losses_seen, gains / (1 - margin - gains))
        for gains_seen in counts[: examples - losses_seen + 1][gained[: examples - losses_seen + 1] > 1e-9]:
            if tango_p(gains_seen, losses_seen, examples, margin) <= SHOWN_ERROR:
                total += lost[losses_seen] * gained[gains_seen]
    return total


def methods_table(trials: int, examples: int = 1000) -> pd.DataFrame:
    """False `shown` of the three candidates for scores by themselves: without a minimum, a criterion or a wider end."""
    generator = np.random.default_rng(0)
    draws = generator.integers(0, examples, (REPLICATES, examples))
    weights = np.stack([np.bincount(row, minlength=examples) for row in draws]).astype(np.float32) / examples
    rows = {}
    for kind in losses():
        found = {"Student's t": 0, "Johnson's": 0, "BCa": 0}
        for _ in range(trials):
            values = -kind.draw(generator, examples)
            skewness = float(stats.skew(values)) if np.ptp(values) > 0 else 0.0
            leave_one_out = (values.sum() - values) / (examples - 1)
            bootstrap = Bootstrap(float(values.mean()), weights @ values.astype(np.float32), leave_one_out)
            ends = (johnson_end(values, 0.0, Z), johnson_end(values, skewness, Z), bootstrap.end(Z))
            for name, end in zip(found, ends, strict=True):
                found[name] += end >= -kind.mean
        rows[kind.name] = {name: f"{count / trials:.1%}" for name, count in found.items()}
    return pd.DataFrame(rows).T


TABLES: dict[str, Callable[[int], pd.DataFrame]] = {
    "binary": lambda _: binary_table(),
    "scores": scores_table,
    "metrics": metrics_table,
    "methods": methods_table,
}


def main() -> None:
    """Simulates and prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.quality", description=__doc__)
    parser.add_argument("tables", nargs="*", default=list(TABLES), help="of binary, scores, metrics, methods")
    parser.add_argument("--trials", type=int, default=2000, help="simulated comparisons in each row")
    arguments = parser.parse_args()
    print(f"{arguments.trials:,} trials a row. The true loss is the margin: `shown` must stay under 5 %")
    for name in arguments.tables:
        print(f"{name}\n{TABLES[name](arguments.trials).to_string()}", flush=True)


if __name__ == "__main__":
    main()
