"""Arms, and the record of one, for tests."""

from __future__ import annotations

from halfstep.params.schema import Variant
from halfstep.profile.records import ArmRecord, ArmSettings
from halfstep.system import files
from tests.small_study import CONFIGURATION, settings_in_force

# The last variant also differs in a setting, so that a bridging arm is measured with it.
ENTRIES = {
    "float32": Variant(policy="float32"),
    "mixed_bfloat16": Variant(policy="mixed_bfloat16"),
    "mixed_float16": Variant(policy="mixed_float16", onednn=False),
}
BRIDGE = f"{files.BRIDGE_PREFIX}onednn_off"
ARMS = [*ENTRIES, files.CONTROL, BRIDGE]


def arm_record(policy: str = "float32") -> ArmRecord:
    """A record without times."""
    return ArmRecord(Variant(policy=policy), ArmSettings(CONFIGURATION, settings_in_force(policy)))
