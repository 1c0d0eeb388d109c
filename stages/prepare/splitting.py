"""Who goes where: a stratified, seeded split that never separates identical images. No pixels, no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.errors import DataError

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)
UNASSIGNED = -1

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Fractions:
    """Shares of each class that are held out; of the images that are left to divide, where a source gives splits."""

    validation: float
    test: float


@dataclass(frozen=True)
class Pool:
    """All images that were read, without their pixels.

    Attributes:
        labels: (n,) int32, indices into `classes`.
        given: (n,) int8, the split that the source puts an image in, or UNASSIGNED.
        groups: (n,) int64, numbers from 0 on, equal for images whose pixels are equal.
    """

    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    given: NDArray[np.int8]
    groups: Indices


@dataclass(frozen=True)
class Repeat:
    """An image of a given split that is dropped because a given split that matters more holds it too."""

    index: int
    kept_index: int


def given_repeats(pool: Pool) -> list[Repeat]:
    """Images that occur in several given splits: the test's copy stays, then the validation's."""
    rank = np.lexsort((np.arange(len(pool.groups)), -pool.given, pool.groups))  # the test's copies first in each group
    starts = np.flatnonzero(np.diff(pool.groups[rank], prepend=-1))
    first = np.repeat(rank[starts], np.diff(np.append(starts, len(rank))))
    dropped = pool.given[rank] != pool.given[first]
    pairs = zip(rank[dropped], first[dropped], strict=True)
    return [Repeat(index=int(index), kept_index=int(kept)) for index, kept in sorted(pairs)]


def split(pool: Pool, fractions: Fractions, seed: int) -> tuple[Indices, Indices, Indices]:
    """Divides the images into training, validation and test, each in a random order of its own.

    What the source gives for validation or test stays there; everything else is divided, class by class and in whole
    groups of identical images, so that each class comes as close to the fractions as its groups allow. A class has at
    least one image in training and in test, and from three distinct images on one in validation.

    Returns:
        Three arrays of indices into the pool. Repeats across given splits are left out.

    Raises:
        DataError: a class cannot be in training and in test at once.
    """
    keep = np.ones(len(pool.labels), dtype=bool)
    keep[[repeat.index for repeat in given_repeats(pool)]] = False
    sides = _assign(pool, keep, fractions, np.random.default_rng(seed))
    _check_sides(pool, sides)
    shuffler = np.random.default_rng((seed, 1))
    return (
        shuffler.permutation(np.flatnonzero(sides == TRAIN)),
        shuffler.permutation(np.flatnonzero(sides == VALIDATION)),
        shuffler.permutation(np.flatnonzero(sides == TEST)),
    )


def _assign(pool: Pool, keep: NDArray[np.bool_], fractions: Fractions, rng: np.random.Generator) -> NDArray[np.int8]:
    divided = keep & ((pool.given == TRAIN) | (pool.given == UNASSIGNED))
    shares = _shares(pool, fractions)
    side_of_group = np.full(pool.groups.max(initial=-1) + 1, UNASSIGNED, dtype=np.int8)
    groups_by_class = [pool.groups[divided & (pool.labels == label)] for label in range(len(pool.classes))]
    choices = [len(np.unique(groups)) for groups in groups_by_class]
    for label in np.argsort(choices, kind="stable"):  # the class with the least choice chooses first
        _assign_class(groups_by_class[label], shares, side_of_group, rng)
    sides = np.where(keep, pool.given, UNASSIGNED).astype(np.int8)
    sides[divided] = side_of_group[pool.groups[divided]]
    return sides


def _shares(pool: Pool, fractions: Fractions) -> tuple[float, float, float]:
    validation = 0.0 if (pool.given == VALIDATION).any() else fractions.validation
    test = 0.0 if (pool.given == TEST).any() else fractions.test
    return (1.0 - validation - test, validation, test)


def _assign_class(
    groups_of_images: Indices,
    shares: tuple[float, float, float],
    side_of_group: NDArray[np.int8],
    rng: np.random.Generator,
) -> None:
    groups, sizes = np.unique(groups_of_images, return_counts=True)
    placed = side_of_group[groups_of_images]  # an image that another class holds too may have its side already
    counts = np.bincount(placed[placed != UNASSIGNED], minlength=3).tolist()
    wanted = _targets(len(groups_of_images), len(groups), shares)
    order = rng.permutation(np.flatnonzero(side_of_group[groups] == UNASSIGNED))
    order = order[np.argsort(-sizes[order], kind="stable")]  # large groups first: the small ones level the shares
    for left, position in zip(range(len(order), 0, -1), order, strict=True):
        empty = [side for side in range(3) if wanted[side] and not counts[side]]
        open_sides = empty if left <= len(empty) else range(3)
        side = max(open_sides, key=lambda side: wanted[side] - counts[side])
        counts[side] += int(sizes[position])
        side_of_group[groups[position]] = side


def _targets(images: int, groups: int, shares: tuple[float, float, float]) -> tuple[int, int, int]:
    """Images of a class that each split should get: the rounded shares, at least one each while there are groups."""
    wanted = {TEST: 0, VALIDATION: 0}
    spare_groups = groups - 1  # one is for training
    for side in wanted:
        if shares[side] > 0 and spare_groups > 0:
            wanted[side] = max(1, round(shares[side] * images))
            spare_groups -= 1
    while sum(wanted.values()) >= max(images, 1):
        wanted[max(wanted, key=lambda side: wanted[side])] -= 1
    return (images - sum(wanted.values()), wanted[VALIDATION], wanted[TEST])


def _check_sides(pool: Pool, sides: NDArray[np.int8]) -> None:
    for label, name in enumerate(pool.classes):
        held = set(sides[pool.labels == label].tolist())
        absent: Sequence[str] = [SPLITS[side] for side in (TRAIN, TEST) if side not in held]
        if absent:
            distinct = len(np.unique(pool.groups[pool.labels == label]))
            raise DataError(
                f"class {name!r}: {distinct} distinct usable image(s) leave none for {' and '.join(absent)}; "
                "every class needs at least 2 that no other class or split repeats: add images, or remove the class"
            )
