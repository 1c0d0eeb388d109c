"""The split of labels and groups, without images."""

from __future__ import annotations

import numpy as np
import pytest

from halfstep.errors import DataError
from halfstep.prepare.images.splitting import (
    TEST,
    TRAIN,
    UNASSIGNED,
    VALIDATION,
    Fractions,
    Pool,
    find_duplicates,
    split,
)

USUAL = Fractions(validation=0.1, test=0.3)


def pool_of(labels: list[int], groups: list[int] | None = None, given: list[int] | None = None) -> Pool:
    count = len(labels)
    return Pool(
        classes=tuple("abcdefgh"[: max(labels) + 1]),
        labels=np.array(labels, dtype=np.int32),
        given=np.array(given if given is not None else [UNASSIGNED] * count, dtype=np.int8),
        groups=np.array(groups if groups is not None else range(count), dtype=np.int64),
    )


def counts(pool: Pool, fractions: Fractions = USUAL, seed: int = 0) -> list[list[int]]:
    parts = split(pool, fractions, seed)
    return [np.bincount(pool.labels[part], minlength=len(pool.classes)).tolist() for part in parts]


def test_each_class_gets_its_fractions() -> None:
    assert counts(pool_of([0] * 100 + [1] * 50 + [2] * 10)) == [[60, 30, 6], [10, 5, 1], [30, 15, 3]]


@pytest.mark.parametrize(
    ("images", "expected"), [(2, [1, 0, 1]), (3, [1, 1, 1]), (4, [2, 1, 1]), (5, [2, 1, 2]), (7, [4, 1, 2])]
)
def test_small_classes_are_in_every_split(images: int, expected: list[int]) -> None:
    assert [part[0] for part in counts(pool_of([0] * images + [1] * 20))] == expected


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fractions", [USUAL, Fractions(0.01, 0.01), Fractions(0.05, 0.9), Fractions(0.45, 0.5)])
def test_every_image_is_in_exactly_one_split(fractions: Fractions, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = [*rng.integers(0, 5, 200).tolist(), *range(5), *range(5), *range(5)]
    groups = [*rng.integers(0, 60, 200).tolist(), *range(200, 215)]
    pool = pool_of(labels, np.unique(groups, return_inverse=True)[1].tolist())
    parts = split(pool, fractions, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(215))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not set(pool.groups[parts[one]]) & set(pool.groups[parts[other]])
    assert all(set(pool.labels[part]) == set(range(5)) for part in (parts[0], parts[2]))


def test_fractions_are_exact_despite_large_groups() -> None:
    groups = [0] * 8 + [1] * 8 + list(range(2, 86))  # twice eight identical images among a hundred
    assert [part[0] for part in counts(pool_of([0] * 100 + [1] * 10, groups + list(range(86, 96))))] == [60, 10, 30]


@pytest.mark.parametrize("seed", range(8))
def test_class_that_shares_all_its_images_is_in_training_and_test(seed: int) -> None:
    pool = pool_of([0] * 20 + [1] * 2, [*range(20), 3, 8])
    train, _, test = split(pool, USUAL, seed)
    assert 1 in pool.labels[train]
    assert 1 in pool.labels[test]


def test_missing_split_is_taken_from_the_given_training_images() -> None:
    given = [TRAIN] * 40 + [TEST] * 6
    pool = pool_of([0, 1] * 23, given=given)
    train, validation, test = split(pool, USUAL, 0)
    assert sorted(test.tolist()) == list(range(40, 46))
    assert (len(train), len(validation)) == (36, 4)


def test_duplicate_across_given_splits_is_kept_in_test() -> None:
    pool = pool_of(
        [0, 0, 0, 0, 1, 1, 1],
        groups=[0, 0, 1, 2, 3, 4, 5],
        given=[TRAIN, TEST, TRAIN, VALIDATION, TRAIN, VALIDATION, TEST],
    )
    assert [(duplicate.index, duplicate.kept_index) for duplicate in find_duplicates(pool)] == [(0, 1)]
    assert [sorted(part.tolist()) for part in split(pool, USUAL, 0)] == [[2, 4], [3, 5], [1, 6]]


@pytest.mark.parametrize(
    "pool",
    [
        pool_of([0] * 5 + [1], None),
        pool_of([0] * 5 + [1] * 4, [0, 1, 2, 3, 4, 5, 5, 5, 5]),
        pool_of([0, 0, 1, 1], given=[TRAIN, TRAIN, TRAIN, TEST]),
        pool_of([0, 0, 1, 1], groups=[0, 1, 2, 2], given=[TRAIN, TEST, TRAIN, TEST]),
    ],
    ids=["one image", "one image, four times", "none given for the test", "all training images are also in test"],
)
def test_class_that_cannot_be_split_is_refused_by_name(pool: Pool) -> None:
    with pytest.raises(DataError, match=r"^class '[ab]': .*add images, or remove the class$"):
        split(pool, USUAL, 0)
