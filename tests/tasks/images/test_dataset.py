from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from halfstep.errors import CorruptFileError, DataError
from halfstep.params.schema import Augment, TrainParams
from halfstep.tasks.images import arrays, dataset
from halfstep.tasks.images.arrays import Split

COUNT, BATCH_SIZE = 22, 4
STEPS = COUNT // BATCH_SIZE
PLAIN = TrainParams(batch_size=BATCH_SIZE, epochs=3)


@pytest.fixture(scope="module")
def split() -> Split:
    """22 images of noise, 6 x 5 pixels. The label of an image is its index, which identifies it in a batch."""
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 6, 5, 3), dtype=np.uint8)
    return Split(images, np.arange(COUNT, dtype=np.int32))


def batches(
    split: Split, train: TrainParams = PLAIN, seed: int = 7, **span: Any
) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x.numpy(), y.numpy()) for x, y in dataset.training_batches(split, train, seed, **span)]


def assert_equal(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected)
    for (images, labels), (other_images, other_labels) in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)


@pytest.mark.parametrize("augment", [Augment(), Augment(flip=True, rotate_degrees=20, shift_fraction=0.2)])
@pytest.mark.parametrize("first", [1, STEPS - 1, STEPS, 2 * STEPS + 1])
def test_batch_depends_only_on_seed_and_step(split: Split, augment: Augment, first: int) -> None:
    train = PLAIN.model_copy(update={"augment": augment})
    whole = batches(split, train)
    assert_equal(batches(split, train, first_step=first), whole[first:])
    assert_equal(batches(split, train, first_step=first, steps=2), whole[first : first + 2])


def test_batches_do_not_depend_on_the_number_of_threads(split: Split) -> None:
    augmented = PLAIN.model_copy(update={"augment": Augment(shift_fraction=0.3), "input_threads": 1})
    threads = augmented.model_copy(update={"input_threads": 4})
    assert_equal(batches(split, threads), batches(split, augmented))


def test_epoch_has_each_image_at_most_once_in_full_batches(split: Split) -> None:
    training_batches = batches(split)
    assert len(training_batches) == PLAIN.epochs * STEPS
    for epoch in range(PLAIN.epochs):
        labels = np.concatenate([y for _, y in training_batches[epoch * STEPS : (epoch + 1) * STEPS]])
        assert len(set(labels.tolist())) == len(labels) == STEPS * BATCH_SIZE
    orders = {
        tuple(np.concatenate([y for _, y in training_batches[at : at + STEPS]]))
        for at in range(0, len(training_batches), STEPS)
    }
    assert len(orders) == PLAIN.epochs


def test_images_keep_labels_and_pixels_without_augmentation(split: Split) -> None:
    for images, labels in batches(split):
        assert (images.dtype.name, labels.dtype.name) == ("uint8", "int32")
        np.testing.assert_array_equal(images, split.images[labels])


def test_batch_larger_than_the_training_set_is_refused(split: Split) -> None:
    with pytest.raises(DataError, match=r"train\.batch_size is 23; allowed is at most 22"):
        dataset.steps_per_epoch(split, COUNT + 1)
    with pytest.raises(DataError, match=r"^variants\.large\.batch_size is 23; allowed is at most 22"):
        dataset.steps_per_epoch(split, COUNT + 1, "variants.large.batch_size")
    assert dataset.steps_per_epoch(split, COUNT) == 1


def test_ordered_batches_have_every_image_in_order(split: Split) -> None:
    ordered_batches = [(x.numpy(), y.numpy()) for x, y in dataset.ordered_batches(split, 8, threads=2)]
    assert [len(y) for _, y in ordered_batches] == [8, 8, 6]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in ordered_batches]), split.images)
    np.testing.assert_array_equal(np.concatenate([y for _, y in ordered_batches]), split.labels)


def augmented(images: np.ndarray, seed: tuple[int, int] = (0, 0), **changes: Any) -> np.ndarray:
    return np.asarray(dataset.augmented(tf.constant(images), Augment(**changes), tf.constant(seed, tf.int32)))


def test_flip_mirrors_about_half_of_the_images_exactly() -> None:
    images = np.random.default_rng(1).integers(0, 256, (200, 7, 6, 3), dtype=np.uint8)
    flipped = augmented(images, flip=True)
    same = (flipped == images).all(axis=(1, 2, 3))
    mirrored = (flipped == images[:, :, ::-1]).all(axis=(1, 2, 3))
    assert (same ^ mirrored).all()
    assert 70 < mirrored.sum() < 130


def centre_of_mass(image: np.ndarray) -> tuple[float, float]:
    rows, columns = np.indices(image.shape[:2])
    weights = image[..., 0].astype(float)
    return float((rows * weights).sum() / weights.sum()), float((columns * weights).sum() / weights.sum())


def test_shift_stays_within_its_limit_and_fills_with_black() -> None:
    images = np.zeros((100, 21, 21, 1), dtype=np.uint8)
    images[:, 10, 10] = 255
    centres = [centre_of_mass(image) for image in augmented(images, shift_fraction=0.2)]
    shifts = np.abs(np.asarray(centres) - 10)
    assert shifts.max() <= 0.2 * 21 + 0.5
    assert shifts.max(axis=0).min() > 2  # in both directions, and close to the limit
    assert augmented(np.full((1, 8, 8, 1), 255, np.uint8), shift_fraction=0.5).min() == 0


def test_rotation_is_about_the_centre_and_within_its_limit() -> None:
    images = np.zeros((100, 41, 41, 1), dtype=np.uint8)
    images[:, 20, 35:38] = 255  # to the right of the centre
    offsets = np.asarray([centre_of_mass(image) for image in augmented(images, rotate_degrees=30)]) - 20
    angles = np.degrees(np.arctan2(offsets[:, 0], offsets[:, 1]))
    assert 20 < np.abs(angles).max() < 31
    np.testing.assert_allclose(np.hypot(*offsets.T), 16, atol=0.5)


def test_damaged_prepared_images_are_refused(project: Path) -> None:
    path = project / "data/prepared/train_images.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"train_images\.npy is damaged"):
        arrays.open_prepared()


def test_input_pipeline_does_not_use_the_autotuner(split: Split) -> None:
    sources: list[Callable[[], tf.data.Dataset]] = [
        lambda: dataset.training_batches(split, PLAIN, 0),
        lambda: dataset.ordered_batches(split, 4, 1),
    ]
    assert [make().options().autotune.enabled for make in sources] == [False, False]
