"""What reasons say and show, and the case that this project grew from."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from stages.compare.arms import Arm, Operation, Profile, Training
from stages.compare.comparison import Comparison
from stages.compare.evidence import Measurements
from stages.compare.reasons import arm_failed, explain, explain_profile
from stages.speedup import Speedup

GPU = {"gpus": [{"name": "A100", "compute_capability": "8.0"}]}
STORY = {
    "profiler/step_time_ms": 631.0,
    "profiler/device_compute_ms": 590.0,
    "profiler/kernel_launch_ms": 23.0,
    "profiler/other_ms": 18.0,
    "profiler/input_ms": 0.0,
    "profiler/compute_16bit_percent": 0.0,
}


def _profile(metrics: dict[str, float], policy: str = "float32", device: str = "GPU", *rows: Operation) -> Profile:
    empty = pd.DataFrame()
    return Profile(empty, empty, empty, metrics, {"policy": policy}, {"batch_size": 32}, rows, (), device)


def _seen(before: Profile, after: Profile, environment: dict[str, Any]) -> Measurements:
    return Measurements(before, after, (), Speedup(((0.0, 0.01), (0.0, 0.01))), environment)


@pytest.mark.parametrize("environment", [GPU, {}])
def test_the_case_that_this_project_grew_from(environment: dict[str, Any]) -> None:
    reasons = {reason.code: reason for reason in explain_profile(_profile(STORY), environment)}
    assert list(reasons) == ["no_16bit_ops", "kernel_launch_moderate"]
    assert reasons["no_16bit_ops"].evidence["speedup_if_compute_faster"] == {
        "3_times": pytest.approx(2.65, abs=0.006),
        "8_times": pytest.approx(5.5, abs=0.005),
        "free": pytest.approx(15.4, abs=0.05),
    }
    assert "at 2.65× the speed, with 8 times at 5.5×, and at 15.4× at most" in reasons["no_16bit_ops"].text
    assert "mixed_float16" in reasons["no_16bit_ops"].advice
    assert "TF_GPU_THREAD_MODE=gpu_private" in reasons["kernel_launch_moderate"].advice


def test_the_same_case_as_a_candidate_that_asks_for_16_bit_in_vain() -> None:
    seen = _seen(_profile(STORY), _profile(STORY, "mixed_float16"), GPU)
    reasons = explain(seen)
    assert [reason.code for reason in reasons] == ["no_16bit_ops", "kernel_launch_moderate"]
    assert "although the policy is mixed_float16" in reasons[0].text


def test_thread_mode_is_not_advised_twice_nor_on_a_cpu() -> None:
    launch = {"profiler/step_time_ms": 100.0, "profiler/kernel_launch_ms": 20.0}
    private = {**GPU, "settings": {"TF_GPU_THREAD_MODE": "gpu_private"}}
    for profile, environment in ((_profile(launch), private), (_profile(launch, device="CPU"), {})):
        (reason,) = explain_profile(profile, environment)
        assert "TF_GPU_THREAD_MODE" not in reason.advice
        assert "train.batch_size" in reason.advice


def test_a_cpu_is_told_of_bfloat16_only_where_it_computes_it() -> None:
    profile = _profile({"profiler/compute_16bit_percent": 0.0}, device="CPU")
    (reason,) = explain_profile(profile, {"cpu": {"instruction_sets": ["avx2", "avx512_bf16"]}})
    assert "mixed_bfloat16" in reason.advice
    assert explain_profile(profile, {"cpu": {"instruction_sets": ["avx2"]}}) == ()


def test_what_stays_32bit_is_named_by_its_part_with_its_time() -> None:
    rows = (
        Operation("Mul", "model/batch_normalization_1/batchnorm/mul", 1, 2.0, "float32"),
        Operation("Sub", "model/batch_normalization_2/moments/sub", 1, 1.0, "float32"),
        Operation("_MklSoftmax", "model/probabilities/Softmax", 1, 0.5, "float32"),
        Operation("Neg", "compile_loss/crossentropy/Neg", 1, 0.25, "float32"),
        Operation("Sqrt", "StatefulPartitionedCall/cond/then/_52/cond/adam/Sqrt_3", 1, 4.0, "float32"),
        Operation("AddN", "AddN_5", 1, 0.125, "float32"),
        Operation("Cast", "model/batch_normalization_1/Cast", 1, 0.5, "float32"),
        Operation("Conv2D", "model/conv/convolution", 1, 3.0, "float16"),
    )
    shares = {"profiler/compute_16bit_percent": 30.0, "profiler/compute_32bit_percent": 70.0}
    metrics = {"profiler/step_time_ms": 25.0, "profiler/host_compute_ms": 20.0, **shares}
    seen = _seen(_profile({}, device="CPU"), _profile(metrics, "mixed_bfloat16", "CPU", *rows), {})
    (reason,) = explain(seen)
    assert reason.code == "mostly_32bit_ops"
    assert reason.time_ms == pytest.approx(14.0)
    assert {row["type"]: row["time_ms"] for row in reason.evidence["operations"]} == {
        "optimizer": 4.0,
        "normalization": 3.0,
        "softmax": 0.5,
        "loss": 0.25,
        "AddN": 0.125,
    }
    assert "optimizer 4 ms, normalization 3 ms" in reason.text


def test_idle_tensor_cores_are_told_from_host_rows_and_in_time() -> None:
    rows = (
        Operation("Conv2D", "model/a/convolution", 1, 30.0, "float16", True),
        Operation("DepthwiseConv2dNative", "model/b/depthwise", 1, 20.0, "float16", False),
        Operation("Conv2D", "model/a/convolution", 1, 99.0, "float16", None),
    )
    (reason,) = explain(_seen(_profile({}), _profile({}, "mixed_float16", "GPU", *rows), GPU))
    assert reason.code == "tensor_cores_idle"
    assert reason.evidence["idle_ms"] == reason.time_ms == 20.0
    assert reason.evidence["matrix_ms"] == 50.0
    assert "DepthwiseConv2dNative 20 ms" in reason.text


def test_an_odd_size_is_named_with_its_neighbours() -> None:
    profile = _profile({}, "mixed_float16")
    profile.configuration.update(batch_size=6, layer_widths=[20, 32, 20])
    (reason,) = explain_profile(profile, GPU)
    assert reason.evidence == {"batch_size": 6, "layer_widths": [20]}
    assert "train.batch_size to 8." in reason.advice


def test_a_limit_below_what_was_asked_for_is_said_as_such() -> None:
    work = {"profiler/device_compute_ms": 10.0, "profiler/matrix_percent": 50.0, "profiler/memory_bound_percent": 0.0}
    before = _profile({"profiler/step_time_ms": 100.0, **work})
    seen = Measurements(before, _profile({}, "mixed_float16"), (), Speedup(((0.0,), (0.01,))), GPU, min_speedup=1.05)
    (reason,) = explain(seen)
    assert reason.evidence["limit"] == pytest.approx(100 / (95 + 5 / 16))
    assert "1.05× was asked for" in reason.text
    assert "compare.min_speedup" in reason.advice


def test_arm_failed_names_seeds_and_causes_and_how_to_try_again() -> None:
    failed = {"status": "failed", "reason": "the loss is nan"}
    reason = arm_failed(
        Arm("fast", (Training(0, {"status": "finished"}), Training(1, failed), Training(2, failed)), None)
    )
    assert "2 of 3 trainings" in reason.text
    assert "seed 1, 2: the loss is nan" in reason.text
    assert "dvc repro -f -s train@fast-1 train@fast-2" in reason.advice


def test_a_comparison_explains_its_baseline_and_its_candidates(comparison: Comparison) -> None:
    assert [reason.code for reason in comparison.baseline_reasons] == ["no_16bit_ops"]
    codes = {item.variant: [reason.code for reason in item.reasons] for item in comparison.candidates}
    assert codes == {
        "mixed_float16": ["emulated_float16", "cast_overhead"],
        "mixed_bfloat16": ["at_limit"],
        "float16": ["arm_failed"],
    }


def test_a_comparison_hands_on_what_was_asked_for(project: Any) -> None:
    fast = project.compare(min_speedup=1.8).candidates[1]
    assert fast.limit == pytest.approx(10 / (1.5 + 8.5 / 2))
    assert "1.8× was asked for" in fast.reasons[0].text
