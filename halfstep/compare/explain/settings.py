"""Reasons about how the variants are set up: sizes, TF32, and differences other than the precision."""

from __future__ import annotations

from typing import Any, Literal

from halfstep.compare.explain.evidence import Evidence, SpeedupFactors, changes_of, part_of_compute_ms, remedy
from halfstep.compare.text import ratio_text
from halfstep.results.comparison import Reason
from halfstep.results.profile import Profile, Setting, differing_settings
from halfstep.stats.speedup import Speedup
from halfstep.text import TRAIN, joined, measure_text

LAYOUT_PERCENT = 5.0  # of the compute time
UNKNOWN_PERCENT = 10.0
_MULTIPLE_BITS = 128  # 16 bytes
_MULTIPLE_TF32 = _MULTIPLE_BITS // 32
TF32_FROM = 8.0  # compute capability
_NAMES = {
    "xla": "XLA",
    "onednn": "oneDNN",
    "tf32": "TF32",
    "batch_size": "batch size",
    "threads": "threads",
    "gpu_thread_mode": "GPU thread mode",
    "env": "environment variables",
    "input_threads": "input threads",
    "cache_input": "cached input",
    "prefetch_to_device": "prefetching to the device",
    "task_path": "code of the task",
    "python": "interpreter",
}
_XLA_OFF = "Deterministic operations, and layers for augmentation, look-ups, and LSTM and GRU of cuDNN, switch XLA off"


def sizes_not_multiple(data: Evidence) -> Reason | None:
    """On a GPU, matrix work on tensor cores is fastest if its sizes are multiples of 8, in TF32 of 4.

    The channels of the images and the number of classes cannot be changed, and cost little. (Deep Learning Performance
    Guide of NVIDIA: sizes that are multiples of 16 bytes.)
    """
    multiple = _multiple(data)
    if multiple is None:
        return None
    batch_size, odd = odd_sizes(data, multiple)
    if batch_size is None and not odd:
        return None
    sizes = [f"the batch size {batch_size}"] if batch_size else []
    sizes += [f"layers with {', '.join(map(str, odd))} channels"] if odd else []
    evidence: dict[str, Any] = {"batch_size": data.candidate.batch_size}
    return Reason(
        code=f"sizes_not_multiple_of_{multiple}",
        text=f"Tensor cores need multiples of {multiple}{' in TF32' if multiple == _MULTIPLE_TF32 else ''} for full "
        f"speed. These sizes are not: {' and '.join(sizes)}.",
        evidence=evidence | ({"layer_widths": odd} if odd else {}),
        advice=_rounded_advice(batch_size, odd, multiple),
    )


def odd_sizes(data: Evidence, multiple: int) -> tuple[int | None, list[int]]:
    """The batch size and the widths of layers that could be changed, where they are not multiples."""
    configuration = data.candidate.summary.configuration
    given = {1, data.classes, *(configuration.input_shape or ())[-1:]}
    odd = sorted({width for width in configuration.layer_widths if width not in given and width % multiple})
    batch_size = data.candidate.batch_size
    return (batch_size if batch_size % multiple else None), odd


def _multiple(data: Evidence) -> int | None:
    """What the sizes should be multiples of; None where the candidate does not use tensor cores."""
    if not data.on_gpu:
        return None
    if data.is_16bit:
        return None if data.has_hardware_for(data.compute) is False else _MULTIPLE_BITS // data.compute.bits
    in_force = data.candidate.summary.in_force
    return _MULTIPLE_TF32 if _has_tf32(data) and in_force.policy == "float32" and in_force.tf32 else None


def _has_tf32(data: Evidence) -> bool:
    return (data.compute_capability or 0.0) >= TF32_FROM


def _rounded_advice(batch_size: int | None, odd: list[int], multiple: int) -> str:
    lower = (batch_size or 0) // multiple * multiple
    sizes = [str(size) for size in (lower, lower + multiple) if size]
    advice = [f"Set train.batch_size to {' or '.join(sizes)}."] if batch_size else []
    rounded = f"Round the widths of these layers up to multiples of {multiple}."
    return " ".join([*advice, *([rounded] if odd else [])])


def layout_changes(data: Evidence) -> Reason | None:
    """Convolutions change the layout of their tensors (NCHW and NHWC), which takes time in one precision or in both.

    Tensor cores need NHWC. TensorFlow and cuDNN choose the layout by the type, so that one variant may have changes
    that another has not.
    """
    percents = {
        name: profile.metrics.get("profiler/layout_percent", 0.0)
        for name, profile in (("baseline", data.baseline), ("candidate", data.candidate))
        if profile is not None and profile.on_gpu
    }
    if max(percents.values(), default=0.0) < LAYOUT_PERCENT:
        return None
    here, before = percents["candidate"], percents.get("baseline")
    if before is not None and here < before:
        share = f"{before:.0f} % of the compute time in the baseline, and {here:.0f} % here"
    else:
        share = f"{here:.0f} % of the compute time"
        share += "" if before is None else f", {before:.0f} % in the baseline"
    return Reason(
        code="layout_changes",
        text=f"Changing the layout of convolutions' tensors between NCHW and NHWC takes {share}.",
        evidence={f"{name}_layout_percent": percent for name, percent in percents.items()},
        advice="XLA (xla: true in both entries of variants) chooses one layout for the whole step.",
        change=None if data.candidate.summary.in_force.xla else data.changed("xla", True),
        time_ms=part_of_compute_ms(data.candidate, "profiler/layout_percent"),
    )


def baseline_is_tf32(data: Evidence) -> Reason | None:
    """The baseline already uses tensor cores, through TF32, or may do so where the kernels' names do not show it."""
    metrics, in_force = data.before.metrics, data.before.summary.in_force
    percent = metrics.get("profiler/compute_tf32_percent", 0.0)
    unknown = metrics.get("profiler/tensor_core_unknown_percent", 0.0)
    if not data.before.on_gpu or in_force.policy != "float32" or not in_force.tf32:
        return None
    if percent <= 0 and (unknown < UNKNOWN_PERCENT or not _has_tf32(data)):
        return None
    name = "the baseline" if data.baseline else "this variant"
    if percent > 0:
        text = f"float32 here means TF32 on tensor cores: {name} spends {percent:.0f} % of its compute time in it. "
        text += "16 bit can gain less over it than over true float32."
    else:
        text = f"float32 here may mean TF32 on tensor cores: {name} allows it, and of {unknown:.0f} % of its compute "
        text += "time the kernels' names do not show it."
    return Reason(
        code="baseline_is_tf32",
        text=text,
        evidence={"baseline_compute_tf32_percent": percent, "baseline_tf32": True}
        | ({"baseline_tensor_core_unknown_percent": unknown} if unknown else {}),
        advice="A variant with tf32: false measures true float32.",
        change=remedy(data.before, "tf32", to=False),
    )


def xla_not_in_force(data: Evidence) -> Reason | None:
    """XLA is not in force although the entry requests it, or the other way round; `null` requests neither."""
    requested, xla = data.candidate.summary.entry.xla, data.candidate.summary.in_force.xla
    if requested is None or requested == xla:
        return None
    return Reason(
        code="xla_differs",
        text=f"XLA is {_on(xla)} although the entry of variants requests it {_on(requested)}.",
        evidence={"requested_xla": requested, "candidate_xla": xla},
        advice=f"{_XLA_OFF}: remove them, or set xla: false.",
    )


def xla_chosen_differently(data: Evidence) -> Reason | None:
    """Both entries leave XLA to Keras, which chose differently for the two models."""
    if data.baseline is None:
        return None
    before, after = data.baseline.summary, data.candidate.summary
    xla = after.in_force.xla
    if before.entry.xla is not None or after.entry.xla is not None or before.in_force.xla == xla:
        return None
    return Reason(
        code="xla_differs",
        text=f"XLA is {_on(xla)} in this variant and {_on(not xla)} in the baseline, although both entries leave "
        "it to Keras (xla: null): their models differ.",
        evidence={"baseline_xla": not xla, "candidate_xla": xla},
        advice=f"{_XLA_OFF}: use the same layers in both, or set xla: false in both entries of variants.",
    )


def xla_differs(data: Evidence, measure: str) -> Reason | None:
    """XLA differs from the baseline, as its entry says."""
    return None if xla_not_in_force(data) else _setting_differs(data, measure, "xla")


def onednn_differs(data: Evidence, measure: str) -> Reason | None:
    """On a CPU, oneDNN differs from the baseline."""
    return _setting_differs(data, measure, "onednn")


def settings_not_precision(data: Evidence, measure: str) -> Reason | None:
    """The speed-up is worth having, but the factor of the precision is not: the other settings bring it."""
    speedup, factors = data.timed(measure), data.factored(measure)
    if speedup is None or factors is None or data.baseline is None or speedup.side(data.min_speedup) != "above":
        return None
    if factors.precision.side(data.min_speedup) != "below" or factors.settings.low <= 1:
        return None
    differing = _differing(data.baseline, data.candidate, measure)
    entries = ", ".join(f"{key}: {str(after).lower()}" for key, after in differing.items())
    changes = [remedy(data.baseline, key, to, factors.settings.ratio) for key, to in differing.items()]
    return Reason(
        code="settings_not_precision",
        measure=measure,
        text=f"In {measure_text(measure)}, the speed-up of {speedup.ratio:.2f}× comes from "
        f"{_settings_text(differing)}: in the precision of the baseline that alone makes "
        f"{ratio_text(factors.settings)}. The precision makes {ratio_text(factors.precision)}.",
        evidence=_factors_evidence(factors) | {"settings": differing, "min_speedup": data.min_speedup},
        advice=f"Try {entries} in the entry of the baseline in variants.",
        time_ms=_difference_ms(factors.settings),
        **changes_of(changes),
    )


def _setting_differs(data: Evidence, measure: str, key: Literal["xla", "onednn"]) -> Reason | None:
    """A setting that differs; not given where its effect was measured and may be none, or is the whole speed-up."""
    if settings_not_precision(data, measure):
        return None
    differing = _differing(data.baseline, data.candidate, measure) if data.baseline else {}
    if data.baseline is None or key not in differing:
        return None
    factors, speedup, where = data.factored(measure), data.timed(measure), measure_text(measure)
    after = differing[key]
    text = f"{_NAMES[key]} is {_on(after)} in this variant and {_on(not after)} in the baseline"
    effect = factors.settings if factors else speedup if data.policy == data.baseline.policy else None
    if effect is not None and effect.low <= 1 <= effect.high:
        return None
    if factors:
        text += f". In {where}, {_settings_text(differing)} makes {ratio_text(factors.settings)}, and the "
        text += f"precision makes {ratio_text(factors.precision)}."
    elif effect is not None:
        text += f": in {where}, the speed-up of {ratio_text(effect)} comes from {_settings_text(differing)}."
    elif measure == TRAIN:
        text += ": the speed-up is not due to precision alone."
    else:
        return None
    return Reason(
        code=f"{key}_differs",
        measure=measure,
        text=text,
        evidence={f"baseline_{key}": not after, f"candidate_{key}": after}
        | (_factors_evidence(factors) if factors else {}),
        advice=_same_setting_advice(data, measure, key, effect),
        change=data.changed(key, not after, 1 / effect.ratio) if effect is not None and effect.high < 1 else None,
        time_ms=_difference_ms(effect) if effect else None,
    )


def _same_setting_advice(data: Evidence, measure: str, key: str, effect: Speedup | None) -> str:
    """What to do about a setting that differs; beside the same policy, what it makes is the answer."""
    if data.baseline is None or data.policy != data.baseline.policy or effect is None:
        return f"Set the same {key} in both entries of variants to compare precisions only."
    name, where = data.baseline.summary.variant, "train" if measure == TRAIN else "predict"
    faster = data.candidate.summary.variant if effect.low > 1 else name
    return f"To {where} faster, take {key} as in {faster}."


def _differing(baseline: Profile, candidate: Profile, measure: str = TRAIN) -> dict[str, Setting]:
    """The settings beside the policy that differ, with the candidate's value, if they have an effect on a measure."""
    before, after = (profile.summary.in_force for profile in (baseline, candidate))
    return differing_settings(before, after, candidate.summary.configuration.device, measure)


def _settings_text(differing: dict[str, Setting]) -> str:
    return joined([f"{_NAMES[key]} {_on(after)}" for key, after in differing.items()])


def _factors_evidence(factors: SpeedupFactors) -> dict[str, Any]:
    speedups = {"settings_factor": factors.settings, "precision_factor": factors.precision}
    return {name: {"ratio": item.ratio, "low": item.low, "high": item.high} for name, item in speedups.items()}


def _difference_ms(speedup: Speedup) -> float:
    """Time that a step or call gains or loses."""
    return abs(speedup.baseline_time_ms - speedup.candidate_time_ms)


def _on(value: Setting) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "as TensorFlow chooses" if value is None else str(value)
