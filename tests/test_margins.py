"""The smallest test set that can show a margin, against the intervals themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stages.compare.statistics import AccuracyChange
from stages.margins import smallest_test_set, too_few_images
from stages.prepare.__main__ import main


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("margin", [0.003, 0.01, 0.05, 0.5])
def test_one_image_fewer_cannot_show_the_margin(margin: float, seeds: int) -> None:
    enough = smallest_test_set(margin, seeds)
    for images, shown in ((enough - 1, False), (enough, True)):
        right = np.ones((seeds, images), bool)
        assert (AccuracyChange(right, right).low >= -margin) is shown


def test_the_margin_of_one_percent_takes_381_images() -> None:
    assert smallest_test_set(0.01) == 381
    assert too_few_images(381, 0.01, seeds=1) is None
    said = too_few_images(380, 0.01, seeds=1)
    assert said is not None
    assert said.startswith("380 test images cannot show compare.accuracy_margin 0.01")
    assert "381" in said


@pytest.mark.parametrize(("margin", "said"), [(0.01, True), (0.05, False)])
def test_prepare_says_that_the_test_set_is_too_small(
    project: Path,
    write_params: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    margin: float,
    said: bool,
) -> None:
    write_params(data={"source": "digits", "test_fraction": 0.1, "image_size": 8}, compare={"accuracy_margin": margin})
    assert main() == 0
    assert ("test images cannot show compare.accuracy_margin 0.01" in capsys.readouterr().out) is said
