"""What the account says of a training step, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stages.compare.text import KIND_NAMES
from stages.results.comparison import Account, Change, KindChange
from stages.results.profile import HOST, PROFILER
from stages.stats.speedup import Speedup
from stages.text import decimals, joined, ms_text

_SINGULAR = {"input", "loss_scaling", "optimizer", "normalization", HOST, PROFILER}
_SHOWN = 3  # kinds that gained, and that lost
_NOTABLE = 0.1  # of the largest change; smaller ones are not listed
_MOSTLY = 0.5  # of a kind's change, in layers of one class
_UNEXPLAINED = 1 / 3  # of the measured change


def why(variant: str, account: Account | None, speedup: Speedup) -> str | None:
    """The sentence; None without an account.

    Args:
        variant: name of the candidate.
        account: of its training.
        speedup: of its training.
    """
    if account is None:
        return None
    if account.void and account.control is not None:
        return (
            "Why is not known: the operations of the baseline's second copy differ from those of the baseline by "
            f"{_delta(account.control)} ms a step, which is more than noise."
        )
    known = [kind for kind in account.kinds if not kind.holds_0 and kind.kind != PROFILER]
    gained = _notable(kind for kind in known if kind.delta < 0)
    lost = _notable(kind for kind in known if kind.delta > 0)
    parts = _parts(account, gained, lost)
    clause = f": {'; '.join(parts)}" if parts else ": no kind of operations changes by more than noise"
    return f"{variant} {_measured(account.measured)}{clause}{_unexplained(account)}{_without_casts(account, speedup)}."


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


def _unexplained(account: Account) -> str:
    found, measured = account.unexplained, account.measured
    if found.holds_0 or abs(found.delta) < _UNEXPLAINED * abs(measured.delta):
        return ""
    word = "more" if found.delta > 0 else "less"
    return f"; {ms_text(abs(found.delta))} {word} was timed than the account adds up to"


def _without_casts(account: Account, speedup: Speedup) -> str:
    """What the speed-up would be if the casts took no more time than in the baseline."""
    casts = account.kind("cast")
    if casts is None or casts.low <= 0 or casts.delta < _NOTABLE * max(abs(kind.delta) for kind in account.kinds):
        return ""
    left_ms = speedup.candidate_time_ms - casts.delta
    if left_ms <= 0:
        return ""
    return f"; without these casts its speed-up would be {speedup.baseline_time_ms / left_ms:.2f}×"


def _delta(change: Change) -> str:
    digits = decimals(change.delta, change.low, change.high)
    numbers = [f"{value:+,.{digits}f}".replace("-", "−") for value in (change.delta, change.low, change.high)]
    return f"{numbers[0]} ({numbers[1]} to {numbers[2]})"
