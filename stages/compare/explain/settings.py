"""Reasons about how the variants are set up: sizes, TF32, and differences other than the precision."""

from __future__ import annotations

from typing import Any, Literal

from stages.compare.explain.evidence import Evidence
from stages.results.comparison import Reason

_MULTIPLE = 8


def sizes_not_multiple_of_8(data: Evidence) -> Reason | None:
    """On a GPU, 16-bit matrix work is fastest if its sizes are multiples of 8.

    The channels of the images and the number of classes cannot be changed, and cost little.
    """
    if not data.on_gpu or not data.is_16bit:
        return None
    configuration = data.candidate.summary.configuration
    given = {1, data.classes, *configuration.input_shape[-1:]}
    odd = sorted({width for width in configuration.layer_widths if width not in given and width % _MULTIPLE})
    batch_size = configuration.batch_size
    if batch_size % _MULTIPLE == 0 and not odd:
        return None
    evidence: dict[str, Any] = {"batch_size": batch_size} | ({"layer_widths": odd} if odd else {})
    found = [f"the batch size {batch_size}"] if batch_size % _MULTIPLE else []
    found += [f"layers with {', '.join(map(str, odd))} channels"] if odd else []
    return Reason(
        code="sizes_not_multiple_of_8",
        text=f"Tensor cores need multiples of 8 for full speed. These sizes are not: {' and '.join(found)}.",
        evidence=evidence,
        advice=_rounded_advice(batch_size, odd),
    )


def _rounded_advice(batch_size: int, odd: list[int]) -> str:
    lower = batch_size // _MULTIPLE * _MULTIPLE
    sizes = [str(size) for size in (lower, lower + _MULTIPLE) if size]
    advice = [f"Set train.batch_size to {' or '.join(sizes)}."] if batch_size % _MULTIPLE else []
    return " ".join([*advice, *(["Round the widths of these layers up to multiples of 8."] if odd else [])])


def baseline_is_tf32(data: Evidence) -> Reason | None:
    """The baseline already uses tensor cores, through TF32."""
    percent = data.before.metrics.get("profiler/compute_tf32_percent", 0.0)
    in_force = data.before.summary.in_force
    if not data.before.on_gpu or in_force.policy != "float32" or not in_force.tf32 or percent <= 0:
        return None
    name = "The baseline" if data.baseline else "This variant"
    return Reason(
        code="baseline_is_tf32",
        text=f"{name} spends {percent:.0f} % of its compute time in TF32, so it is not plain float32: "
        "16 bit can gain less over it.",
        evidence={"baseline_compute_tf32_percent": percent, "baseline_tf32": True},
        advice="Add a variant with tf32: false to see what TF32 itself brings.",
    )


def xla_differs(data: Evidence) -> Reason | None:
    """XLA differs from the baseline, or is not in force although the entry requests it."""
    requested, found = data.candidate.summary.entry.xla, data.candidate.summary.in_force.xla
    if requested == found:
        return _setting_differs(data, "xla", "XLA")
    return Reason(
        code="xla_differs",
        text=f"XLA is {_on(found)} although the entry of variants requests it {_on(requested)}.",
        evidence={"requested_xla": requested, "candidate_xla": found},
        advice="Deterministic operations, and augmentation layers inside the model, switch XLA off: remove them, or "
        "set xla: false.",
    )


def onednn_differs(data: Evidence) -> Reason | None:
    """On a CPU, oneDNN differs from the baseline."""
    return None if data.on_gpu else _setting_differs(data, "onednn", "oneDNN")


def _setting_differs(data: Evidence, key: Literal["xla", "onednn"], name: str) -> Reason | None:
    if data.baseline is None:
        return None
    before, after = (getattr(profile.summary.in_force, key) for profile in (data.baseline, data.candidate))
    if before == after:
        return None
    return Reason(
        code=f"{key}_differs",
        text=f"{name} is {_on(after)} in this variant and {_on(before)} in the baseline: "
        "the ratio is not the effect of precision alone.",
        evidence={f"baseline_{key}": before, f"candidate_{key}": after},
        advice=f"Set the same {key} in both entries of variants to measure precision alone.",
    )


def _on(value: bool) -> str:
    return "on" if value else "off"
