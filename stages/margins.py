"""How many test images it takes to show that an accuracy is the same, before anything is trained."""

from __future__ import annotations

import math
from statistics import NormalDist

CONFIDENCE = 0.95
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def smallest_test_set(margin: float, seeds: int = 1) -> int:
    """Fewest test images with which a loss of more than `margin` can be excluded: by two arms that never differ.

    With one seed, Tango's score interval without a discordant image ends at −z² / (n + z²); with more, the interval
    over images, which adds one that gains and one that loses, ends at −z √2 / (n + 2).

    Args:
        margin: largest loss that counts as the same accuracy, as a fraction.
        seeds: trainings of each arm.
    """
    if seeds == 1:
        return math.ceil(Z**2 * (1 - margin) / margin)
    return max(1, math.ceil(Z * math.sqrt(2) / margin - 2))


def too_few_images(images: int, margin: float, seeds: int) -> str | None:
    """A line to be said at the start where the margin can never be shown on so many test images; None elsewhere."""
    enough = smallest_test_set(margin, seeds)
    if images >= enough:
        return None
    return (
        f"{images:,} test images cannot show compare.accuracy_margin {margin:g}, whatever the accuracies are: it takes "
        f"{enough:,}; raise data.test_fraction, add images, or declare a larger margin"
    )
