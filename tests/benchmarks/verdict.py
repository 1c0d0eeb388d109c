"""How often the verdict adopts what it should not: candidates exactly at a threshold, in simulation.

    python -m tests.benchmarks.verdict                    2,000 comparisons a row: a minute or so
    python -m tests.benchmarks.verdict --comparisons 200  a taste

At the margin of accuracy (everything else far better than asked for), and at the smallest speed-up worth having (the
accuracy being the same), `adopt` must stay under 5 %. One or two seeds are about those trainings, as the report says;
what they would say of the recipe is shown for comparison. Nothing is asserted; a table is printed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import NDArray

from stages.compare.verdict import decide
from stages.params import CompareParams
from stages.stats.quality import QualityChange
from stages.stats.speedup import Speedup

PARAMS = CompareParams()
PROCESSES, ROUNDS = 8, 30
PROCESS_SD, ROUND_SD = 0.02, 0.05  # of the logarithm of a ratio
DISCORDANT = 0.02  # share of the test images on which two trainings differ beyond what the loss itself takes
SEED_SD = 0.003  # of the accuracy between seeds, of either arm

Comparison = Callable[[Generator], tuple[Speedup, QualityChange]]


def speedup(generator: Generator, ratio: float) -> Speedup:
    """A measurement of a candidate whose true speed-up is `ratio`."""
    of_process = generator.normal(np.log(ratio), PROCESS_SD, size=(PROCESSES, 1))
    logs = of_process + generator.normal(0.0, ROUND_SD, size=(PROCESSES, ROUNDS))
    return Speedup(tuple(map(tuple, logs.tolist())))


def accuracy(generator: Generator, seeds: int, images: int, seed_sd: float) -> QualityChange:
    """Trainings of a candidate that truly loses the margin, give or take what seeds differ by."""
    losses = PARAMS.quality_margin + generator.normal(0.0, seed_sd, size=seeds) * np.sqrt(2)
    losses = np.clip(losses, -DISCORDANT, DISCORDANT)
    draws = generator.random((seeds, images))
    lost = draws < ((DISCORDANT + losses) / 2)[:, None]
    gained = draws > 1 - ((DISCORDANT - losses) / 2)[:, None]
    return QualityChange(baseline_correct=~gained, candidate_correct=~lost)


def same_accuracy(images: int = 2000) -> QualityChange:
    """Two arms that never differ."""
    right: NDArray[np.bool_] = np.ones((1, images), dtype=bool)
    return QualityChange(right, right)


def cases() -> Iterator[tuple[str, Comparison]]:
    """Each kind of comparison at a threshold, by its name."""

    def at_the_margin(seeds: int, images: int, seed_sd: float) -> Comparison:
        return lambda generator: (speedup(generator, 2.0), accuracy(generator, seeds, images, seed_sd))

    for seeds, images in ((1, 400), (1, 2000), (2, 400), (2, 2000)):
        yield f"accuracy at the margin, {seeds} seed(s), {images:,} images", at_the_margin(seeds, images, 0.0)
    for seeds, images in ((3, 400), (3, 2000), (5, 2000)):
        yield f"accuracy at the margin, {seeds} seeds, {images:,} images", at_the_margin(seeds, images, SEED_SD)
    for seeds in (1, 2):
        yield f"not claimed: the recipe by {seeds} seed(s), 2,000 images", at_the_margin(seeds, 2000, SEED_SD)
    yield "speed-up at min_speedup", lambda generator: (speedup(generator, PARAMS.min_speedup), same_accuracy())


def verdicts(comparison: Comparison, count: int, seed: int) -> Counter[str]:
    """How often each verdict falls; the noise floor is that of a second copy of the baseline, measured the same way."""
    generator = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    for _ in range(count):
        ratio, change = comparison(generator)
        found[decide(ratio, speedup(generator, 1.0).noise_floor, change, PARAMS)] += 1
    return found


def main() -> None:
    """Simulates and prints the shares."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.verdict", description=__doc__)
    parser.add_argument("--comparisons", type=int, default=2000, help="simulated comparisons in each row")
    count = parser.parse_args().comparisons
    rows = {name: verdicts(case, count, seed) for seed, (name, case) in enumerate(cases())}
    shares = {
        name: {verdict: f"{found[verdict] / count:.2%}" for verdict in ("adopt", "inconclusive", "reject")}
        for name, found in rows.items()
    }
    print(f"{count:,} comparisons a row; adopt must stay under 5 %")
    print(pd.DataFrame(shares).T.to_string())


if __name__ == "__main__":
    main()
