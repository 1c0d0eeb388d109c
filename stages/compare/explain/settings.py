"""Reasons about how the variants are set up: sizes, TF32, and differences other than the precision."""

from __future__ import annotations

from typing import Any, Literal

from stages.compare.explain.evidence import TRAIN, Evidence, Factors, measure_text
from stages.results.comparison import Reason
from stages.results.profile import Profile
from stages.stats.speedup import Speedup

_MULTIPLE = 8
_NAMES = {"xla": "XLA", "onednn": "oneDNN", "tf32": "TF32"}
_XLA_OFF = "Deterministic operations, and layers for augmentation, look-ups, and LSTM and GRU of cuDNN, switch XLA off"


def sizes_not_multiple_of_8(data: Evidence) -> Reason | None:
    """On a GPU, 16-bit matrix work is fastest if its sizes are multiples of 8.

    The channels of the images and the number of classes cannot be changed, and cost little.
    """
    if not data.on_gpu or not data.is_16bit:
        return None
    configuration = data.candidate.summary.configuration
    given = {1, data.classes, *(configuration.input_shape or ())[-1:]}
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


def xla_not_in_force(data: Evidence) -> Reason | None:
    """XLA is not in force although the entry requests it, or the other way round; `null` requests neither."""
    requested, found = data.candidate.summary.entry.xla, data.candidate.summary.in_force.xla
    if requested is None or requested == found:
        return None
    return Reason(
        code="xla_differs",
        text=f"XLA is {_on(found)} although the entry of variants requests it {_on(requested)}.",
        evidence={"requested_xla": requested, "candidate_xla": found},
        advice=f"{_XLA_OFF}: remove them, or set xla: false.",
    )


def xla_chosen_differently(data: Evidence) -> Reason | None:
    """Both entries leave XLA to Keras, which chose differently for the two models."""
    if data.baseline is None:
        return None
    before, after = data.baseline.summary, data.candidate.summary
    found = after.in_force.xla
    if before.entry.xla is not None or after.entry.xla is not None or before.in_force.xla == found:
        return None
    return Reason(
        code="xla_differs",
        text=f"XLA is {_on(found)} in this variant and {_on(not found)} in the baseline, although both entries leave "
        "it to Keras (xla: null): their models differ.",
        evidence={"baseline_xla": not found, "candidate_xla": found},
        advice=f"{_XLA_OFF}: use the same layers in both, or set xla: false in both entries of variants.",
    )


def xla_differs(data: Evidence, measure: str) -> Reason | None:
    """XLA differs from the baseline."""
    return None if xla_not_in_force(data) else _setting_differs(data, measure, "xla")


def onednn_differs(data: Evidence, measure: str) -> Reason | None:
    """On a CPU, oneDNN differs from the baseline."""
    return _setting_differs(data, measure, "onednn")


def settings_not_precision(data: Evidence, measure: str) -> Reason | None:
    """The speed-up is worth having, but the factor of the precision is not: the other settings bring it."""
    speedup, factors = data.timed(measure), data.factored(measure)
    if speedup is None or factors is None or data.baseline is None or speedup.low < data.min_speedup:
        return None
    if factors.precision.high >= data.min_speedup or factors.settings.low <= 1:
        return None
    differing = _differing(data.baseline, data.candidate)
    entries = ", ".join(f"{key}: {str(after).lower()}" for key, after in differing.items())
    return Reason(
        code="settings_not_precision",
        measure=measure,
        text=f"In {measure_text(measure)}, the speed-up of {speedup.ratio:.2f}× comes from "
        f"{_settings_text(differing)}: in the precision of the baseline that alone makes "
        f"{_interval_text(factors.settings)}. The precision makes {_interval_text(factors.precision)}.",
        evidence=_factors_evidence(factors) | {"settings": differing, "min_speedup": data.min_speedup},
        advice=f"Try {entries} in the entry of the baseline in variants.",
        time_ms=_difference_ms(factors.settings),
    )


def _setting_differs(data: Evidence, measure: str, key: Literal["xla", "onednn"]) -> Reason | None:
    """A setting that differs; not given where its effect was measured and may be none."""
    differing = _differing(data.baseline, data.candidate) if data.baseline else {}
    if data.baseline is None or key not in differing or settings_not_precision(data, measure):
        return None
    factors, speedup, where = data.factored(measure), data.timed(measure), measure_text(measure)
    after = differing[key]
    text = f"{_NAMES[key]} is {_on(after)} in this variant and {_on(not after)} in the baseline"
    effect = factors.settings if factors else speedup if data.policy == data.baseline.policy else None
    if effect is not None and effect.low <= 1 <= effect.high:
        return None
    if factors:
        text += f". In {where}, {_settings_text(differing)} makes {_interval_text(factors.settings)}, and the "
        text += f"precision makes {_interval_text(factors.precision)}."
    elif effect is not None:
        text += f": in {where}, the speed-up of {_interval_text(effect)} comes from {_settings_text(differing)}."
    elif measure == TRAIN:
        text += ": the ratios are not the effect of precision alone."
    else:
        return None
    return Reason(
        code=f"{key}_differs",
        measure=measure,
        text=text,
        evidence={f"baseline_{key}": not after, f"candidate_{key}": after}
        | (_factors_evidence(factors) if factors else {}),
        advice=f"Set the same {key} in both entries of variants to compare precisions only.",
        time_ms=_difference_ms(effect) if effect else None,
    )


def _differing(baseline: Profile, candidate: Profile) -> dict[str, bool]:
    """The settings beside the policy that differ, with the candidate's value, if they have an effect on the device."""
    device = candidate.summary.configuration.device
    before, after = (profile.summary.in_force.other_settings(device) for profile in (baseline, candidate))
    return {key: after[key] for key in sorted(after) if after[key] != before[key]}


def _settings_text(differing: dict[str, bool]) -> str:
    return " and ".join(f"{_NAMES[key]} {_on(after)}" for key, after in differing.items())


def _interval_text(speedup: Speedup) -> str:
    return f"{speedup.ratio:.2f}× ({speedup.low:.2f} to {speedup.high:.2f})"


def _factors_evidence(factors: Factors) -> dict[str, Any]:
    found = {"settings_factor": factors.settings, "precision_factor": factors.precision}
    return {name: {"ratio": item.ratio, "low": item.low, "high": item.high} for name, item in found.items()}


def _difference_ms(speedup: Speedup) -> float:
    """Time that a step or call gains or loses."""
    return abs(speedup.baseline_time_ms - speedup.candidate_time_ms)


def _on(value: bool) -> str:
    return "on" if value else "off"
