"""Several occasions of one study on one machine: the mean of their speed-ups, and how far each was right.

A ratio is averaged as its logarithm. The occasions count as independent draws, so the interval of their mean is
Student's t interval of the logarithms: it needs nothing but the occasions, and holds whatever differs between them. Two
occasions say little about that, so theirs is wide. Their own intervals are about the noise within one occasion only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from halfstep.results.comparison import Candidate, Ratio, Verdict
from halfstep.stats.speedup import CONFIDENCE, Error, Occasion, mean_over_occasions
from tools.gallery.results import Result, Results

_NO_ERROR = Error(0.0, math.inf)  # the interval of the mean rests on the occasions alone


@dataclass(frozen=True)
class Mean:
    """The mean speed-up over occasions, with its interval; of one occasion, that of the occasion.

    Attributes:
        spread: standard deviation between occasions, as a share; None for one occasion.
    """

    ratio: float
    low: float
    high: float
    spread: float | None = None


@dataclass(frozen=True)
class CandidateRow:
    """A candidate of a study on a machine, on each occasion, the oldest first."""

    name: str
    results: tuple[Result, ...]

    @property
    def candidates(self) -> list[Candidate]:
        """The candidate on each occasion."""
        return [result.comparison.candidates[self.name] for result in self.results]

    @property
    def newest(self) -> Candidate:
        """The candidate on the newest occasion, without a load on purpose if there is one."""
        quiet = [
            candidate for result, candidate in zip(self.results, self.candidates, strict=True) if not result.load_cores
        ]
        return (quiet or self.candidates)[-1]

    @property
    def verdict(self) -> Verdict:
        """That of all occasions; where they differ, it is not known."""
        first, *others = {candidate.verdict for candidate in self.candidates}
        return "inconclusive" if others else first

    def ratios(self, measure: str) -> list[Ratio]:
        """The speed-ups of the occasions on which the measure was compared."""
        return [ratio for candidate in self.candidates if (ratio := candidate.speedups.get(measure)) is not None]


def rows_of(results: Sequence[Result]) -> list[CandidateRow]:
    """The candidates of the occasions of one study on one machine, in the order of the newest."""
    newest = results[-1].comparison.candidates
    having = {name: tuple(one for one in results if name in one.comparison.candidates) for name in newest}
    return [CandidateRow(name, occasions) for name, occasions in having.items()]


def by_machine(results: Results, studies: Sequence[str]) -> Mapping[str, dict[str, list[Result]]]:
    """Occasions by machine and study, in the order of `studies`; the machine with the most studies first."""
    machines = {one.machine: {name: results.of(one.machine, name) for name in studies} for one in results.shown}
    kept = {machine: {name: some for name, some in each.items() if some} for machine, each in machines.items()}
    return dict(sorted(((name, each) for name, each in kept.items() if each), key=lambda item: -len(item[1])))


def mean_of(ratios: Sequence[Ratio]) -> Mean:
    """The mean of speed-ups of several occasions."""
    if len(ratios) == 1:
        return Mean(ratios[0].ratio, ratios[0].low, ratios[0].high)
    estimate = mean_over_occasions([Occasion(math.log(each.ratio), _NO_ERROR) for each in ratios])
    mean, reach = estimate.log_ratio, estimate.error.quantile(CONFIDENCE)
    spread = math.sqrt(len(ratios)) * estimate.error.standard_error
    return Mean(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), math.expm1(spread))


def held(ratios: Sequence[Ratio]) -> int:
    """On how many occasions the interval holds the mean of the others."""
    others = [mean_of([*ratios[:number], *ratios[number + 1 :]]).ratio for number in range(len(ratios))]
    return sum(ratio.low <= mean <= ratio.high for ratio, mean in zip(ratios, others, strict=True))


def expected_share(occasions: int) -> float:
    """How often an interval would hold the mean of the others if nothing differed between occasions.

    It is less than 95 %, because that mean has an error, too: of a variance v / (occasions − 1) beside v.
    """
    reach = stats.norm.ppf((1 + CONFIDENCE) / 2) / math.sqrt(1 + 1 / (occasions - 1))
    return float(2 * stats.norm.cdf(reach) - 1)
