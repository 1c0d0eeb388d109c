"""Records of an arm for tests."""

from __future__ import annotations

from stages.params import Variant
from stages.profile.records import ArmRecord, ArmSettings
from stages.results.profile import InForce
from tests.small_study import CONFIGURATION


def arm_record(policy: str = "float32") -> ArmRecord:
    """A record without times."""
    in_force = InForce(policy=policy, xla=False, tf32=True, onednn=True)
    return ArmRecord(Variant(policy=policy), ArmSettings(CONFIGURATION, in_force))  # type: ignore[arg-type]
