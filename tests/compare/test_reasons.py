"""Each reason: measurements on which it fires, and the nearest ones on which it does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.compare.arms import Arm, Operation, Profile, Training
from stages.compare.evidence import Measurements
from stages.compare.reasons import arm_failed, explain
from stages.speedup import Speedup

STEP = {"profiler/step_time_ms": 100.0}


def _profile(metrics: dict[str, float], operations: list[tuple[str, float, str]], device: str, **entry: Any) -> Profile:
    empty = pd.DataFrame()
    made = tuple(Operation(kind, f"model/{kind}", 1, ms, dtype) for kind, ms, dtype in operations)
    return Profile(
        empty, empty, empty, metrics, {"xla": False, "tf32": True} | entry, {"batch_size": 32}, made, (), device
    )


@dataclass(frozen=True)
class Case:
    """What differs from a healthy mixed_float16 candidate of twice the baseline's speed."""

    code: str
    fires: bool
    name: str
    after: dict[str, float] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    after_ops: list[tuple[str, float, str]] = field(default_factory=list)
    before_ops: list[tuple[str, float, str]] = field(default_factory=list)
    entry: dict[str, Any] = field(default_factory=dict)
    device: str = "CPU"
    ratio: float = 2.0
    batch_size: int = 32
    loss_scale: float | None = None
    instruction_sets: list[str] = field(default_factory=lambda: ["avx2"])

    def measurements(self) -> Measurements:
        after = _profile(self.after, self.after_ops, self.device, **({"policy": "mixed_float16"} | self.entry))
        after.configuration["batch_size"] = self.batch_size
        before = _profile(self.before, self.before_ops, self.device, policy="float32")
        metrics: dict[str, Any] = {"status": "finished"}
        if self.loss_scale is not None:
            metrics["loss_scale"] = self.loss_scale
        speedup = Speedup(((np.log(self.ratio),), (np.log(self.ratio) + 0.001,)))
        environment = {"cpu": {"instruction_sets": self.instruction_sets}}
        return Measurements(before, after, (Training(0, metrics),), speedup, environment)


SLOW: dict[str, Any] = {
    "ratio": 0.2,
    "after_ops": [("Conv2D", 50.0, "float16")],
    "before_ops": [("Conv2D", 10.0, "float32")],
}
BF16: dict[str, Any] = {"policy": "mixed_bfloat16"}
CASES = [
    Case("emulated_float16", True, "slower in float16", **SLOW),
    Case("emulated_float16", False, "bfloat16 is not float16", entry=BF16, **SLOW),
    Case("emulated_float16", False, "on a GPU", device="GPU", **SLOW),
    Case(
        "emulated_float16", True, "instructions that the kernels do not use", instruction_sets=["avx512_fp16"], **SLOW
    ),
    Case("emulated_float16", False, "not slower", **{**SLOW, "ratio": 1.1}),
    Case(
        "emulated_float16",
        False,
        "slower, but not in what moved",
        **{**SLOW, "after_ops": [("Conv2D", 9.0, "float16")]},
    ),
    Case("emulated_float16", False, "no operations to show for it", ratio=0.2),
    Case("onednn_differs", True, "off here", entry={"policy": "mixed_float16", "onednn": False}),
    Case("onednn_differs", False, "on in both", entry={"policy": "mixed_float16", "onednn": True}),
    Case("onednn_differs", False, "on a GPU", device="GPU", entry={"policy": "mixed_float16", "onednn": False}),
    Case("no_16bit_ops", True, "almost none", after={"profiler/compute_16bit_percent": 9.9}),
    Case("no_16bit_ops", False, "enough", after={"profiler/compute_16bit_percent": 10.0}),
    Case("no_16bit_ops", False, "not measured"),
    Case(
        "no_16bit_ops",
        False,
        "not asked for",
        after={"profiler/compute_16bit_percent": 0.0},
        entry={"policy": "float32"},
    ),
    Case("input_bound", True, "a fifth", after={**STEP, "profiler/input_ms": 20.0}),
    Case("input_bound", False, "less", after={**STEP, "profiler/input_ms": 19.9}),
    Case("input_bound", False, "no step", after={"profiler/input_ms": 20.0}),
    Case("kernel_launch_moderate", True, "3 %", after={**STEP, "profiler/kernel_launch_ms": 3.0}),
    Case("kernel_launch_moderate", False, "below", after={**STEP, "profiler/kernel_launch_ms": 2.9}),
    Case("kernel_launch_moderate", False, "high instead", after={**STEP, "profiler/kernel_launch_ms": 15.0}),
    Case("kernel_launch_high", True, "15 %", after={**STEP, "profiler/kernel_launch_ms": 15.0}),
    Case("kernel_launch_high", False, "below", after={**STEP, "profiler/kernel_launch_ms": 14.9}),
    Case(
        "model_too_small",
        True,
        "overhead",
        after={**STEP, "profiler/other_ms": 40.0, "profiler/kernel_launch_ms": 11.0},
    ),
    Case(
        "model_too_small", False, "half", after={**STEP, "profiler/other_ms": 40.0, "profiler/kernel_launch_ms": 10.0}
    ),
    Case("model_too_small", False, "not measured", after=STEP),
    Case("sizes_not_multiple_of_8", True, "30", device="GPU", batch_size=30),
    Case("sizes_not_multiple_of_8", False, "32", device="GPU", batch_size=32),
    Case("sizes_not_multiple_of_8", False, "on a CPU", batch_size=30),
    Case("baseline_is_tf32", True, "TF32 seen", device="GPU", before={"profiler/compute_tf32_percent": 80.0}),
    Case("baseline_is_tf32", False, "none seen", device="GPU", before={"profiler/compute_tf32_percent": 0.0}),
    Case("baseline_is_tf32", False, "not measured", device="GPU"),
    Case("xla_differs", True, "on here", entry={"xla": True}),
    Case("xla_differs", False, "off in both"),
    Case("cast_overhead", True, "5 %", after=STEP, after_ops=[("Cast", 5.0, "float32")]),
    Case("cast_overhead", False, "less", after=STEP, after_ops=[("Cast", 4.9, "float32")]),
    Case(
        "cast_overhead",
        False,
        "as much as before",
        after=STEP,
        after_ops=[("Cast", 9.0, "float32")],
        before_ops=[("Cast", 9.0, "uint8")],
    ),
    Case("loss_scale_collapse", True, "below 1", loss_scale=0.5),
    Case("loss_scale_collapse", False, "1", loss_scale=1.0),
    Case("loss_scale_collapse", False, "no scaling"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}-{case.name}")
def test_reason(case: Case) -> None:
    codes = [reason.code for reason in explain(case.measurements())]
    assert (case.code in codes) is case.fires


def test_a_healthy_candidate_has_no_reasons() -> None:
    assert explain(Case("", True, "healthy").measurements()) == ()


def test_evidence_holds_the_numbers_of_the_run() -> None:
    reason = explain(CASES[0].measurements())[0]
    assert reason.evidence["operations"] == [{"type": "Conv2D", "baseline_ms": 10.0, "float16_ms": 50.0}]
    assert reason.time_ms == pytest.approx(40.0)
    assert "Conv2D 10 → 50 ms" in reason.text


def test_reasons_come_in_the_order_of_the_time_they_explain() -> None:
    after = {**STEP, "profiler/input_ms": 25.0, "profiler/kernel_launch_ms": 5.0, "profiler/other_ms": 50.0}
    case = Case("", True, "many", after=after, entry={"xla": True})
    assert [reason.code for reason in explain(case.measurements())] == [
        "model_too_small",
        "input_bound",
        "kernel_launch_moderate",
        "xla_differs",
    ]


def test_arm_failed_names_seeds_and_causes_and_how_to_try_again() -> None:
    failed = {"status": "failed", "reason": "the loss is nan"}
    reason = arm_failed(
        Arm("fast", (Training(0, {"status": "finished"}), Training(1, failed), Training(2, failed)), None)
    )
    assert "2 of 3 trainings" in reason.text
    assert "seed 1, 2: the loss is nan" in reason.text
    assert "dvc repro -f -s train@fast-1 train@fast-2" in reason.advice
