"""Coverage of judged speed-ups where whole runs differ, by simulation, and the smallest speed-up that they can show.

    python -m tools.benchmarks.run_level

The truth of `compare.min_speedup` itself is simulated, so that each interval wholly above it is a wrong `adopt`. The
random numbers are seeded: it prints the same each time.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from stages.params import CompareParams
from stages.stats.speedup import RUN_SD, Error, Occasion, final_confidence, mean_over_occasions, smallest_above

DEGREES = 10  # of the error within a run
CONFIDENCE = final_confidence(0)
RUN_SDS = (0.0, 0.01, 0.02, 0.03)
OCCASIONS = (1, 2, 3, 5)


def simulated(run_sd: float, occasions: int, within: float = 0.007, draws: int = 20_000) -> tuple[float, float, float]:
    """The share of intervals with the truth, of those wholly above it, and the median of their half-width.

    Args:
        run_sd: true standard deviation of one arm between runs, of the logarithm of its time.
        occasions: number of runs of each study.
        within: true standard error of a run's ratio.
        draws: number of studies.
    """
    generator = np.random.default_rng(0)
    logs = generator.normal(0, math.hypot(math.sqrt(2) * run_sd, within), (draws, occasions))
    errors = within * np.sqrt(generator.chisquare(DEGREES, (draws, occasions)) / DEGREES)
    found = [
        mean_over_occasions(
            [Occasion(log, Error(error, DEGREES), CONFIDENCE) for log, error in zip(*study, strict=True)], 2 * RUN_SD**2
        )
        for study in zip(logs.tolist(), errors.tolist(), strict=True)
    ]
    halves = np.array([each.error.quantile(CONFIDENCE) for each in found])
    means = np.array([each.log_ratio for each in found])
    return float(np.mean(abs(means) <= halves)), float(np.mean(means > halves)), float(np.median(halves))


def smallest(occasions: int, within: float = 0.007) -> float:
    """The smallest speed-up that occasions which differ as expected show to be at least `compare.min_speedup`."""
    each = [Occasion(0.0, Error(within, DEGREES), CONFIDENCE)] * occasions
    return smallest_above(CompareParams().min_speedup, mean_over_occasions(each, 2 * RUN_SD**2).error, CONFIDENCE)


def main() -> None:
    """Prints the tables of docs/evidence.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    for within in (0.007, 0.02):
        print(f"standard error within a run {within:.1%}: interval holds the truth, wrong adopt, median half-width")
        for run_sd in RUN_SDS:
            row = [f"{held:.1%} {wrong:.1%} {half:.3f}" for held, wrong, half in _row(run_sd, within)]
            print(f"  arms differ by {run_sd:.0%} between runs | {' | '.join(row)}", flush=True)
        print(f"  smallest speed-up | {' | '.join(f'{smallest(count, within):.3f}' for count in OCCASIONS)}")


def _row(run_sd: float, within: float) -> list[tuple[float, float, float]]:
    return [simulated(run_sd, count, within) for count in OCCASIONS]


if __name__ == "__main__":
    main()
