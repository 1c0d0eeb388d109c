"""Rules that involve several parameters, or names that the user chooses."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from stages.params.schema import Params

VARIANT_NAME = re.compile(r"[a-z][a-z0-9_]*")
RESERVED_NAMES = frozenset({"prepare", "train", "profile", "compare", "control"})


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` with the most similar known word, or an empty string."""
    nearest = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""


def broken_rules(params: Params) -> Iterator[str]:
    """One line for each rule that `params` breaks, with the dotted name, the value and what is allowed."""
    return (line for rule in _RULES for line in rule(params))


def _variant_names(params: Params) -> Iterator[str]:
    for name in params.variants:
        if not VARIANT_NAME.fullmatch(name):
            yield f"variants.{name}: the name of a variant has lowercase letters, digits and _, with a letter first"
        elif name in RESERVED_NAMES:
            yield f"variants.{name}: the name is reserved for the pipeline; choose another"


def _listed_variants_exist(params: Params) -> Iterator[str]:
    for name in params.train.variants:
        if name not in params.variants:
            hint = did_you_mean(name, params.variants)
            yield f"train.variants contains '{name}'; it must be one of variants: {', '.join(params.variants)}{hint}"


def _lists_have_no_duplicates(params: Params) -> Iterator[str]:
    lists: dict[str, tuple[str | int, ...]] = {
        "train.variants": params.train.variants,
        "train.seeds": params.train.seeds,
        "profile.inference_batch_sizes": params.profile.inference_batch_sizes,
    }
    for name, values in lists.items():
        for value in sorted((value for value, count in Counter(values).items() if count > 1), key=str):
            yield f"{name} lists {value!r} more than once; list it once"


def _baseline_is_trained(params: Params) -> Iterator[str]:
    if params.compare.baseline not in params.train.variants:
        trained = ", ".join(params.train.variants)
        yield f"compare.baseline is '{params.compare.baseline}'; it must be one of train.variants: {trained}"


def _training_set_is_not_empty(params: Params) -> Iterator[str]:
    held_out = params.data.test_fraction + params.data.validation_fraction
    if held_out >= 1:
        yield (
            f"data.test_fraction + data.validation_fraction is {held_out:g}; it must be below 1, "
            "so that the training set is not empty"
        )


def _warmup_fits(params: Params) -> Iterator[str]:
    if params.train.warmup_epochs > params.train.epochs:
        yield (
            f"train.warmup_epochs is {params.train.warmup_epochs:g}; it must be at most train.epochs, "
            f"which is {params.train.epochs}"
        )


def _enough_synthetic_images(params: Params) -> Iterator[str]:
    data = params.data
    if data.source == "synthetic" and data.synthetic_images < 4 * data.synthetic_classes:
        yield (
            f"data.synthetic_images is {data.synthetic_images}; it must be at least 4 per class, "
            f"which is {4 * data.synthetic_classes}"
        )


_RULES: tuple[Callable[[Params], Iterator[str]], ...] = (
    _variant_names,
    _listed_variants_exist,
    _lists_have_no_duplicates,
    _baseline_is_trained,
    _training_set_is_not_empty,
    _warmup_fits,
    _enough_synthetic_images,
)
