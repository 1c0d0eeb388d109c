"""Why a candidate is faster or slower, each reason with the numbers of this run that show it.

`REASONS` is a table of small functions: measurements in, a reason or None out. A function that lacks the numbers it
needs returns None: what this machine cannot show is not claimed.
"""

from __future__ import annotations

from collections.abc import Callable

from stages.compare.arms import Arm
from stages.compare.evidence import STEP, Measurements, Reason, time_by_type

INPUT_SHARE = 0.20
LAUNCH_MODERATE_SHARE = 0.03  # the profiler's own thresholds for kernel launch
LAUNCH_HIGH_SHARE = 0.15
FEW_16BIT_PERCENT = 10.0  # below it the profiler itself recommends 16 bit
OVERHEAD_SHARE = 0.50
CAST_SHARE = 0.05
EMULATION_RATIO = 1.2  # hardware that computes in 16 bit is not slower at all
OPERATIONS_SHOWN = 3


def explain(measurements: Measurements) -> tuple[Reason, ...]:
    """Every reason that the measurements support, those that explain the most time first."""
    found = [reason for rule in REASONS if (reason := rule(measurements)) is not None]
    return tuple(sorted(found, key=lambda reason: -(reason.time_ms or 0.0)))


def arm_failed(arm: Arm, role: str = "candidate") -> Reason:
    """The reason of an arm that has no measurements because a training of it failed."""
    seeds_by_cause: dict[str, list[int]] = {}
    for training in arm.failures:
        seeds_by_cause.setdefault(training.failure, []).append(training.seed)
    listed = "; ".join(f"seed {', '.join(map(str, seeds))}: {cause}" for cause, seeds in seeds_by_cause.items())
    retries = " ".join(f"train@{arm.variant}-{training.seed}" for training in arm.failures)
    return Reason(
        code="arm_failed",
        text=f"{len(arm.failures)} of {len(arm.trainings)} trainings of the {role} {arm.variant} failed ({listed}).",
        evidence={
            "variant": arm.variant,
            "trainings": len(arm.trainings),
            "failed": {f"seed_{training.seed}": training.failure for training in arm.failures},
        },
        advice=f"Lower train.learning_rate, or try again with `dvc repro -f -s {retries}` and `dvc repro`.",
    )


def emulated_float16(seen: Measurements) -> Reason | None:
    """On a CPU: what moved to float16 takes longer than it did before.

    Instruction sets do not decide it. TensorFlow's kernels convert each number to float32 and back, also on processors
    with AVX512_FP16; and where oneDNN takes the forward convolution there, its gradients run as reference code.
    """
    if seen.candidate.device_type != "CPU" or not seen.is_float16 or seen.speedup.high >= 1:
        return None
    moved = time_by_type(op for op in seen.candidate.operations if op.dtype == "float16" and op.type != "Cast")
    all_before = time_by_type(seen.baseline.operations)
    before = {kind: time_ms for kind, time_ms in all_before.items() if kind in moved}
    lost_ms = {kind: moved[kind] - before[kind] for kind in before}
    if not before or sum(moved[kind] for kind in before) < EMULATION_RATIO * sum(before.values()):
        return None
    slowest = sorted(lost_ms, key=lambda kind: -lost_ms[kind])[:OPERATIONS_SHOWN]
    operations = [{"type": kind, "baseline_ms": before[kind], "float16_ms": moved[kind]} for kind in slowest]
    listed = ", ".join(f"{kind} {before[kind]:.3g} → {moved[kind]:.3g} ms" for kind in slowest)
    return Reason(
        code="emulated_float16",
        text=f"float16 is emulated on this CPU{_although(seen)}: the operations that moved to float16 take "
        f"longer than before ({listed} a step), and training runs at {seen.speedup.ratio:.2f}× the speed.",
        evidence={"speedup_train": seen.speedup.ratio, "operations": operations, "lost_ms": sum(lost_ms.values())},
        advice="Judge float16 on a GPU. On a CPU try mixed_bfloat16, which many compute in hardware.",
        time_ms=sum(lost_ms.values()),
    )


def _although(seen: Measurements) -> str:
    return ", although it has float16 instructions" if seen.float16_instructions else ""


def no_16bit_ops(seen: Measurements) -> Reason | None:
    """The policy asks for 16 bit and the trace shows almost none."""
    percent = seen.candidate.metrics.get("profiler/compute_16bit_percent")
    if percent is None or percent >= FEW_16BIT_PERCENT or not seen.is_16bit:
        return None
    return Reason(
        code="no_16bit_ops",
        text=f"Only {percent:.1f} % of the compute time is 16-bit although the policy is {seen.policy}.",
        evidence={"profiler/compute_16bit_percent": percent, "threshold_percent": FEW_16BIT_PERCENT},
        advice="Look for layers with a dtype of their own: those do not follow the policy.",
    )


def input_bound(seen: Measurements) -> Reason | None:
    """The step waits for images, which precision does not change."""
    share = seen.share_of_step("profiler/input_ms")
    if share is None or share < INPUT_SHARE:
        return None
    input_ms = seen.candidate.metrics["profiler/input_ms"]
    return Reason(
        code="input_bound",
        text=f"{share:.0%} of the step ({input_ms:.3g} ms) is waiting for images, which no precision makes faster.",
        evidence=seen.part_of_step("profiler/input_ms"),
        advice="Make the input faster first: more train.input_threads, smaller images, or no augmentation.",
        time_ms=input_ms,
    )


def kernel_launch(seen: Measurements) -> Reason | None:
    """Launching kernels takes its time whatever they compute."""
    share = seen.share_of_step("profiler/kernel_launch_ms")
    if share is None or share < LAUNCH_MODERATE_SHARE:
        return None
    launch_ms = seen.candidate.metrics["profiler/kernel_launch_ms"]
    return Reason(
        code="kernel_launch_high" if share >= LAUNCH_HIGH_SHARE else "kernel_launch_moderate",
        text=f"Launching kernels takes {share:.0%} of the step ({launch_ms:.3g} ms), which 16 bit does not shorten.",
        evidence=seen.part_of_step("profiler/kernel_launch_ms"),
        advice="Give each kernel more to do: a larger train.batch_size, or XLA in both arms.",
        time_ms=launch_ms,
    )


def model_too_small(seen: Measurements) -> Reason | None:
    """More than half of the step is neither compute nor input: the network is too small to fill it."""
    step_ms, other_ms = (seen.candidate.metrics.get(name) for name in (STEP, "profiler/other_ms"))
    if not step_ms or other_ms is None:
        return None
    overhead_ms = other_ms + seen.candidate.metrics.get("profiler/kernel_launch_ms", 0.0)
    if overhead_ms <= OVERHEAD_SHARE * step_ms:
        return None
    return Reason(
        code="model_too_small",
        text=f"{overhead_ms / step_ms:.0%} of the step ({overhead_ms:.3g} of {step_ms:.3g} ms) is overhead around the "
        "computation, so a faster computation hardly shows.",
        evidence={"overhead_ms": overhead_ms, STEP: step_ms, "threshold_share": OVERHEAD_SHARE},
        advice="Use a larger train.batch_size or a larger model.",
        time_ms=overhead_ms,
    )


def sizes_not_multiple_of_8(seen: Measurements) -> Reason | None:
    """On a GPU, 16-bit matrix work runs best where its sizes are multiples of 8."""
    batch_size = seen.candidate.configuration.get("batch_size")
    if seen.candidate.device_type != "GPU" or not seen.is_16bit or not batch_size or batch_size % 8 == 0:
        return None
    lower = batch_size // 8 * 8
    return Reason(
        code="sizes_not_multiple_of_8",
        text=f"The batch size {batch_size} is no multiple of 8, which tensor cores need to work at full speed.",
        evidence={"batch_size": batch_size, "remainder": batch_size % 8},
        advice=f"Set train.batch_size to {f'{lower} or ' if lower else ''}{lower + 8}.",
    )


def baseline_is_tf32(seen: Measurements) -> Reason | None:
    """The baseline already uses tensor cores, through TF32."""
    percent = seen.baseline.metrics.get("profiler/compute_tf32_percent", 0.0)
    if seen.baseline.device_type != "GPU" or not seen.baseline.entry.get("tf32") or percent <= 0:
        return None
    return Reason(
        code="baseline_is_tf32",
        text=f"The baseline spends {percent:.0f} % of its compute time in TF32, so it is no plain float32: "
        "what 16 bit can gain over it is smaller.",
        evidence={"baseline_compute_tf32_percent": percent, "baseline_tf32": True},
        advice="Add a variant with tf32: false to see what TF32 itself brings.",
    )


def xla_differs(seen: Measurements) -> Reason | None:
    """The compiler was changed together with the precision."""
    return _setting_differs(seen, "xla", "XLA", default=False)


def onednn_differs(seen: Measurements) -> Reason | None:
    """On a CPU, the library that computes was changed together with the precision."""
    return _setting_differs(seen, "onednn", "oneDNN", default=True) if seen.candidate.device_type == "CPU" else None


def _setting_differs(seen: Measurements, key: str, name: str, *, default: bool) -> Reason | None:
    before, after = (bool(profile.entry.get(key, default)) for profile in (seen.baseline, seen.candidate))
    if before == after:
        return None
    return Reason(
        code=f"{key}_differs",
        text=f"{name} is {'on' if after else 'off'} here and {'on' if before else 'off'} in the baseline: "
        "the ratio is not the effect of precision alone.",
        evidence={f"baseline_{key}": before, f"candidate_{key}": after},
        advice=f"Set the same {key} in both entries of variants to see precision alone.",
    )


def cast_overhead(seen: Measurements) -> Reason | None:
    """Converting between data types takes a share of the step that the baseline does not spend."""
    step_ms = seen.candidate.metrics.get(STEP)
    cast_ms, before_ms = (
        time_by_type(profile.operations).get("Cast", 0.0) for profile in (seen.candidate, seen.baseline)
    )
    if not step_ms or cast_ms < CAST_SHARE * step_ms or cast_ms <= before_ms:
        return None
    return Reason(
        code="cast_overhead",
        text=f"Conversions between data types (Cast) take {cast_ms:.3g} ms of a step of {step_ms:.3g} ms; "
        f"in the baseline {before_ms:.3g} ms.",
        evidence={"cast_ms": cast_ms, "baseline_cast_ms": before_ms, STEP: step_ms},
        advice="Keep neighbouring layers in one dtype: a layer with a dtype of its own costs two conversions.",
        time_ms=cast_ms - before_ms,
    )


def loss_scale_collapse(seen: Measurements) -> Reason | None:
    """The loss scale fell below 1: gradients overflow float16 even without scaling."""
    scales = {
        f"seed {item.seed}": item.metrics["loss_scale"] for item in seen.trainings if "loss_scale" in item.metrics
    }
    collapsed = {seed: scale for seed, scale in scales.items() if scale < 1}
    if not collapsed:
        return None
    listed = ", ".join(f"{seed}: {scale:.2g}" for seed, scale in collapsed.items())
    return Reason(
        code="loss_scale_collapse",
        text=f"The loss scale ended below 1 in {len(collapsed)} of {len(scales)} trainings ({listed}): "
        "gradients do not fit float16.",
        evidence={"loss_scale": collapsed},
        advice="Lower train.learning_rate, or use mixed_bfloat16, which needs no loss scaling.",
    )


REASONS: tuple[Callable[[Measurements], Reason | None], ...] = (
    emulated_float16,
    no_16bit_ops,
    input_bound,
    kernel_launch,
    model_too_small,
    sizes_not_multiple_of_8,
    baseline_is_tf32,
    xla_differs,
    onednn_differs,
    cast_overhead,
    loss_scale_collapse,
)
