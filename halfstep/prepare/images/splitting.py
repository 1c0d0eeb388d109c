"""A stratified, seeded split that never separates identical images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import DataError

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)
UNASSIGNED = -1

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Fractions:
    """Fractions of each class to hold out, of those images whose split the source does not give."""

    validation: float
    test: float


@dataclass(frozen=True)
class Pool:
    """All images that were read, without their pixels.

    Attributes:
        labels: (n,) int32, indices into `classes`.
        given: (n,) int8, the split to which the source assigns each image, or UNASSIGNED.
        groups: (n,) int64, numbers from 0 on; images with equal pixels share a number.
    """

    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    given: NDArray[np.int8]
    groups: Indices


@dataclass(frozen=True)
class Duplicate:
    """An image that is dropped because another given split contains it too."""

    index: int
    kept_index: int


def find_duplicates(pool: Pool) -> list[Duplicate]:
    """Images that occur in several given splits. The copy in test is kept, or else the copy in validation."""
    rank = np.lexsort((np.arange(len(pool.groups)), -pool.given, pool.groups))  # in each group, test comes first
    starts = np.flatnonzero(np.diff(pool.groups[rank], prepend=-1))
    first = np.repeat(rank[starts], np.diff(np.append(starts, len(rank))))
    dropped = pool.given[rank] != pool.given[first]
    pairs = zip(rank[dropped], first[dropped], strict=True)
    return [Duplicate(index=int(index), kept_index=int(kept)) for index, kept in sorted(pairs)]


def find_conflicts(pool: Pool) -> list[list[int]]:
    """Images that occur in several classes: a list of indices for each image, in the order of first appearance."""
    pairs = np.unique(np.stack([pool.groups, pool.labels]), axis=1)
    groups, classes = np.unique(pairs[0], return_counts=True)
    members = np.flatnonzero(np.isin(pool.groups, groups[classes > 1]))
    members = members[np.argsort(pool.groups[members], kind="stable")]
    starts = np.flatnonzero(np.diff(pool.groups[members], prepend=-1))
    return [part.tolist() for part in np.split(members, starts[1:])] if len(members) else []


def split(pool: Pool, fractions: Fractions, seed: int) -> tuple[Indices, Indices, Indices]:
    """Splits the images into training, validation and test, each in random order.

    Images that the source assigns to validation or test stay there. All others are split class by class, with groups
    of identical images kept together, so that each class is as close to the fractions as its groups allow. A class
    has at least one image in training and in test, and with three or more distinct images also one in validation.

    Returns:
        Three arrays of indices into the pool, without duplicates across given splits.

    Raises:
        DataError: a class cannot be both in training and in test.
    """
    keep = np.ones(len(pool.labels), dtype=bool)
    keep[[duplicate.index for duplicate in find_duplicates(pool)]] = False
    assigned = _assign(pool, keep, fractions, np.random.default_rng(seed))
    _check_classes(pool, assigned)
    rng = np.random.default_rng((seed, 1))
    train, validation, test = (rng.permutation(np.flatnonzero(assigned == part)) for part in (TRAIN, VALIDATION, TEST))
    return train, validation, test


def _assign(pool: Pool, keep: NDArray[np.bool_], fractions: Fractions, rng: np.random.Generator) -> NDArray[np.int8]:
    free = keep & ((pool.given == TRAIN) | (pool.given == UNASSIGNED))
    shares = _shares(pool, fractions)
    split_of_group = np.full(pool.groups.max(initial=-1) + 1, UNASSIGNED, dtype=np.int8)
    groups_by_class = [pool.groups[free & (pool.labels == label)] for label in range(len(pool.classes))]
    group_counts = [len(np.unique(groups)) for groups in groups_by_class]
    for label in np.argsort(group_counts, kind="stable"):  # classes with few groups are the hardest to split
        _assign_class(groups_by_class[label], shares, split_of_group, rng)
    assigned = np.where(keep, pool.given, UNASSIGNED).astype(np.int8)
    assigned[free] = split_of_group[pool.groups[free]]
    return assigned


def _shares(pool: Pool, fractions: Fractions) -> tuple[float, float, float]:
    validation = 0.0 if (pool.given == VALIDATION).any() else fractions.validation
    test = 0.0 if (pool.given == TEST).any() else fractions.test
    return (1.0 - validation - test, validation, test)


def _assign_class(
    groups_of_images: Indices,
    shares: tuple[float, float, float],
    split_of_group: NDArray[np.int8],
    rng: np.random.Generator,
) -> None:
    groups, sizes = np.unique(groups_of_images, return_counts=True)
    placed = split_of_group[groups_of_images]  # an image that also occurs in another class may be assigned already
    counts = np.bincount(placed[placed != UNASSIGNED], minlength=3).tolist()
    targets = _targets(len(groups_of_images), len(groups), shares)
    order = rng.permutation(np.flatnonzero(split_of_group[groups] == UNASSIGNED))
    order = order[np.argsort(-sizes[order], kind="stable")]  # large groups first: small ones then fill the targets
    for remaining, position in zip(range(len(order), 0, -1), order, strict=True):
        empty = [part for part in range(3) if targets[part] and not counts[part]]
        candidates = empty if remaining <= len(empty) else range(3)
        chosen = max(candidates, key=lambda part: targets[part] - counts[part])
        counts[chosen] += int(sizes[position])
        split_of_group[groups[position]] = chosen


def _targets(images: int, groups: int, shares: tuple[float, float, float]) -> tuple[int, int, int]:
    """Number of images of a class for each split: the rounded share, and at least one if there are enough groups."""
    targets = {TEST: 0, VALIDATION: 0}
    spare_groups = groups - 1  # one is for training
    for part in targets:
        if shares[part] > 0 and spare_groups > 0:
            targets[part] = max(1, round(shares[part] * images))
            spare_groups -= 1
    while sum(targets.values()) >= max(images, 1):
        targets[max(targets, key=lambda part: targets[part])] -= 1
    return (images - sum(targets.values()), targets[VALIDATION], targets[TEST])


def _check_classes(pool: Pool, assigned: NDArray[np.int8]) -> None:
    for label, name in enumerate(pool.classes):
        present = set(assigned[pool.labels == label].tolist())
        if missing := [SPLITS[part] for part in (TRAIN, TEST) if part not in present]:
            distinct = len(np.unique(pool.groups[pool.labels == label]))
            raise DataError(
                f"class {name!r}: {distinct} distinct usable image(s) leave {' and '.join(missing)} empty; "
                "a class needs at least 2 that occur in no other class or split: add images, or remove the class"
            )
