"""The MLflow params of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from halfstep.params.schema import Params

# What a task of the user's own decides itself, as dotted names of sections or values.
_NOT_USED = {"data", "model"} | {
    f"train.{name}" for name in ("optimizer", "learning_rate", "schedule", "warmup_epochs", "augment", "input_threads")
}


def run_params(params: Params, variant: str | None) -> dict[str, str]:
    """The MLflow params of a run by dotted name. The variant's entry is `variant.*`: all variants have equal keys.

    What does not apply to the task is left out.
    """
    tree = params.model_dump(mode="json")
    entries = tree.pop("variants")
    # Keys further down may have characters that MLflow refuses in names.
    arguments = tree["task"]["arguments"]
    if isinstance(arguments, dict):
        arguments |= {name: str(value) for name, value in arguments.items() if isinstance(value, dict)}
    del tree["tracking"], tree["fleet"]  # they affect no result; the first may contain a password
    if variant is not None:
        tree["variant"] = entries[variant]
    absent = set() if params.task.uses_data_and_model else _NOT_USED
    return {name: _as_text(value) for name, value in flattened(tree, absent=absent)}


def flattened(tree: Mapping[str, Any], prefix: str = "", *, absent: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """The values of nested parameters by dotted name, without the sections and values that are `absent`."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if name in absent:
            continue
        if isinstance(value, dict):
            yield from flattened(value, f"{name}.", absent=absent)
        else:
            yield name, value


def _as_text(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 6000 else text[:5997] + "..."  # MLflow's limit
