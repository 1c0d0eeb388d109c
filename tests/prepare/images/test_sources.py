"""What the sources of images give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halfstep.errors import DataError
from halfstep.prepare.images.decoding import ImageForm
from halfstep.prepare.images.sources import Cifar10
from halfstep.prepare.images.splitting import TEST, TRAIN
from halfstep.tensorflow_import import keras

FORM = ImageForm(side_px=32, grey=False, max_pixels=10**6)


def test_official_test_images_of_cifar10_are_the_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Keras gives them: labels in a column, of another type."""
    images = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(12, dtype=np.uint8)[:, None] % 10
    monkeypatch.setattr(
        keras.datasets.cifar10, "load_data", lambda: ((images[:8], labels[:8]), (images[8:], labels[8:]))
    )
    batches = list(Cifar10(FORM).batches())
    assert np.concatenate([batch.given for batch in batches]).tolist() == [TRAIN] * 8 + [TEST] * 4
    assert np.concatenate([batch.labels for batch in batches]).tolist() == [*range(10), 0, 1]
    assert (np.concatenate([batch.images for batch in batches]) == images).all()
    assert batches[0].names[0] == "train[0]"


def test_archive_that_cannot_be_downloaded_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("URL fetch failure:\nno network")

    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(keras.datasets.cifar10, "load_data", fails)
    with pytest.raises(DataError, match=r"no network; download cifar-10-python\.tar\.gz elsewhere") as caught:
        list(Cifar10(FORM).batches())
    assert f"put it at {tmp_path}/datasets/cifar-10-batches-py-target_archive" in str(caught.value)
    assert "\n" not in str(caught.value)
