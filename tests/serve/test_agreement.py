"""How far predictions may be from those of Keras."""

from __future__ import annotations

import numpy as np
import pytest

from halfstep.errors import TaskError
from halfstep.serve.agreement import compared

KERAS = np.array([[0.1, 0.9], [0.6, 0.4], [0.7, 0.3]], np.float32)


def test_examples_with_the_same_most_likely_class_are_counted() -> None:
    mine = KERAS[:, ::-1].copy()
    mine[0] = KERAS[0]
    found = compared([(KERAS[:2], KERAS[:2]), (mine[2:], KERAS[2:])], None, has_classes=True)
    assert found == {"difference": pytest.approx(0.4), "agreeing": 2, "tested": 3}
    assert "agreeing" not in compared([(KERAS, KERAS)], None, has_classes=False)


def test_difference_beyond_that_of_the_type_is_wrong() -> None:
    """Of outputs that reach 0.9, float32 allows 0.009."""
    assert compared([(KERAS + 0.008, KERAS)], 0.01, has_classes=False)["difference"] == pytest.approx(0.008, rel=1e-3)
    with pytest.raises(TaskError, match=r"wrong: outputs differ from those of Keras by up to 0\.01, which reach 0\.9"):
        compared([(KERAS + 0.01, KERAS)], 0.01, has_classes=False)
    assert compared([(KERAS + 0.5, KERAS)], None, has_classes=False)["difference"] == pytest.approx(0.5)


def test_numbers_that_are_not_finite_are_wrong_unless_those_of_keras_are() -> None:
    broken = KERAS.copy()
    broken[0, 0] = np.nan
    with pytest.raises(TaskError, match="not finite"):
        compared([(broken, KERAS)], None, has_classes=False)
    assert compared([(KERAS, broken)], 0.01, has_classes=False)["difference"] == 0
