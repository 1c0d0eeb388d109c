"""Each rule: measurements on which it fires, and the nearest ones on which it does not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from halfstep.compare.case import Case, SpeedupFactors
from halfstep.compare.rules.explain import explain
from halfstep.results.training import Training
from halfstep.words.text import TRAIN
from tests.small_study import (
    accounted,
    case_of,
    environment,
    given,
    measured_speedup,
    operation,
    profile,
    training_metrics,
)

STEP = {"profiler/step_time_ms": 100.0}
# Op type, ms a step, data type, and for an operation with a kernel whether on tensor cores.
OpRow = tuple[str, float, str] | tuple[str, float, str, bool | None]


@dataclass(frozen=True)
class RuleCase:
    """What differs from a mixed_float16 candidate without problems, of twice the baseline's speed."""

    code: str
    fires: bool
    name: str
    after: dict[str, float] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    after_ops: list[OpRow] = field(default_factory=list)
    before_ops: list[OpRow] = field(default_factory=list)
    policy: str = "mixed_float16"
    before_policy: str = "float32"
    entry: dict[str, Any] = field(default_factory=dict)
    before_entry: dict[str, Any] = field(default_factory=dict)
    in_force: dict[str, Any] = field(default_factory=dict)
    before_in_force: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    device: str = "CPU"
    ratio: float = 2.0
    capability: str | None = "8.0"
    gpu: str = "NVIDIA A100-SXM4-40GB"
    min_speedup: float = 1.05
    loss_scale: float | None = None
    skipped_share: float | None = None
    precision: float | None = None  # its factor, if other settings have one
    instruction_sets: tuple[str, ...] = ("avx2",)

    def measured(self) -> Case:
        after = profile(
            self.after,
            [_operation(*row) for row in self.after_ops],
            policy=self.policy,
            device=self.device,
            entry=self.entry,
            in_force=self.in_force,
            configuration=self.configuration,
        )
        before = profile(
            self.before,
            [_operation(*row) for row in self.before_ops],
            policy=self.before_policy,
            device=self.device,
            entry=self.before_entry,
            in_force=self.before_in_force,
        )
        speedup = measured_speedup(self.ratio, 0.0005, -0.0005)
        gpu = {"name": self.gpu} | ({"compute_capability": self.capability} if self.capability else {})
        precision = self.precision and measured_speedup(self.precision, 0.0005, -0.0005)
        without_account = case_of(
            before,
            after,
            speedup,
            environment(*self.instruction_sets, gpu=gpu if self.device == "GPU" else None),
            trainings=(Training(0, training_metrics(loss_scale=self.loss_scale, skipped_share=self.skipped_share)),),
            classes=10,
            min_speedup=self.min_speedup,
            factors={TRAIN: SpeedupFactors(speedup, precision)} if precision else {},
        )
        return accounted(without_account)


def _operation(op_type: str, time_ms: float, dtype: str, *tensor_core: bool | None) -> Any:
    return operation(op_type, time_ms, dtype, tensor_core=next(iter(tensor_core), None))


SLOW: dict[str, Any] = {
    "ratio": 0.18,
    "after_ops": [("Conv2D", 50.0, "float16")],
    "before_ops": [("Conv2D", 10.0, "float32")],
}
SLOW_CONVOLUTION: OpRow = ("Conv2D", 20.0, "float32")
SAME: dict[str, Any] = {
    "ratio": 0.95,
    "after_ops": [("Conv2D", 9.5, "bfloat16"), ("Transpose", 0.9, "float32")],
    "before_ops": [("Conv2D", 10.0, "float32")],
}
FASTER_ONES: tuple[OpRow, ...] = (("Conv2D", 30.0, "float16"), ("Mean", 22.0, "float32"))
ONE_SLOWER: dict[str, Any] = {
    "ratio": 0.9,
    "before_ops": [("Conv2D", 60.0, "float32"), ("BiasAddGrad", 2.0, "float32")],
    "after_ops": [*FASTER_ONES, ("BiasAddGrad", 17.0, "float16")],
}
ONE_SLOWER_IN_ALL_FASTER = {**ONE_SLOWER, "ratio": 62 / 47, "after_ops": [FASTER_ONES[0], ONE_SLOWER["after_ops"][-1]]}
A_LITTLE_SLOWER = {**ONE_SLOWER, "ratio": 62 / 55, "after_ops": [*FASTER_ONES, ("BiasAddGrad", 3.0, "float16")]}
SLOWER_IN_FLOAT32 = {**ONE_SLOWER, "after_ops": [*FASTER_ONES, ("BiasAddGrad", 17.0, "float32")]}
CONTRADICTION: dict[str, Any] = {
    "ratio": 0.95,
    "after_ops": [("Conv2D", 50.0, "bfloat16"), ("Cast", 6.0, "float32"), ("Relu", 30.0, "float32")],
    "before_ops": [("Conv2D", 50.0, "float32"), ("Relu", 50.0, "float32")],
}
BF16, FP32 = "mixed_bfloat16", "float32"
HAS_BF16 = ("avx512_bf16",)
COMPILED: dict[str, Any] = {
    **SAME,
    "policy": BF16,
    "instruction_sets": HAS_BF16,
    "in_force": {"xla": True},
}
NO_16BIT = {"profiler/compute_16bit_percent": 0.0}
MIXED = {"profiler/compute_16bit_percent": 40.0}
TF32 = {"profiler/compute_tf32_percent": 80.0}
BATCH_30: dict[str, Any] = {"in_force": {"batch_size": 30}}
IN_TF32: dict[str, Any] = {"device": "GPU", "policy": FP32}
BUSY: list[OpRow] = [("Conv2D", 30.0, "float16", True)]
IDLE: list[OpRow] = [("Conv2D", 30.0, "float16", False)]
SHARES = {"profiler/matrix_percent": 70.0, "profiler/tensor_core_percent": 0.0}


def _shares(on_cores: float, unknown: float = 0.0) -> dict[str, float]:
    return SHARES | {"profiler/tensor_core_percent": on_cores, "profiler/tensor_core_unknown_percent": unknown}


TRACED = {
    **STEP,
    "profiler/device_compute_ms": 100.0,
    "profiler/matrix_percent": 60.0,
    "profiler/memory_bound_percent": 30.0,
}
CONVOLUTION: OpRow = ("Conv2D", 300.0, "float32")
FASTER: OpRow = ("Conv2D", 90.0, "float16")
CAST_5, CAST_4 = ("Cast", 5.0, "float32"), ("Cast", 4.9, "float32")
CASES = [
    RuleCase("emulated_float16", True, "slower in float16", **SLOW),
    RuleCase("emulated_float16", False, "bfloat16 is not float16", policy=BF16, **SLOW),
    RuleCase("emulated_float16", False, "on a GPU", device="GPU", **SLOW),
    RuleCase("emulated_float16", False, "not slower", **{**SLOW, "ratio": 1.1}),
    RuleCase(
        "emulated_float16",
        False,
        "slower, but not in operations that moved",
        **{**SLOW, "after_ops": [("Conv2D", 9.0, "float16")]},
    ),
    RuleCase("slow_16bit_ops", True, "as slow as before", policy=BF16, instruction_sets=HAS_BF16, **SAME),
    RuleCase("no_16bit_instructions", True, "bfloat16 without instructions", policy=BF16, **SAME),
    RuleCase("no_16bit_instructions", False, "XLA compiles it alone", policy=BF16, ratio=0.5, in_force={"xla": True}),
    RuleCase(
        "no_16bit_instructions",
        True,
        "XLA compiles it alone, and its part is known",
        policy=BF16,
        ratio=0.5,
        precision=0.9,
        in_force={"xla": True},
    ),
    RuleCase("no_16bit_instructions", True, "float16 that the traces do not explain", **{**SLOW, "ratio": 0.5}),
    RuleCase("no_16bit_instructions", False, "with instructions", policy=BF16, instruction_sets=("amx_bf16",), **SAME),
    RuleCase("no_16bit_instructions", False, "unknown instructions", policy=BF16, instruction_sets=(), **SAME),
    RuleCase("no_16bit_instructions", False, "may be worth having", policy=BF16, **{**SAME, "ratio": 1.06}),
    RuleCase(
        "slow_16bit_ops",
        False,
        "worth having as a whole",
        policy=BF16,
        instruction_sets=HAS_BF16,
        **{**SAME, "ratio": 1.1},
    ),
    RuleCase(
        "slow_16bit_ops",
        False,
        "faster in the traces, slower in the timing",
        policy=BF16,
        instruction_sets=HAS_BF16,
        **CONTRADICTION,
    ),
    RuleCase("cast_overhead", False, "faster in the traces, slower in the timing", policy=BF16, **CONTRADICTION),
    RuleCase("emulated_float16", False, "slower by other settings", precision=1.01, **SLOW),
    RuleCase(
        "slow_16bit_ops",
        False,
        "slower by other settings",
        precision=1.1,
        policy=BF16,
        instruction_sets=HAS_BF16,
        **SAME,
    ),
    RuleCase(
        "slow_16bit_ops",
        False,
        "faster in operations that moved",
        policy=BF16,
        instruction_sets=HAS_BF16,
        **{**SAME, "before_ops": [SLOW_CONVOLUTION]},
    ),
    RuleCase("slow_16bit_ops", False, "compiled by XLA, other than the baseline", **COMPILED),
    RuleCase("slow_16bit_ops", True, "compiled by XLA, as the baseline", before_in_force={"xla": True}, **COMPILED),
    RuleCase("slower_in_16bit", True, "one operation", device="GPU", **ONE_SLOWER),
    RuleCase("slower_in_16bit", True, "although all together gain", device="GPU", **ONE_SLOWER_IN_ALL_FASTER),
    RuleCase("slower_in_16bit", False, "by less than 5 % of the step", device="GPU", **A_LITTLE_SLOWER),
    RuleCase("slower_in_16bit", False, "it stays in float32", device="GPU", **SLOWER_IN_FLOAT32),
    RuleCase("slower_in_16bit", False, "XLA compiles it alone", device="GPU", in_force={"xla": True}, **ONE_SLOWER),
    RuleCase("onednn_differs", True, "off", entry={"onednn": False}),
    RuleCase(
        "onednn_differs",
        False,
        "off in both, as the environment sets it",
        entry={"onednn": False},
        before_in_force={"onednn": False},
    ),
    RuleCase("onednn_differs", False, "on a GPU", device="GPU", entry={"onednn": False}),
    RuleCase("no_16bit_ops", True, "almost none", after={"profiler/compute_16bit_percent": 9.9}),
    RuleCase("no_16bit_ops", False, "enough", after={"profiler/compute_16bit_percent": 10.0}),
    RuleCase(
        "no_16bit_ops", False, "not shown by the names", after=NO_16BIT | {"profiler/compute_unknown_percent": 10.0}
    ),
    RuleCase("no_16bit_ops", True, "shown by most names", after=NO_16BIT | {"profiler/compute_unknown_percent": 9.9}),
    RuleCase("no_16bit_ops", False, "hardware for it", after=NO_16BIT, policy=FP32, instruction_sets=HAS_BF16),
    RuleCase("no_16bit_ops", False, "hardware for it on a GPU", after=NO_16BIT, policy=FP32, device="GPU"),
    RuleCase("no_16bit_ops", False, "old GPU", after=NO_16BIT, policy=FP32, device="GPU", capability="6.1"),
    RuleCase("no_tensor_cores", True, "6.1", device="GPU", capability="6.1"),
    RuleCase("no_tensor_cores", False, "7.0", device="GPU", capability="7.0"),
    RuleCase("no_tensor_cores", True, "7.5 with bfloat16", device="GPU", capability="7.5", policy=BF16),
    RuleCase("no_tensor_cores", False, "not reported by the driver", device="GPU", capability=None),
    RuleCase("no_tensor_cores", True, "7.5 without", device="GPU", capability="7.5", gpu="NVIDIA GeForce GTX 1660 Ti"),
    RuleCase("no_tensor_cores", False, "7.5, unknown", device="GPU", capability="7.5", gpu="Quadro T1000"),
    RuleCase("no_tensor_cores", False, "on a CPU", capability="6.1"),
    RuleCase(
        "tensor_cores_idle", True, "a quarter", device="GPU", after_ops=[*BUSY, ("MatMul", 10.0, "float16", False)]
    ),
    RuleCase("tensor_cores_idle", False, "less", device="GPU", after_ops=[*BUSY, ("MatMul", 9.9, "float16", False)]),
    RuleCase("tensor_cores_idle", False, "no tensor cores", device="GPU", capability="6.1", after_ops=IDLE),
    RuleCase("tensor_cores_idle", False, "on a CPU", after_ops=IDLE),
    RuleCase("tensor_cores_idle", False, "unknown", device="GPU", after_ops=[*BUSY, ("MatMul", 29.0, "float16", None)]),
    RuleCase(
        "tensor_cores_idle",
        True,
        "half unknown",
        device="GPU",
        after_ops=[*IDLE, ("MatMul", 30.0, "float16", None)],
    ),
    RuleCase(
        "tensor_cores_idle",
        False,
        "more unknown",
        device="GPU",
        after_ops=[*IDLE, ("MatMul", 31.0, "float16", None)],
    ),
    RuleCase("tensor_cores_idle", True, "by shares", device="GPU", after=_shares(on_cores=45.0)),
    RuleCase("tensor_cores_idle", False, "less by shares", device="GPU", after=_shares(on_cores=46.0)),
    RuleCase("layout_changes", True, "5 %", device="GPU", after={"profiler/layout_percent": 5.0}),
    RuleCase("layout_changes", False, "less", device="GPU", after={"profiler/layout_percent": 4.9}),
    RuleCase("layout_changes", True, "in the baseline", device="GPU", before={"profiler/layout_percent": 5.0}),
    RuleCase("mostly_32bit_ops", True, "half", after=MIXED | {"profiler/compute_32bit_percent": 50.0}),
    RuleCase("mostly_32bit_ops", False, "less", after=MIXED | {"profiler/compute_32bit_percent": 49.9}),
    RuleCase("mostly_32bit_ops", False, "nothing in 16 bit", after=NO_16BIT | {"profiler/compute_32bit_percent": 99.0}),
    RuleCase("memory_bound", True, "half", before={"profiler/memory_bound_percent": 50.0}),
    RuleCase("memory_bound", False, "less", before={"profiler/memory_bound_percent": 49.9}),
    RuleCase("memory_bound", False, "after the change", after={"profiler/memory_bound_percent": 90.0}),
    # limit: 100 / (10 + 60 / 16 + 30 / 2) = 3.48, 90 % of which is 3.13; the interval is 0.6 % to both sides
    RuleCase("at_limit", True, "reached", before=TRACED, device="GPU", ratio=3.16),
    RuleCase("at_limit", False, "reached by the upper end only", before=TRACED, device="GPU", ratio=3.14),
    RuleCase("at_limit", False, "unknown GPU", before=TRACED, device="GPU", ratio=20.0, gpu="NVIDIA X1"),
    RuleCase("at_limit", True, "below min_speedup", before=TRACED, device="GPU", min_speedup=3.5),
    RuleCase("input_bound", False, "in the trace only", after={**STEP, "profiler/input_ms": 50.0}),
    RuleCase("kernel_launch_moderate", True, "3 %", after={**STEP, "profiler/kernel_launch_ms": 3.0}),
    RuleCase("kernel_launch_moderate", False, "below", after={**STEP, "profiler/kernel_launch_ms": 2.9}),
    RuleCase("kernel_launch_high", True, "15 %", after={**STEP, "profiler/kernel_launch_ms": 15.0}),
    RuleCase("kernel_launch_high", False, "below", after={**STEP, "profiler/kernel_launch_ms": 14.9}),
    RuleCase(
        "model_too_small",
        True,
        "overhead",
        after={**STEP, "profiler/other_ms": 40.0, "profiler/kernel_launch_ms": 11.0},
    ),
    RuleCase(
        "model_too_small", False, "half", after={**STEP, "profiler/other_ms": 40.0, "profiler/kernel_launch_ms": 10.0}
    ),
    RuleCase("sizes_not_multiple_of_8", True, "30", device="GPU", in_force={"batch_size": 30}),
    RuleCase("sizes_not_multiple_of_8", False, "on a CPU", in_force={"batch_size": 30}),
    RuleCase("sizes_not_multiple_of_8", False, "no tensor cores", device="GPU", capability="6.1", **BATCH_30),
    RuleCase("sizes_not_multiple_of_8", False, "TF32 needs multiples of 4", in_force={"batch_size": 36}, **IN_TF32),
    RuleCase("sizes_not_multiple_of_4", True, "30 in TF32", **BATCH_30, **IN_TF32),
    RuleCase("sizes_not_multiple_of_4", False, "in float32", entry={"tf32": False}, **BATCH_30, **IN_TF32),
    RuleCase("sizes_not_multiple_of_4", False, "on Volta", capability="7.0", gpu="Tesla V100", **BATCH_30, **IN_TF32),
    RuleCase("sizes_not_multiple_of_8", True, "channels", device="GPU", configuration={"layer_widths": (16, 20)}),
    RuleCase(
        "sizes_not_multiple_of_8",
        False,
        "images, classes and depthwise kernels",
        device="GPU",
        configuration={"layer_widths": (1, 3, 10, 16)},
    ),
    RuleCase("baseline_is_tf32", True, "some TF32", device="GPU", before=TF32),
    RuleCase("baseline_is_tf32", False, "no TF32", device="GPU", before={"profiler/compute_tf32_percent": 0.0}),
    RuleCase("baseline_is_tf32", False, "switched off", device="GPU", before=TF32, before_entry={"tf32": False}),
    RuleCase("baseline_is_tf32", True, "unknown", device="GPU", before={"profiler/tensor_core_unknown_percent": 10.0}),
    RuleCase(
        "baseline_is_tf32",
        False,
        "unknown on Turing, which has no TF32",
        device="GPU",
        capability="7.5",
        gpu="Tesla T4",
        before={"profiler/tensor_core_unknown_percent": 90.0},
    ),
    RuleCase(
        "baseline_is_tf32",
        False,
        "not a float32 baseline",
        device="GPU",
        before={"profiler/compute_tf32_percent": 5.0},
        before_policy=BF16,
    ),
    RuleCase("xla_differs", True, "on", entry={"xla": True}),
    RuleCase(
        "xla_differs",
        True,
        "requested but not in force",
        entry={"xla": True},
        before_entry={"xla": True},
        in_force={"xla": False},
    ),
    RuleCase("xla_differs", False, "on in both", entry={"xla": True}, before_entry={"xla": True}),
    RuleCase("xla_differs", False, "left to Keras, on in both", in_force={"xla": True}, before_in_force={"xla": True}),
    RuleCase("xla_differs", True, "left to Keras, on in this variant only", in_force={"xla": True}, ratio=1.0),
    RuleCase("cast_overhead", True, "5 %", after=STEP, after_ops=[FASTER, CAST_5], before_ops=[CONVOLUTION]),
    RuleCase("cast_overhead", False, "less", after=STEP, after_ops=[FASTER, CAST_4], before_ops=[CONVOLUTION]),
    RuleCase(
        "cast_overhead",
        False,
        "as much as before",
        after=STEP,
        after_ops=[FASTER, ("Cast", 9.0, "float32")],
        before_ops=[CONVOLUTION, ("Cast", 9.0, "uint8")],
    ),
    RuleCase("loss_scale_collapse", True, "below 1", loss_scale=0.5),
    RuleCase("loss_scale_collapse", False, "1", loss_scale=1.0),
    RuleCase("steps_skipped", True, "6 %", skipped_share=0.06),
    RuleCase("steps_skipped", False, "5 %", skipped_share=0.05),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}-{case.name}")
def test_reason(case: RuleCase) -> None:
    codes = [reason.code for reason in explain(case.measured())]
    assert (case.code in codes) is case.fires


@pytest.mark.parametrize("name", ["hardware for it", "hardware for it on a GPU"])
def test_hardware_that_is_not_used_is_a_reason_of_the_baseline_alone(name: str) -> None:
    (case,) = [item for item in CASES if item.name == name]
    assert "no_16bit_ops" in [reason.code for reason in explain(given(case.measured(), baseline=None))]


PARTS = ("compute_ms", "launch_ms", "input_ms", "other_ms")
OF_THE_PARTS = {"input_bound", "kernel_launch_moderate", "kernel_launch_high", "model_too_small"}
OF_THE_TRACE = {*OF_THE_PARTS, "slow_16bit_ops", "tensor_cores_idle", "no_16bit_ops", "mostly_32bit_ops"}
OF_THE_TRACE |= {"memory_bound", "at_limit", "cast_overhead", "layout_changes"}


def test_a_trace_without_parts_or_steps_gives_no_reasons_of_them() -> None:
    """xprof may not find the steps of a trace, and a trace without a marked step is not used."""
    for case in CASES:
        without_parts, unused = _without(case, PARTS), _without(case, (*PARTS, "_percent", "step_time_ms"))
        unused = replace(unused, after_ops=[], before_ops=[])
        assert not OF_THE_PARTS & {reason.code for reason in explain(without_parts.measured())}, case.name
        assert not OF_THE_TRACE & {reason.code for reason in explain(unused.measured())}, case.name


def _without(case: RuleCase, endings: tuple[str, ...]) -> RuleCase:
    after, before = (
        {name: value for name, value in metrics.items() if not name.endswith(endings)}
        for metrics in (case.after, case.before)
    )
    return replace(case, after=after, before=before)


@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_candidate_without_problems_has_no_reasons(device: str) -> None:
    assert explain(RuleCase("", True, "healthy", device=device).measured()) == ()


def test_reason_contains_the_numbers() -> None:
    reason = explain(CASES[0].measured())[0]
    assert reason.evidence["operations"] == [{"type": "Conv2D", "baseline_ms": 10.0, "candidate_ms": 50.0}]
    assert reason.evidence["delta_ms"] == pytest.approx(40.0, abs=0.01)
    assert 0 < reason.evidence["low_ms"] < 40 < reason.evidence["high_ms"]
    assert reason.time_ms == reason.evidence["delta_ms"]
    assert "40.0 ms more than in the baseline (39" in reason.text
    assert "Conv2D 10.0 → 50.0 ms" in reason.text


def test_different_choices_of_keras_are_said_whatever_their_effect() -> None:
    reasons = explain(RuleCase("", True, "off", before_in_force={"xla": True}).measured())
    (reason,) = (item for item in reasons if item.code == "xla_differs" and "leave it to Keras" in item.text)
    assert reason.text == (
        "XLA is off in this variant and on in the baseline, although both entries leave it to Keras (xla: null): their "
        "models differ."
    )
    assert reason.evidence == {"baseline_xla": True, "candidate_xla": False}
    assert "LSTM and GRU of cuDNN" in reason.advice
    assert "xla: false in both entries" in reason.advice


@pytest.mark.parametrize("xla", [False, True])
def test_xla_is_advised_only_where_it_is_off(xla: bool) -> None:
    settings = {"xla": xla}
    after = {**STEP, "profiler/kernel_launch_ms": 3.0}
    before = {"profiler/memory_bound_percent": 50.0}
    case = RuleCase("", True, "", after=after, before=before, in_force=settings, before_in_force=settings)
    advice = {reason.code: reason.advice for reason in explain(case.measured())}
    for code in ("kernel_launch_moderate", "memory_bound"):
        assert ("xla: true" in advice[code]) is not xla


def test_reasons_are_ordered_by_the_time_they_explain() -> None:
    after = {**STEP, "profiler/kernel_launch_ms": 5.0, "profiler/other_ms": 50.0}
    case = RuleCase("", True, "many", after=after, entry={"xla": True})
    assert [reason.code for reason in explain(case.measured())] == [
        "model_too_small",
        "kernel_launch_moderate",
        "xla_differs",
    ]
