"""The text, numbers and advice of reasons, and the measurements that this project started from."""

from __future__ import annotations

from typing import Any

import pytest

from halfstep.compare.case import Case, Judging
from halfstep.compare.document import judged
from halfstep.compare.rules.explain import explain
from halfstep.compare.rules.training import arm_failed
from halfstep.compare.study import VariantResult
from halfstep.params.schema import CompareParams
from halfstep.results.comparison import Reason
from halfstep.results.profile import AccountRow, Profile
from halfstep.results.training import Training
from tests.small_study import (
    SmallStudy,
    accounted,
    case_of,
    environment,
    given,
    measured_speedup,
    operation,
    profile,
    training_metrics,
)

A100 = environment(gpu={"name": "NVIDIA A100-SXM4-40GB", "compute_capability": "8.0"})
GPU_OF_UNKNOWN_CAPABILITY = environment(gpu={"name": "unknown"})
CPU = environment("avx2")
SLOW = measured_speedup(0.18, 0.0005, -0.0005)
MEASURED = {
    "profiler/step_time_ms": 631.0,
    "profiler/device_compute_ms": 590.0,
    "profiler/kernel_launch_ms": 23.0,
    "profiler/other_ms": 18.0,
    "profiler/input_ms": 0.0,
    "profiler/compute_16bit_percent": 0.0,
}


def _case(before: Profile, after: Profile, machine: dict[str, Any], **changes: Any) -> Case:
    return case_of(before, after, measured_speedup(1.01, 0.001, -0.001), machine, **changes)


def _slow_case(before: Profile, after: Profile, machine: dict[str, Any]) -> Case:
    """A candidate that takes 5.6 times as long, in the timing and in the traces."""
    return accounted(case_of(before, after, SLOW, machine))


def _explain_alone(
    profile: Profile, machine: dict[str, Any], rejected: tuple[str, ...] = (), classes: int | None = None
) -> tuple[Reason, ...]:
    return explain(Case.alone(profile, machine, rejected, classes))


@pytest.mark.parametrize("machine", [A100, GPU_OF_UNKNOWN_CAPABILITY])
def test_step_of_631_ms_without_16_bit(machine: dict[str, Any]) -> None:
    reasons = {reason.code: reason for reason in _explain_alone(profile(MEASURED, device="GPU"), machine)}
    assert list(reasons) == ["no_16bit_ops", "kernel_launch_moderate"]
    assert reasons["no_16bit_ops"].evidence["speedup_if_compute_faster"] == {
        "3_times": pytest.approx(2.65, abs=0.006),
        "8_times": pytest.approx(5.5, abs=0.005),
        "free": pytest.approx(15.4, abs=0.05),
    }
    assert "at 2.65× the speed, with 8 times at 5.5×, and at 15.4× at most" in reasons["no_16bit_ops"].text
    assert "mixed_float16" in reasons["no_16bit_ops"].advice
    assert "TF_GPU_THREAD_MODE=gpu_private" in reasons["kernel_launch_moderate"].advice


def test_thread_mode_is_advised_only_on_a_gpu_that_does_not_use_it() -> None:
    launch = {"profiler/step_time_ms": 100.0, "profiler/kernel_launch_ms": 20.0}
    private = A100 | {"settings": {"TF_GPU_THREAD_MODE": "gpu_private"}}
    for device, machine in (("GPU", private), ("CPU", CPU)):
        (reason,) = _explain_alone(profile(launch, device=device), machine)
        assert "TF_GPU_THREAD_MODE" not in reason.advice
        assert "train.batch_size" in reason.advice


def test_32bit_time_is_given_by_part_of_the_network() -> None:
    rows = [
        AccountRow(0, "normalization", "bn_1", "BatchNormalization", "Mul", "float32", 2.0),
        AccountRow(0, "memory", "norm", "OwnLayer", "Sub", "float32", 1.0),
        operation("_MklSoftmax", 0.5, "float32", name="model/probabilities/Softmax"),
        operation("Sqrt", 4.0, "float32", name="StatefulPartitionedCall/cond/then/_52/cond/adam/Sqrt_3"),
        operation("AddN", 0.125, "float32", name="AddN_5"),
        operation("Cast", 0.5, "float32", name="model/batch_normalization_1/Cast"),
        operation("Conv2D", 3.0, "float16", name="model/conv/convolution"),
    ]
    shares = {"profiler/compute_16bit_percent": 30.0, "profiler/compute_32bit_percent": 70.0}
    metrics = {"profiler/step_time_ms": 25.0, "profiler/host_compute_ms": 20.0, **shares}
    (reason,) = explain(_case(profile(), profile(metrics, rows, policy="mixed_bfloat16"), CPU))
    assert reason.code == "mostly_32bit_ops"
    assert reason.time_ms == pytest.approx(14.0)
    assert {row["type"]: row["time_ms"] for row in reason.evidence["operations"]} == {
        "optimizer": 4.0,
        "normalization": 3.0,
        "softmax": 0.5,
        "AddN": 0.125,
    }
    assert "optimizer 4.00 ms, normalization 3.00 ms" in reason.text


def test_idle_tensor_cores_are_told_by_operation() -> None:
    rows = [
        operation("Conv2D", 30.0, "float16", name="model/a/convolution", tensor_core=True),
        operation("DepthwiseConv2dNative", 20.0, "float16", name="model/b/depthwise", tensor_core=False),
    ]
    after = profile(operations=rows, policy="mixed_float16", device="GPU")
    (reason,) = explain(_case(profile(device="GPU"), after, A100))
    assert reason.code == "tensor_cores_idle"
    assert reason.evidence["idle_ms"] == reason.time_ms == 20.0
    assert reason.evidence["matrix_ms"] == 50.0
    assert "DepthwiseConv2dNative 20.0 ms" in reason.text


@pytest.mark.parametrize(
    ("dtype", "advice", "other"),
    [
        ("float32", "Remove dtypes that are set on single layers", "multiples of 8"),
        ("float16", "Make channels and train.batch_size multiples of 8.", "float32"),
    ],
)
def test_advice_on_idle_tensor_cores_follows_the_type_of_the_kernels(dtype: str, advice: str, other: str) -> None:
    rows = [operation("Conv2D", 30.0, dtype, tensor_core=False), operation("MatMul", 10.0, "float16", tensor_core=None)]
    after = profile(operations=rows, policy="mixed_float16", device="GPU")
    reasons = explain(_case(profile(device="GPU"), after, A100))
    reason = next(item for item in reasons if item.code == "tensor_cores_idle")
    assert advice in reason.advice
    assert other not in reason.advice
    assert "unknown" in reason.text


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"profiler/compute_tf32_percent": 80.0}, "float32 here means TF32 on tensor cores"),
        ({"profiler/tensor_core_unknown_percent": 80.0}, "may mean TF32"),
    ],
)
def test_tf32_of_the_baseline_is_named(shares: dict[str, float], said: str) -> None:
    reasons = explain(_case(profile(shares, device="GPU"), profile(policy="mixed_float16", device="GPU"), A100))
    reason = next(item for item in reasons if item.code == "baseline_is_tf32")
    assert said in reason.text
    assert "tf32: false" in reason.advice


def test_odd_batch_size_is_named_with_the_next_multiple_of_8() -> None:
    widths = {"layer_widths": (20, 32, 20)}
    odd = profile(policy="mixed_float16", device="GPU", configuration=widths, in_force={"batch_size": 6})
    (reason,) = _explain_alone(odd, A100)
    assert reason.evidence == {"batch_size": 6, "layer_widths": [20]}
    assert "train.batch_size to 8." in reason.advice


def test_number_of_classes_is_no_odd_size() -> None:
    odd = profile(policy="mixed_float16", device="GPU", configuration={"layer_widths": (10, 32)})
    assert [reason.code for reason in _explain_alone(odd, A100)] == ["sizes_not_multiple_of_8"]
    assert _explain_alone(odd, A100, classes=10) == ()


def test_limit_below_min_speedup_is_named() -> None:
    work = {"profiler/device_compute_ms": 10.0, "profiler/matrix_percent": 50.0, "profiler/memory_bound_percent": 0.0}
    before = profile({"profiler/step_time_ms": 100.0, **work}, device="GPU")
    after = profile(policy="mixed_float16", device="GPU")
    (reason,) = explain(_case(before, after, A100, min_speedup=1.05))
    assert reason.evidence["limit"] == pytest.approx(100 / (95 + 5 / 16))
    assert "you asked for 1.05×" in reason.text
    assert "compare.min_speedup" in reason.advice


def test_arm_failed_names_seeds_causes_and_the_command() -> None:
    failed = training_metrics(status="failed", reason="the loss is nan")
    trainings = (Training(0, training_metrics()), Training(1, failed), Training(2, failed))
    never = arm_failed(VariantResult("fast", trainings, None), left_out="own.py, line 3: no float16")
    assert never.text == "The candidate fast cannot be trained: own.py, line 3: no float16."
    assert never.advice.endswith("and run `dvc repro`; or take fast out of train.variants.")
    reason = arm_failed(VariantResult("fast", trainings, None))
    assert "2 of 3 trainings" in reason.text
    assert "seed 1, 2: the loss is nan" in reason.text
    assert "dvc repro -f -s train@fast-1 train@fast-2" in reason.advice


def test_fused_operations_of_two_libraries_count_as_moved_to_float16() -> None:
    before = profile(operations=[operation("_MklNativeFusedMatMul", 10.0, "float32")])
    after = profile(operations=[operation("_FusedMatMul", 50.0, "float16")], policy="mixed_float16")
    (reason,) = explain(_slow_case(before, after, CPU))
    assert reason.code == "emulated_float16"
    assert reason.evidence["operations"] == [{"type": "MatMul", "baseline_ms": 10.0, "candidate_ms": 50.0}]


def test_comparison_explains_its_baseline_and_its_candidates(comparison: Judging) -> None:
    of_baseline = [reason.code for reason in comparison.baseline_reasons]
    assert of_baseline == ["step_overhead"]  # mixed_bfloat16 need not be advised: it is one of the candidates
    codes = {item.variant: [reason.code for reason in item.reasons] for item in comparison.cases}
    assert codes == {
        "mixed_float16": ["emulated_float16", "cast_overhead", "onednn_differs", "onednn_differs", "onednn_differs"],
        "mixed_bfloat16": ["at_limit", "step_overhead"],
        "float16": ["arm_failed"],
    }


@pytest.mark.parametrize(
    ("instruction_sets", "rejected", "advised"),
    [
        (("avx512_bf16",), (), True),
        (("amx_bf16",), (), True),
        (("asimd", "bf16"), (), True),
        (("avx2",), (), False),
        (("asimd",), (), False),
        (("avx512_bf16",), ("mixed_bfloat16",), False),
    ],
)
def test_bfloat16_is_advised_only_where_it_may_pay(
    instruction_sets: tuple[str, ...], rejected: tuple[str, ...], advised: bool
) -> None:
    """On a CPU with the instructions, in a report that does not reject it."""
    machine = environment(*instruction_sets)
    before, after = (
        profile({}, [operation("Conv2D", ms, dtype)], policy=policy)
        for ms, dtype, policy in ((10.0, "float32", "float32"), (50.0, "float16", "mixed_float16"))
    )
    slow = measured_speedup(0.2, 0.0005, -0.0005)
    trainings = (Training(0, training_metrics(loss_scale=0.5)),)
    case = accounted(case_of(before, after, slow, machine, trainings=trainings, min_speedup=1.05))
    advice = {reason.code: reason.advice for reason in explain(given(case, judged_policies=rejected))}
    assert ("mixed_bfloat16" in advice["emulated_float16"]) is advised
    assert ("mixed_bfloat16" in advice["loss_scale_collapse"]) is advised
    alone = profile({"profiler/compute_16bit_percent": 0.0})
    assert ("no_16bit_ops" in [item.code for item in _explain_alone(alone, machine, rejected)]) is advised


def test_policy_that_is_no_candidate_is_advised(project: SmallStudy) -> None:
    judging = judged(project.load(variants=("float32", "mixed_float16")), CompareParams())
    reason = next(reason for reason in judging.baseline_reasons if reason.code != "step_overhead")
    assert (reason.code, reason.advice) == ("no_16bit_ops", "Try a variant with policy: mixed_bfloat16.")
