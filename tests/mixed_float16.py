"""Models of a test are built under mixed_float16, with the same weights and names each time."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest

from halfstep.tensorflow_import import reset_uids


@pytest.fixture
def mixed_float16() -> Iterator[None]:
    """Sets the policy for a test."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_float16")
    reset_uids()
    yield
    keras.config.set_dtype_policy("float32")
