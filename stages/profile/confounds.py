"""Arms must differ in what their entries say, and in nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.errors import ProfileError
from stages.profile.records import ArmRecord


def refuse_differences(baseline: str, records: Mapping[str, ArmRecord]) -> None:
    """Refuses arms that were set up differently from the baseline in something that no entry of `variants` sets.

    Raises:
        ProfileError: names the arm, and each setting with both values.
    """
    if baseline not in records:
        return
    expected = records[baseline].configuration
    for name, record in records.items():
        differences = differing(expected, record.configuration)
        if differences:
            listed = ", ".join(f"{key} {found} instead of {wanted}" for key, wanted, found in differences)
            raise ProfileError(
                f"profile: '{name}' does not run as '{baseline}' does ({listed}), and arms may differ in their entry "
                "of variants alone: look for what sets it, as an environment variable or the model's code does"
            )


def differing(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Settings that differ: name, the value that is expected, the value that was found."""
    names = sorted(expected.keys() | found.keys())
    return [(name, expected.get(name), found.get(name)) for name in names if expected.get(name) != found.get(name)]
