"""Why training with a candidate is faster or slower: a reason, or what the traces say of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from halfstep.compare.text import KIND_NAMES
from halfstep.results.comparison import Account, Change, KindChange, Reason
from halfstep.results.profile import HOST
from halfstep.text import TRAIN, decimals, joined, ms_text, signed_text

# Reasons why a step is not faster, the most telling first: of hardware and settings, then of what limits any precision.
_NO_GAIN = (
    "emulated_float16",
    "no_16bit_instructions",
    "no_tensor_cores",
    "slow_16bit_ops",
    "no_16bit_ops",
    "tensor_cores_idle",
)
_LIMITS = (
    "input_bound",
    "kernel_launch_high",
    "model_too_small",
    "step_overhead",
    "cast_overhead",
    "memory_bound",
    "at_limit",
)
_OPERATION = "slower_in_16bit"  # said beside what the traces show of all kinds
_OTHER_SETTINGS = ("onednn_differs", "xla_differs")  # whose effect on a step was not measured

_SINGULAR = {"input", "loss_scaling", "optimizer", "normalization", HOST}
_MATERIAL = 0.05  # of the step: what takes less is not why it is as fast as it is
_SHOWN = 3  # kinds that gained, and that lost
_NOTABLE = 0.1  # of the largest change; smaller ones are not listed
_MOSTLY = 0.5  # of a kind's change, in layers of one class; or of what was measured, in one kind
_SEEN = 0.5  # of the half-width of a change that may be 0; kinds that add up to less say nothing about it


def why(variant: str, reasons: Sequence[Reason], account: Account | None) -> str | None:
    """The main cause of what training with a candidate gains or loses; None where nothing is known.

    What the hardware or the settings do not allow comes first, if it concerns a notable part of the step, then what the
    traces show of a step. What limits any precision, such as the input, makes no step longer: it is the cause only
    where the step is not clearly longer.

    Args:
        variant: name of the candidate.
        reasons: of the candidate.
        account: of its training.
    """
    least_ms = _MATERIAL * account.calm.candidate_ms if account is not None else 0.0
    of_training = [reason for reason in reversed(reasons) if reason.measure == TRAIN]
    causes = {found.code: found for found in of_training if found.time_ms is None or abs(found.time_ms) >= least_ms}
    is_longer = account is not None and account.measured.low > 0
    codes: Sequence[str] = _NO_GAIN if is_longer else (*_NO_GAIN, *_LIMITS)
    first = next((causes[code] for code in codes if code in causes), None)
    gains = account is not None and account.measured.high < 0
    if first is not None and not gains:
        return f"{first.text} {first.advice}"
    if account is None:
        return None
    found = account_text(variant, account)
    if account.is_sound and _OPERATION in causes:
        return f"{found} {causes[_OPERATION].text} {causes[_OPERATION].advice}"
    other = next((causes[code] for code in _OTHER_SETTINGS if code in causes), None)
    return found if account.is_sound or other is None else f"{found} {other.text}"


def account_text(variant: str, account: Account) -> str:
    """What the traces say of a step."""
    if account.void:
        return f"The traces cannot say why: {_void(account)}."
    gained, lost = _notable(account, -1), _notable(account, 1)
    parts = "; ".join(_parts(account, gained, lost))
    if account.measured.holds_0:
        return _noise(variant, account, parts)
    measured = f"{variant} takes {_measured(account.measured)}"
    if not account.explains:
        return f"{measured}. {_suggested(account) or f'The traces do not say why: {_unexplained(account)}'}."
    return f"{measured}. The traces explain {_amounts(account)}: {parts}."


def _void(account: Account) -> str:
    change = account.control
    if change is None or change.holds_0:
        change = account.control_unexplained
    assert change is not None, "one of both makes an account void"
    return f"by them, the two copies of the baseline, which are equal, differ by {_delta(change)} ms a step"


def _noise(variant: str, account: Account, parts: str) -> str:
    """Of a change that may be 0: what gains and what costs, unless the noise is larger than that."""
    measured = account.measured
    found = f"The step of {variant} changes by {_delta(measured)} ms, which may be noise"
    seen_ms = math.fsum(abs(kind.delta) for kind in account.named)
    if account.is_traced_whole and seen_ms >= _SEEN * (measured.high - measured.low) / 2:
        return f"{found}: {parts}."
    only = f" (only {parts})" if parts and account.is_traced_whole else ""
    return f"{found}, and the traces are too noisy to say more{only}."


def _amounts(account: Account) -> str:
    """Such as `4.70 of 5.30 ms`, or `all of it, and 0.20 ms too much`."""
    explained_ms, measured_ms = abs(account.explained_ms), abs(account.measured.delta)
    digits = decimals(explained_ms, measured_ms)
    if round(explained_ms, digits) > round(measured_ms, digits):
        return f"all of it, and {ms_text(explained_ms - measured_ms)} too much"
    return f"{explained_ms:,.{digits}f} of {measured_ms:,.{digits}f} ms"


def _suggested(account: Account) -> str | None:
    """A kind that is clear by itself and most of what was measured, where the traces show the step whole."""
    alone = _clear_alone(account) if account.is_traced_whole else None
    if alone is None:
        return None
    verb = "takes" if alone.kind in _SINGULAR else "take"
    return (
        f"The traces suggest why and do not show it: {KIND_NAMES[alone.kind]} {verb} {_measured(alone)}, which is "
        "clear alone but not among all kinds together"
    )


def _unexplained(account: Account) -> str:
    """What is seen in place of an explanation: what the traces miss, disturbances, or too little."""
    if not account.is_traced_whole:
        return f"they miss {_delta(account.unexplained)} ms of it"
    disturbance = account.disturbance
    if not disturbance.holds_0 and abs(disturbance.delta) > abs(account.measured.delta) / 2:
        return f"{_delta(disturbance)} ms of it are disturbances by the machine"
    if not account.named:
        return "no part of the step changes by more than noise"
    return f"the changes that they show add up to {signed_text(account.explained_ms)} ms"


def _clear_alone(account: Account) -> KindChange | None:
    """The kind that changes beyond doubt by itself, though not with the others, and by most of what was measured."""
    found = [kind for kind in account.kinds if not kind.named and not kind.holds_0]
    most = max(found, key=lambda kind: kind.delta / account.measured.delta, default=None)
    return most if most is not None and most.delta / account.measured.delta >= _MOSTLY else None


def _measured(change: Change) -> str:
    low, high = sorted((abs(change.low), abs(change.high)))
    digits = decimals(change.delta, low, high)
    word = "less" if change.delta < 0 else "more"
    return f"{abs(change.delta):,.{digits}f} ms {word} a step ({low:,.{digits}f} to {high:,.{digits}f})"


def _parts(account: Account, gained: Sequence[KindChange], lost: Sequence[KindChange]) -> list[str]:
    """What was gained and what was lost; the larger of both first."""
    is_faster = account.measured.delta < 0
    verbs = ("gain", "give back") if is_faster else ("gain back", "cost")
    clauses = [_clause(account, kinds, verb) for kinds, verb in zip((gained, lost), verbs, strict=True) if kinds]
    return clauses if is_faster else clauses[::-1]


def _clause(account: Account, kinds: Sequence[KindChange], verb: str) -> str:
    first, *others = kinds
    words = verb.split(" ", 1)
    conjugated = " ".join([f"{words[0]}s", *words[1:]]) if first.kind in _SINGULAR else verb
    texts = [f"{KIND_NAMES[first.kind]} {conjugated} {ms_text(abs(first.delta))}{_where(account, first)}"]
    texts += [f"{KIND_NAMES[kind.kind]} {ms_text(abs(kind.delta))}{_where(account, kind)}" for kind in others]
    return joined(texts)


def _where(account: Account, kind: KindChange) -> str:
    """The class of layers that most of a change of casts is in; other kinds are known by their name."""
    if kind.kind != "cast":
        return ""
    found = [change for change in account.classes or () if change.kind == kind.kind]
    most = max(found, key=lambda change: change.delta * kind.delta, default=None)
    if most is None or most.delta / kind.delta < _MOSTLY:
        return ""
    return f" (mostly in {most.layer_class})"


def _notable(account: Account, sign: int) -> list[KindChange]:
    """The largest kinds that gained (−1) or lost (1)."""
    found = sorted((kind for kind in account.named if kind.delta * sign > 0), key=lambda kind: -abs(kind.delta))
    return [kind for kind in found[:_SHOWN] if abs(kind.delta) >= _NOTABLE * abs(found[0].delta)]


def _delta(change: Change) -> str:
    digits = decimals(change.delta, change.low, change.high)
    numbers = [f"{value:+,.{digits}f}".replace("-", "−") for value in (change.delta, change.low, change.high)]
    return f"{numbers[0]} ({numbers[1]} to {numbers[2]})"
