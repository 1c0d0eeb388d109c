"""The answer to a report's question, for training and for inference, from its document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from halfstep.compare.scale import Scale
from halfstep.compare.text import interval_text, ratio_text
from halfstep.results.comparison import Candidate, Comparison, Verdict
from halfstep.text import LONGER, TRAIN, batch_size_of, capitalized, joined

_GOOD = ("adopt", "faster")
_OPEN: Verdict = "inconclusive"
_WORDS = {"reject": "no", "slower": "no", "inconclusive": "not decided yet"}


@dataclass(frozen=True)
class Answer:
    """An answer in a few words, and what it rests on.

    Attributes:
        about: `Training` or `Inference`.
        verdict: the best of any candidate.
    """

    about: str
    verdict: Verdict
    word: str
    text: str

    @property
    def line(self) -> str:
        """All of it, such as `Training: no. Keep float32: …`."""
        return f"{self.about}: {self.word}. {self.text}".rstrip()


def answers(comparison: Comparison) -> list[Answer]:
    """One on training, and one on inference where it was measured."""
    compared = {name: item for name, item in comparison.candidates.items() if item.speedups}
    if not compared:
        return [Answer("Training", _OPEN, "not known", "No variant could be compared.")]
    measures = dict.fromkeys(measure for item in compared.values() for measure in item.speedups if measure != TRAIN)
    found = [_training(compared, comparison)]
    return [*found, _inference(compared, list(measures))] if measures else found


def next_step(comparison: Comparison) -> str:
    """The one thing to do after a comparison: use what was adopted, settle what is open, or try what may help."""
    candidates = comparison.candidates
    adopted = [name for name, item in candidates.items() if item.verdict == "adopt"]
    settings = comparison.setup.settings if comparison.setup else {}
    if adopted and (policy := settings.get(adopted[0], {}).get("policy")) is not None:
        return f'use {adopted[0]}: keras.config.set_dtype_policy("{policy}") before the model is built'
    if steps := [step for item in candidates.values() for step in item.next_steps or ()]:
        return next(
            (f"measure longer:{step.removeprefix(LONGER)}" for step in steps if step.startswith(LONGER)), steps[0]
        )
    if (why := no_help(comparison)) is not None:
        return why
    if any(reason.change is not None for reasons in comparison.reasons.values() for reason in reasons):
        return "python -m halfstep advise lists what can be tried"
    return "nothing here names a setting to try; the report has the reasons"


def no_help(comparison: Comparison) -> str | None:
    """That no setting can help, because the CPU emulates the precision of every candidate; None if that is not so."""
    codes = {"emulated_float16", "no_16bit_instructions"}
    names = [name for name, item in comparison.candidates.items() if codes & {reason.code for reason in item.reasons}]
    if not names or len(names) < len(comparison.candidates):
        return None
    return (
        f"no setting can help here, because this CPU emulates the precision of {joined(names)}: keep "
        f"{comparison.baseline}, or measure on a GPU or on a CPU with AVX512_BF16"
    )


def _training(compared: Mapping[str, Candidate], comparison: Comparison) -> Answer:
    best = _best(compared, TRAIN)
    name, item = best, compared[best]
    measured = f"{name}{', the best,' if len(compared) > 1 else ''} measured {ratio_text(item.speedups[TRAIN])}"
    if item.verdict == "adopt":
        return Answer("Training", "adopt", "yes", f"{name} is {_fast(item, TRAIN)}{_same_score(item)}.")
    if item.verdict == "faster":
        text = f"{name} is {_fast(item, TRAIN)}. Nothing is known of its {_score(comparison)}."
        return Answer("Training", "faster", "faster", text)
    if comparison.is_void(TRAIN):
        return Answer("Training", _OPEN, "not known", "The measurement was disturbed too much to decide anything.")
    asked = f"you asked for {comparison.min_speedup:g}×"
    side = item.speedups[TRAIN].side(comparison.min_speedup)
    if item.verdict == _OPEN and side != "below":
        open_text = asked if side == "open" else _beside_speed(item)
        return Answer("Training", _OPEN, "not decided yet", f"{measured}; {open_text}.")
    keep = f"Keep {comparison.baseline}"
    if item.speedups[TRAIN].ratio < comparison.min_speedup:
        return Answer("Training", item.verdict, "no", f"{keep}: {measured}; {asked}.")
    return Answer("Training", item.verdict, "no", f"{keep}: {measured}, but {_otherwise(item, comparison)}.")


def _beside_speed(item: Candidate) -> str:
    """What is open of a candidate that is fast enough."""
    if item.quality is not None and item.quality.outcome == "not established":
        return f"it may lose more than {Scale.of(item.quality).margin_text} of {item.quality.name}"
    if _has_class(item, "not established"):
        return "a class may lose more of its recall than compare.class_margin"
    return "that is enough alone, but not together with the other verdicts of this report"


def _otherwise(item: Candidate, comparison: Comparison) -> str:
    """Why a candidate is rejected that is fast enough."""
    if item.quality is not None and item.quality.outcome == "refuted":
        return f"loses more than {Scale.of(item.quality).margin_text} of {item.quality.name}"
    if _has_class(item, "refuted"):
        return "a class loses more of its recall than compare.class_margin"
    factors = (item.factors or {}).get(TRAIN)
    if factors is not None and factors.precision.side(comparison.min_speedup) == "below":
        return f"the precision itself brings only {ratio_text(factors.precision)}"
    return "its steps wait too long for their input"


def _has_class(item: Candidate, outcome: str) -> bool:
    return any(found.outcome == outcome for found in item.classes or ())


def _score(comparison: Comparison) -> str:
    return "quality" if comparison.score is None or comparison.score.name == "none" else comparison.score.name


def _same_score(item: Candidate) -> str:
    """That the score is the same within the margin."""
    if item.quality is None:
        return ""
    scale = Scale.of(item.quality)
    return f", and its {scale.name} is the same within {scale.margin_text}"


def _inference(compared: Mapping[str, Candidate], measures: Sequence[str]) -> Answer:
    """By batch size: what the best candidate is there."""
    best = {measure: (name := _best(compared, measure), compared[name].verdicts[measure]) for measure in measures}
    gains = [
        f"at batch size {batch_size_of(measure)}, {name} is {_fast(compared[name], measure)}"
        for measure, (name, verdict) in best.items()
        if verdict in _GOOD
    ]
    sizes = {
        verdict: [f"{batch_size_of(at)}" for at, (_, found) in best.items() if found == verdict]
        for verdict in dict.fromkeys(verdict for _, verdict in best.values())
    }
    others = [
        f"{_WORDS[verdict]} at batch size {joined(found)}" for verdict, found in sizes.items() if verdict in _WORDS
    ]
    if gains:
        verdict = next(verdict for _, verdict in best.values() if verdict in _GOOD)
        text = "; ".join([*gains, *others])
        return Answer("Inference", verdict, "yes" if verdict == "adopt" else "faster", f"{capitalized(text)}.")
    if len(sizes) == 1:
        verdict = next(iter(sizes))
        return Answer("Inference", verdict, _WORDS[verdict], "")
    first, second = sorted(others, reverse=True)  # what is not decided, then what is
    return Answer("Inference", _OPEN, first, f"{capitalized(second)}.")


def _best(compared: Mapping[str, Candidate], measure: str) -> str:
    """The candidate with the best verdict; of several, the fastest."""
    order = ("adopt", "faster", "inconclusive", "reject", "slower")
    known = {name: item for name, item in compared.items() if measure in item.speedups}
    return min(
        known, key=lambda name: (order.index(known[name].verdicts[measure]), -known[name].speedups[measure].ratio)
    )


def _fast(item: Candidate, measure: str) -> str:
    found = item.speedups[measure]
    return f"{found.ratio:.2f}× as fast ({interval_text(found)})"
