"""What arms differ in: their entries of `variants`, for which there are bridging arms, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stages import files
from stages.errors import ProfileError
from stages.profile.records import ArmConfig, ArmRecord, ArmSettings
from stages.results.profile import Configuration, bridge_name


def bridge_of(settings: ArmSettings, baseline: ArmSettings) -> str | None:
    """Name of the arm between the baseline and another arm; None where only the precision differs."""
    return bridge_name(baseline.in_force, settings.in_force, baseline.configuration.device)


def bridging_arms(
    configs: Mapping[str, ArmConfig], records: Mapping[str, ArmRecord], baseline: str
) -> dict[str, ArmConfig]:
    """The arms with the baseline's policy and a candidate's other settings, by name; none without a baseline."""
    found: dict[str, ArmConfig] = {}
    if baseline not in records:
        return found
    for name, record in records.items():
        arm = bridge_of(record.settings, records[baseline].settings)
        if arm is not None and name != files.CONTROL:
            settings = {
                "policy": configs[baseline].variant.policy,
                "xla": record.settings.in_force.xla,  # Keras may choose another with the policy
            }
            variant = configs[name].variant.model_copy(update=settings)
            found.setdefault(arm, replace(configs[name], variant=variant))
    return found


def check_configurations(baseline: str, configurations: Mapping[str, Configuration]) -> None:
    """Checks that all arms have the configuration of the baseline; does nothing without a baseline.

    Raises:
        ProfileError: an arm differs; the message has the settings that differ, with both values.
    """
    if baseline not in configurations:
        return
    expected = configurations[baseline].model_dump()
    for name, configuration in configurations.items():
        found = configuration.model_dump()
        differing = [
            f"{key} {found[key]} instead of {expected[key]}" for key in expected if found[key] != expected[key]
        ]
        if differing:
            raise ProfileError(
                f"profile: '{name}' does not run like '{baseline}' ({', '.join(differing)}); arms may differ only in "
                "their entries of variants: find what sets it, such as an environment variable or the model's code"
            )
