"""Rules that involve several parameters, or names that the user chooses."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

from halfstep.errors import one_line
from halfstep.params.derived import GPU_THREAD_MODE, ONEDNN, hidden_precision
from halfstep.params.margin import accuracy_margin_line
from halfstep.params.schema import Params, Variant
from halfstep.system import xla_flags
from halfstep.words.text import yaml_text

VARIANT_NAME = re.compile(r"[a-z][a-z0-9_]*")
ARGUMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")  # MLflow logs it as part of a parameter's name
RESERVED_NAMES = frozenset({"prepare", "train", "profile", "serve", "compare", "control"})


# What people call a variant, by its default name.
_MEANT = {
    **dict.fromkeys(("bf16", "bfloat16"), "mixed_bfloat16"),
    **dict.fromkeys(("fp16", "f16", "float16", "half", "amp"), "mixed_float16"),
    **dict.fromkeys(("fp32", "f32"), "float32"),
}


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Returns `; did you mean 'x'?` with the known word that is meant or most similar, or an empty string."""
    meant = [name for name in (_MEANT.get(word.lower()),) if name in known]
    nearest = meant or difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
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
        "serve.formats": params.serve.formats,
        "serve.batch_sizes": params.serve.batch_sizes or (),
        "task.depends": params.task.depends,
        **{f"variants.{name}.float32_layers": entry.float32_layers for name, entry in params.variants.items()},
    }
    for name, values in lists.items():
        for value in sorted((value for value, count in Counter(values).items() if count > 1), key=str):
            yield f"{name} lists {value!r} more than once; list it once"


def _baseline_is_trained(params: Params) -> Iterator[str]:
    baseline = params.variants.get(params.compare.baseline)
    if baseline is not None and not baseline.trained and params.train.epochs != 0:
        yield (
            f"variants.{params.compare.baseline}.trained is false, and the others are compared with it: set it to "
            "true, or train.epochs to 0 to train none"
        )
    if params.compare.baseline not in params.train.variants:
        trained = ", ".join(params.train.variants)
        yield f"compare.baseline is '{params.compare.baseline}'; it must be one of train.variants: {trained}"


def _served_weights_are_trained(params: Params) -> Iterator[str]:
    if (weights := params.serve.weights) is not None and weights not in params.trained_variants:
        trained = ", ".join(params.trained_variants)
        yield f"serve.weights is '{weights}'; it must be one of train.variants: {trained}, or null for the baseline"


def _margin_fits_accuracy(params: Params) -> Iterator[str]:
    margin = params.compare.quality_margin
    if params.task.uses_data_and_model and margin is not None and margin >= 1:
        yield accuracy_margin_line(margin)


def _training_set_is_not_empty(params: Params) -> Iterator[str]:
    held_out = params.data.test_fraction + params.data.validation_fraction
    if held_out >= 1 and params.task.uses_data_and_model:
        yield (
            f"data.test_fraction + data.validation_fraction is {held_out:g}; it must be below 1, "
            "so that the training set is not empty"
        )


def _warmup_fits(params: Params) -> Iterator[str]:
    if (
        params.train.epochs and params.train.warmup_epochs > params.train.epochs
    ):  # without a training there is nothing to fit in
        yield (
            f"train.warmup_epochs is {params.train.warmup_epochs:g}; it must be at most train.epochs, "
            f"which is {params.train.epochs}"
        )


def _scripts_have_what_they_need(params: Params) -> Iterator[str]:
    task, train = params.task, params.train
    if task.script is None:
        for name in ("epochs", "batch_size"):
            if getattr(train, name) is None:
                yield f"train.{name} is null, which only task.script may leave so; give a number"
        if isinstance(task.arguments, list):
            yield "task.arguments is a list, which only task.script takes; give the arguments of the function by name"
        if task.score is not None:
            yield f"task.score is '{task.score}', which is for task.script; set it to null"
        if task.step is not None:
            yield f"task.step is '{task.step}', which is for task.script; set it to null"
        return
    if task.step is not None and task.score is not None:
        yield "task.step and task.score are set, and with a step only the speed is compared: set task.score to null"
    if task.name != "images" or task.path is not None:
        yield f"task.script is '{task.script}' and task.name or task.path is set; leave one of them out"
    if isinstance(task.arguments, dict) and task.arguments:
        yield 'task.arguments has names; the command line of task.script is a list, such as [--width, "64"]'


def _speed_only_decides_on_no_model(params: Params) -> Iterator[str]:
    if params.train.epochs != 0:
        return
    if params.compare.gate is True:
        yield (
            "compare.gate is true and train.epochs is 0; without a training no candidate can be adopted, so the gate "
            "would never pass: set compare.gate to false or not_slower, or train.epochs to at least 1"
        )


def _enough_synthetic_images(params: Params) -> Iterator[str]:
    data = params.data
    if not params.task.uses_data_and_model:
        return
    if data.source == "synthetic" and data.synthetic_images < 4 * data.synthetic_classes:
        yield (
            f"data.synthetic_images is {data.synthetic_images}; it must be at least 4 per class, "
            f"which is {4 * data.synthetic_classes}"
        )


def _task_arguments_have_names(params: Params) -> Iterator[str]:
    for name in params.task.keywords:
        if not ARGUMENT_NAME.fullmatch(name):
            shown = one_line(name, 80)
            yield f"task.arguments contains '{shown}'; a name has up to 100 letters, digits and _, no digit first"


def _task_arguments_are_json(params: Params) -> Iterator[str]:
    for location, value in _not_json(params.task.arguments, "task.arguments"):
        yield (
            f"{location} is {one_line(str(value), 80)} ({type(value).__name__}); it must be a text, a finite number, "
            "true, false, null, a list or a mapping: quote it to pass a text"
        )


def _not_json(value: Any, location: str) -> Iterator[tuple[str, Any]]:
    """The values below `value` that JSON does not have, with their dotted names."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _not_json(item, f"{location}.{one_line(key, 80)}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _not_json(item, f"{location}[{number}]")
    elif not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        yield location, value


def _listed(params: Params) -> list[tuple[str, Variant]]:
    """The entries of `train.variants`, by name."""
    return [(name, params.variants[name]) for name in params.train.variants if name in params.variants]


def _tasks_follow_the_variants(params: Params) -> Iterator[str]:
    """What an entry cannot change, because the user's own code decides it."""
    task, deciders = params.task, dict[str, str]()
    if task.uses_data_and_model or task.script is not None:
        deciders = {"task_path": "which has no module in a folder"}
    if not task.uses_data_and_model:
        deciders |= {"learning_rate": "whose optimizer is its own", "input_threads": "whose input pipeline is its own"}
    if task.script is not None:
        deciders |= dict.fromkeys(("batch_size", "cache_input", "prefetch_to_device"), "whose batches are its own")
    own = f"task.{'name' if task.script is None else 'script'} is '{task.script or task.name}'"
    for name, entry in _listed(params):
        for key, why in deciders.items():
            if getattr(entry, key) is not None:
                yield f"variants.{name}.{key} is {yaml_text(getattr(entry, key))} and {own}, {why}: set it to null"


def _float32_layers_fit(params: Params) -> Iterator[str]:
    for name, entry in params.variants.items():
        key = f"variants.{name}.float32_layers"
        if entry.float32_layers and not entry.policy.startswith("mixed_"):
            yield (
                f"{key} has layers and variants.{name}.policy is {entry.policy}; only a mixed policy keeps some layers "
                "in float32: set the policy to mixed_float16 or mixed_bfloat16, or the list to []"
            )
        for pattern in entry.float32_layers:
            try:
                re.compile(pattern)
            except re.error as error:
                yield (
                    f"{key} contains '{one_line(pattern, 80)}', which is not a regular expression ({error}); give the "
                    "path of a layer, or a regular expression for a whole path"
                )


def _environment_is_left_to_its_owners(params: Params) -> Iterator[str]:
    owners = {ONEDNN: "onednn of the entry", GPU_THREAD_MODE: "gpu_thread_mode of the entry"}
    others = ("CUDA_VISIBLE_DEVICES", "KERAS_BACKEND", "PATH", "PYTHONPATH", "PYTHONHOME")
    owners |= dict.fromkeys(others, "the environment of `dvc repro`, which all variants share")
    for name, entry in params.variants.items():
        for variable in sorted(owners.keys() & entry.env.keys()):
            yield f"variants.{name}.env sets {variable}, which is for {owners[variable]}; remove it there"
        if xla_flags.CACHE_FLAGS in entry.env.get(xla_flags.VARIABLE, ""):
            yield (
                f"variants.{name}.env sets {xla_flags.CACHE_FLAGS}* in {xla_flags.VARIABLE}; remove that: `profile` "
                "keeps compiled programs itself, apart for each machine, release and variant"
            )
    baseline = params.variants.get(params.compare.baseline)
    for variable, value in hidden_precision({} if baseline is None else baseline.env).items():
        yield (
            f"variants.{params.compare.baseline}.env sets {variable}={value}, by which TensorFlow computes in fewer "
            "bits than the policy says; set it in another entry: this one is the baseline"
        )


def _parents_exist(params: Params) -> Iterator[str]:
    for name, entry in params.variants.items():
        if entry.parent is not None and entry.parent not in params.variants:
            hint = did_you_mean(entry.parent, params.variants)
            yield (
                f"variants.{name}.parent is '{entry.parent}'; it must be one of variants, or null: "
                f"{', '.join(params.variants)}{hint}"
            )


_RULES: tuple[Callable[[Params], Iterator[str]], ...] = (
    _scripts_have_what_they_need,
    _variant_names,
    _listed_variants_exist,
    _lists_have_no_duplicates,
    _baseline_is_trained,
    _served_weights_are_trained,
    _margin_fits_accuracy,
    _training_set_is_not_empty,
    _warmup_fits,
    _speed_only_decides_on_no_model,
    _enough_synthetic_images,
    _task_arguments_have_names,
    _task_arguments_are_json,
    _tasks_follow_the_variants,
    _float32_layers_fit,
    _environment_is_left_to_its_owners,
    _parents_exist,
)
