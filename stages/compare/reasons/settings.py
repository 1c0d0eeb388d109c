"""Reasons in how the arms were set up: what is not what one thinks, and what was changed beside the precision."""

from __future__ import annotations

from typing import Any

from stages.compare.arms import Profile
from stages.compare.evidence import Measurements, Reason
from stages.compare.limit import policy_of

IN_FORCE = "in_force"  # the part of a configuration that says what a worker found to be on
_MULTIPLE = 8


def sizes_not_multiple_of_8(seen: Measurements) -> Reason | None:
    """On a GPU, 16-bit matrix work runs best where its sizes are multiples of 8.

    The channels of the images and the number of classes are what they are, and cost little at either end.
    """
    if not seen.on_gpu or not seen.is_16bit:
        return None
    batch_size = seen.candidate.configuration.get("batch_size") or 0
    given = {1, seen.classes, *seen.candidate.configuration.get("input_shape", [])[-1:]}
    widths = [width for width in seen.candidate.configuration.get("layer_widths", []) if width not in given]
    odd = sorted({width for width in widths if width % _MULTIPLE})
    if batch_size % _MULTIPLE == 0 and not odd:
        return None
    evidence: dict[str, Any] = {"batch_size": batch_size} | ({"layer_widths": odd} if odd else {})
    found = [f"the batch size {batch_size}"] if batch_size % _MULTIPLE else []
    found += [f"layers with {', '.join(map(str, odd))} channels"] if odd else []
    return Reason(
        code="sizes_not_multiple_of_8",
        text=f"Tensor cores need multiples of 8 to work at full speed, which these are not: {' and '.join(found)}.",
        evidence=evidence,
        advice=_rounded_advice(batch_size, odd),
    )


def _rounded_advice(batch_size: int, odd: list[int]) -> str:
    lower = batch_size // _MULTIPLE * _MULTIPLE
    sizes = [str(size) for size in (lower, lower + _MULTIPLE) if size]
    advice = [f"Set train.batch_size to {' or '.join(sizes)}."] if batch_size % _MULTIPLE else []
    return " ".join([*advice, *(["Round the widths of these layers up to multiples of 8."] if odd else [])])


def baseline_is_tf32(seen: Measurements) -> Reason | None:
    """The baseline already uses tensor cores, through TF32."""
    percent = seen.before.metrics.get("profiler/compute_tf32_percent", 0.0)
    is_float32 = policy_of(seen.before) == "float32"
    if seen.before.device_type != "GPU" or not is_float32 or not _in_force(seen.before, "tf32", False) or percent <= 0:
        return None
    name = "The baseline" if seen.baseline else "This run"
    return Reason(
        code="baseline_is_tf32",
        text=f"{name} spends {percent:.0f} % of its compute time in TF32, so it is no plain float32: "
        "what 16 bit can gain over it is smaller.",
        evidence={"baseline_compute_tf32_percent": percent, "baseline_tf32": True},
        advice="Add a variant with tf32: false to see what TF32 itself brings.",
    )


def xla_differs(seen: Measurements) -> Reason | None:
    """The compiler was changed together with the precision, or is not in force although the entry asks for it."""
    asked = bool(seen.candidate.entry.get("xla", False))
    found = _in_force(seen.candidate, "xla", False)
    if asked == found:
        return _setting_differs(seen, "xla", "XLA", default=False)
    return Reason(
        code="xla_differs",
        text=f"XLA is {_on(found)} although the entry of variants says {_on(asked)}, so it is not what was measured.",
        evidence={"asked_xla": asked, "candidate_xla": found},
        advice="Deterministic operations, and augmentation layers inside of the model, switch XLA off: do without, or "
        "set xla: false.",
    )


def onednn_differs(seen: Measurements) -> Reason | None:
    """On a CPU, the library that computes was changed together with the precision."""
    return None if seen.on_gpu else _setting_differs(seen, "onednn", "oneDNN", default=True)


def _setting_differs(seen: Measurements, key: str, name: str, *, default: bool) -> Reason | None:
    if seen.baseline is None:
        return None
    before, after = (_in_force(profile, key, default) for profile in (seen.baseline, seen.candidate))
    if before == after:
        return None
    return Reason(
        code=f"{key}_differs",
        text=f"{name} is {_on(after)} here and {_on(before)} in the baseline: "
        "the ratio is not the effect of precision alone.",
        evidence={f"baseline_{key}": before, f"candidate_{key}": after},
        advice=f"Set the same {key} in both entries of variants to see precision alone.",
    )


def _in_force(profile: Profile, key: str, default: bool) -> bool:
    """What the worker found to be on; what the entry says where that was not recorded."""
    return bool(profile.configuration.get(IN_FORCE, {}).get(key, profile.entry.get(key, default)))


def _on(value: bool) -> str:
    return "on" if value else "off"
