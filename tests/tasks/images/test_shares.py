from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stages.distribution.replicas import Share
from stages.errors import DataError
from stages.params import Augment, TrainParams
from stages.tasks.images import dataset
from stages.tasks.images.dataset import Split
from stages.tasks.images.shares import ordered_shares, ordered_steps, training_shares

SEED, STEPS = 5, 7
HOSTS = {"one host": [Share(2, 0, 2)], "two hosts": [Share(2, 0, 1), Share(2, 1, 1)]}
HOSTS |= {"two hosts with two each": [Share(4, 0, 2), Share(4, 2, 2)]}


def numbered(count: int) -> Split:
    """Images of which each pixel is the image's number."""
    numbers = np.arange(count)
    images = np.broadcast_to(numbers[:, None, None, None], (count, 4, 4, 1)).astype(np.uint8)
    return Split(images, numbers.astype(np.int32))


@pytest.mark.parametrize("augment", [Augment(), Augment(flip=True, rotate_degrees=20.0, shift_fraction=0.2)])
@pytest.mark.parametrize("hosts", HOSTS)
def test_shares_of_all_replicas_are_the_batches_of_one(prepared_template: Path, augment: Augment, hosts: str) -> None:
    split = dataset.open_prepared(prepared_template).train
    train = TrainParams(batch_size=8, augment=augment, epochs=3)
    expected = dataset.training_batches(split, train, SEED, first_step=2, steps=STEPS)
    shares = [iter(training_shares(split, train, SEED, 2, share)) for share in HOSTS[hosts]]
    for images, labels in expected:
        parts = [next(share) for share, host in zip(shares, HOSTS[hosts], strict=True) for _ in range(host.local)]
        np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), images)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), labels)


@pytest.mark.parametrize("count", [4, 5, 10, 11, 39, 40, 41, 43])
@pytest.mark.parametrize("hosts", HOSTS)
def test_each_image_is_in_one_share(count: int, hosts: str) -> None:
    split, found = numbered(count), list[int]()
    steps = ordered_steps(split, 10)
    for share in HOSTS[hosts]:
        parts = list(ordered_shares(split, 10, 2, share).take(2 * steps * share.local))  # two passes
        sizes = [len(labels) for _, labels in parts]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        for images, labels in parts:
            np.testing.assert_array_equal(images[:, 0, 0, 0], labels)
            found += list(labels.numpy())
    assert sorted(found) == sorted([*range(count)] * 2)


def test_fewer_images_than_replicas_are_refused() -> None:
    with pytest.raises(DataError, match=r"train\.replicas is 4, and there are 3 validation images; each replica needs"):
        ordered_shares(numbered(3), 10, 2, Share(4, 0, 2))
