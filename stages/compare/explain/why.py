"""What the account says of a training step, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stages.compare.text import KIND_NAMES
from stages.results.comparison import Account, Change, KindChange
from stages.results.profile import HOST
from stages.text import decimals, joined, ms_text, signed_text

_SINGULAR = {"input", "loss_scaling", "optimizer", "normalization", HOST}
_SHOWN = 3  # kinds that gained, and that lost
_NOTABLE = 0.1  # of the largest change; smaller ones are not listed
_MOSTLY = 0.5  # of a kind's change, in layers of one class


def why(variant: str, account: Account | None) -> str | None:
    """The sentence; None without an account.

    Args:
        variant: name of the candidate.
        account: of its training.
    """
    if account is None:
        return None
    if account.void:
        return f"Why is not known: {_void(account)}, which is more than noise."
    measured = f"{variant} {_measured(account.measured)}"
    if not account.explains:
        return f"{measured}; the traces do not explain it: {_unexplained(account)}."
    gained = _notable(kind for kind in account.named if kind.delta < 0)
    lost = _notable(kind for kind in account.named if kind.delta > 0)
    if not gained and not lost:
        return f"{measured}: no kind of operations changes by more than noise."
    explained = "" if account.measured.holds_0 else f"; the traces explain {_amounts(account)}"
    return f"{measured}{explained}: {'; '.join(_parts(account, gained, lost))}."


def _void(account: Account) -> str:
    if account.control is not None and not account.control.holds_0:
        return (
            "the operations of the baseline's second copy differ from those of the baseline by "
            f"{_delta(account.control)} ms a step"
        )
    assert account.control_unexplained is not None, "one of both makes an account void"
    return (
        "of the change between the baseline and its second copy the traces miss "
        f"{_delta(account.control_unexplained)} ms a step"
    )


def _amounts(account: Account) -> str:
    """Such as `4.70 of 5.30 ms`, or `it and 0.20 ms more`."""
    explained_ms, measured_ms = abs(account.explained_ms), abs(account.measured.delta)
    digits = decimals(explained_ms, measured_ms)
    if round(explained_ms, digits) > round(measured_ms, digits):
        return f"it and {ms_text(explained_ms - measured_ms)} more"
    return f"{explained_ms:,.{digits}f} of {measured_ms:,.{digits}f} ms"


def _unexplained(account: Account) -> str:
    """What is seen in place of an explanation: what the traces miss, disturbances, or too little."""
    if not account.is_traced_whole:
        return f"they miss {_delta(account.unexplained)} ms of the change of a calm step"
    disturbance = account.disturbance
    if not disturbance.holds_0 and abs(disturbance.delta) > abs(account.measured.delta) / 2:
        return f"disturbances of the machine are {_delta(disturbance)} ms of it"
    if not account.named:
        return "no kind of operations changes by more than noise"
    return f"the kinds of operations that change add up to {signed_text(account.explained_ms)} ms"


def _measured(change: Change) -> str:
    low, high = sorted((abs(change.low), abs(change.high)))
    if change.holds_0:
        return f"takes neither clearly less time a step nor clearly more ({_delta(change)} ms)"
    digits = decimals(change.delta, low, high)
    word = "less" if change.delta < 0 else "more"
    return f"takes {abs(change.delta):,.{digits}f} ms {word} a step ({low:,.{digits}f} to {high:,.{digits}f})"


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


def _notable(kinds: Iterable[KindChange]) -> list[KindChange]:
    found = sorted(kinds, key=lambda kind: -abs(kind.delta))
    return [kind for kind in found[:_SHOWN] if abs(kind.delta) >= _NOTABLE * abs(found[0].delta)]


def _delta(change: Change) -> str:
    digits = decimals(change.delta, change.low, change.high)
    numbers = [f"{value:+,.{digits}f}".replace("-", "−") for value in (change.delta, change.low, change.high)]
    return f"{numbers[0]} ({numbers[1]} to {numbers[2]})"
