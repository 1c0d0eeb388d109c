"""What arms differ in: their entries of `variants`, for which there are bridging arms, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from halfstep.errors import ProfileError
from halfstep.profile.records import ArmRecord, ArmSettings
from halfstep.results.profile import bridge_name
from halfstep.system import files
from halfstep.tasks.trial import Trial
from halfstep.words.text import TRAIN

# Settings that must be those of the baseline where neither entry sets them.
_LEFT_ALONE = (
    *("batch_size", "learning_rate", "threads", "threads_between"),
    *("gpu_thread_mode", "input_threads", "cache_input", "prefetch_to_device"),
)
_FOLLOWS = {"learning_rate": "batch_size", "threads_between": "threads"}  # where the entry sets the second


def bridge_of(settings: ArmSettings, baseline: ArmSettings, measure: str = TRAIN) -> str | None:
    """Name of the arm between the baseline and another arm; None where only the precision matters to the measure."""
    return bridge_name(baseline.in_force, settings.in_force, baseline.configuration.device, measure)


def bridging_arms(trials: Mapping[str, Trial], records: Mapping[str, ArmRecord], baseline: str) -> dict[str, Trial]:
    """The arms with the baseline's policy and a candidate's other settings, by name; none without a baseline."""
    bridges: dict[str, Trial] = {}
    if baseline not in records:
        return bridges
    for name, record in records.items():
        arm = bridge_of(record.settings, records[baseline].settings)
        if arm is not None and name != files.CONTROL:
            settings = {
                "policy": trials[baseline].variant.policy,
                "float32_layers": trials[baseline].variant.float32_layers,
                "xla": record.settings.in_force.xla,  # Keras may choose another with the policy
            }
            variant = trials[name].variant.model_copy(update=settings)
            bridges.setdefault(arm, replace(trials[name], name=arm, variant=variant))
    return bridges


def check_configurations(baseline: str, records: Mapping[str, ArmRecord]) -> None:
    """Checks that all arms run like the baseline but for what their entries set; does nothing without a baseline.

    Raises:
        ProfileError: an arm differs; the message has the settings that differ, with both values.
    """
    if baseline not in records:
        return
    for name, record in records.items():
        expected, actual = (_common(records[arm], record, records[baseline]) for arm in (baseline, name))
        differing = [
            f"{key} {actual[key]} instead of {expected[key]}" for key in expected if actual[key] != expected[key]
        ]
        if differing:
            raise ProfileError(
                f"profile: '{name}' does not run like '{baseline}' ({', '.join(differing)}); variants may differ "
                "only in their entries: find what sets it, such as an environment variable or the model's code"
            )


def _common(record: ArmRecord, arm: ArmRecord, baseline: ArmRecord) -> dict[str, Any]:
    """What must be the same: the configuration, and the settings that the entries of an arm and the baseline leave."""
    set_by_entry = {
        key for arm in (arm, baseline) for key, value in arm.entry.model_dump().items() if value is not None
    }
    in_force = record.settings.in_force.model_dump()
    left_alone = {
        key: in_force[key] for key in _LEFT_ALONE if key not in set_by_entry and _FOLLOWS.get(key) not in set_by_entry
    }
    configuration = record.settings.configuration
    return configuration.common(arm.settings.in_force, baseline.settings.in_force) | left_alone
