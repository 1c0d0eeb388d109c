"""The answer in six lines, from the document: the same in the terminal, on the page, in MLflow and in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from halfstep.compare.explain.why import short_why
from halfstep.compare.ratio_text import large_ratio_text, ratio_text
from halfstep.results.comparison import (
    ANSWER_WIDTH,
    Answer,
    Candidate,
    Comparison,
    OpenQuestion,
    Verdict,
)
from halfstep.results.profile import Setting
from halfstep.system import rerun
from halfstep.system.files import shown, shown_report
from halfstep.words.policies import short_name
from halfstep.words.text import TRAIN, batch_size_of, joined, percent_text, yaml_text

_ORDER: Sequence[Verdict] = ("adopt", "faster", "inconclusive", "reject", "slower")
_GOOD = ("adopt", "faster")
_MOSTLY = 0.5  # of a step
_SHOWN = 2  # candidates in a line, and open questions
_DISTURBED = "not known: the measurement was disturbed"


def answer_of(comparison: Comparison) -> Answer:
    """What was found, what is open, and what to do next."""
    ranked = _ranked(comparison, TRAIN)
    first = ranked[0] if ranked else None
    questions, is_void = _questions(comparison), comparison.is_void(TRAIN)
    following, command = _next(comparison, questions)
    return Answer(
        training=_training(comparison, ranked),
        why=short_why(_short(first, comparison), comparison.candidates[first]) if first and not is_void else None,
        inference=_inference(comparison),
        open=_open(questions),
        next=following,
        command=command,
        report=str(shown_report()),
    )


def _short(name: str, comparison: Comparison) -> str:
    return short_name(name, (comparison.baseline, *comparison.candidates))


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


def _ranked(comparison: Comparison, measure: str) -> list[str]:
    """The candidates with a speed-up, the best verdict first; of several, the fastest."""
    known = {name: item for name, item in comparison.candidates.items() if measure in item.speedups}
    return sorted(
        known, key=lambda name: (_ORDER.index(known[name].verdicts[measure]), -known[name].speedups[measure].ratio)
    )


def _training(comparison: Comparison, ranked: Sequence[str]) -> str:
    if not ranked:
        return f"not known: no variant could be compared{_failed(comparison, '; ')}"
    if comparison.is_void(TRAIN):
        return _DISTURBED
    name = ranked[0]
    item, short = comparison.candidates[name], _short(name, comparison)
    speedup, score = item.speedups[TRAIN], _score(comparison)
    if item.verdict == "adopt":
        return f"yes: {short} {ratio_text(speedup)}, {score} the same{_failed(comparison, '; ')}"
    if item.verdict == "faster":
        return f"faster: {short} {ratio_text(speedup)}; {score} not measured{_failed(comparison, '; ')}"
    measured = _with_others(f"{short} {ratio_text(speedup)}", comparison, ranked[1:])
    if item.verdict == "inconclusive" and comparison.side(speedup) != "below":
        return f"not decided: {measured}"
    if item.waiting is not None and item.waiting.share >= _MOSTLY and item.has_reason("input_bound", TRAIN):
        return f"no: {percent_text(item.waiting.share)} of a step waits for input; {measured}"
    if speedup.ratio < comparison.min_speedup:
        return f"no: keep {comparison.baseline}. {measured}"
    return f"no: {short} {ratio_text(speedup)}, but {_otherwise(item, TRAIN, comparison)}"


def _with_others(text: str, comparison: Comparison, others: Sequence[str]) -> str:
    """A text on the first candidate, with the ratio of the next one, and how many more there are."""
    for number, name in enumerate(others, 1):
        other = f", {_short(name, comparison)} {comparison.candidates[name].speedups[TRAIN].ratio:.2f}×"
        if number == _SHOWN or len(f"no: keep {comparison.baseline}. {text}{other}") > ANSWER_WIDTH:
            return f"{text}, and {len(others) - number + 1} more{_failed(comparison, '; ')}"
        text += other
    return f"{text}{_failed(comparison, ', ')}"


def _failed(comparison: Comparison, before: str) -> str:
    measured = {name for name, item in comparison.candidates.items() if item.speedups}
    names = [_short(name, comparison) for name in comparison.failed or () if name not in measured]
    return f"{before}{joined(names)} failed" if names else ""


def _otherwise(item: Candidate, measure: str, comparison: Comparison) -> str:
    """Why a candidate is rejected that is fast enough."""
    quality = item.quality if measure == TRAIN else item.quality_same_weights
    if quality is not None and quality.outcome == "refuted":
        return f"it loses {quality.name}"
    if any(recall.outcome == "refuted" for recall in item.classes or ()):
        return "a class loses recall"
    factors = (item.factors or {}).get(measure)
    if factors is not None and comparison.side(factors.precision) == "below":
        return f"its precision makes {factors.precision.ratio:.2f}×"
    return "its steps wait too long for their input"


def _score(comparison: Comparison) -> str:
    return "quality" if comparison.score is None or comparison.score.name == "none" else comparison.score.name


def _inference(comparison: Comparison) -> str | None:
    """A served format where one is good; else what the precision brings, at the batch size where it brings most."""
    serving = comparison.serving
    row = None if serving is None else serving.best_row
    if serving is not None and row is not None and serving.best_ratio is not None:
        times = large_ratio_text(serving.best_ratio).replace("×", "× Keras", 1)
        how = f"{serving.weights} as {row.label}, {times}"
        if row.quality is None:
            return f"faster: {how}; {_score(comparison)} not measured"
        return f"yes: {how}, {row.quality.name} the same"
    best = {
        measure: ranked[0]
        for measure in dict.fromkeys(key for item in comparison.candidates.values() for key in item.speedups)
        if measure != TRAIN and not comparison.is_void(measure) and (ranked := _ranked(comparison, measure))
    }
    undecided = _undecided_format(comparison)
    if not best:
        was_timed = any(measure != TRAIN for item in comparison.candidates.values() for measure in item.speedups)
        return undecided or (_DISTURBED if was_timed else None)
    verdicts = {measure: comparison.candidates[name].verdicts[measure] for measure, name in best.items()}
    measure = min(best, key=lambda at: _ORDER.index(verdicts[at]))
    name, verdict = best[measure], verdicts[measure]
    if verdict not in _GOOD and undecided is not None:
        return undecided
    speedup = comparison.candidates[name].speedups[measure]
    measured = f"{_short(name, comparison)} {ratio_text(speedup)} at batch {batch_size_of(measure)}"
    words = {"adopt": "yes: ", "faster": "faster: ", "inconclusive": "not decided: "}
    others = [f"{batch_size_of(at)}" for at, item in verdicts.items() if at != measure and item not in _GOOD]
    if verdict == "reject" and speedup.ratio >= comparison.min_speedup:
        return f"no: {measured}, but {_otherwise(comparison.candidates[name], measure, comparison)}"
    only = f"; at {joined(others)} not" if others and verdict in _GOOD else ""
    return f"{words.get(verdict, f'no: keep {comparison.baseline}. ')}{measured}{only}"


def _undecided_format(comparison: Comparison) -> str | None:
    """The fastest format that is faster, of which the score is not shown to be the same; None without one."""
    serving = comparison.serving
    if serving is None or not serving.measures:
        return None
    found = {
        row.label: latency
        for row in serving.judged_rows
        if row.verdict == "inconclusive" and row.quality is not None and row.quality.outcome == "not established"
        if (latency := row.timed[serving.measures[0]]).low > comparison.min_speedup
    }
    if not found:
        return None
    label = max(found, key=lambda name: found[name].ratio)
    times = large_ratio_text(found[label]).replace("×", "× Keras", 1)
    return f"not decided: {serving.weights} as {label}, {times}, {_score(comparison)} not shown to be the same"


def _questions(comparison: Comparison) -> list[OpenQuestion]:
    """What is worth more time, what was disturbed first; not how a precision infers where a format is better."""
    is_served = comparison.serving is not None and comparison.serving.best is not None
    adopted = any(item.verdict == "adopt" for item in comparison.candidates.values())
    found = [question for item in comparison.candidates.values() for question in item.open or ()]
    found = [item for item in found if not (is_served and item.of == "inference")]
    found = [item for item in found if not (adopted and item.of == "training")]
    return sorted({item.text: item for item in found}.values(), key=lambda item: item.again is None)


def _open(questions: Sequence[OpenQuestion]) -> str:
    texts = [item.text for item in questions]
    more = f"; {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{'; '.join(texts[:_SHOWN])}{more}" or "nothing worth more time"


def _next(comparison: Comparison, questions: Sequence[OpenQuestion]) -> tuple[str, str | None]:
    """What to do, and the command that does it."""
    settings = comparison.setup.settings if comparison.setup else {}
    for name in _ranked(comparison, TRAIN)[:1]:
        if comparison.candidates[name].verdict == "adopt" and name in settings:
            return f"set {joined(list(_settings_texts(settings[name])))}", None
    if disturbed := next((item for item in questions if item.again is not None), None):
        return "stop other programs, then measure again", rerun.again(str(disturbed.again))
    longest = max(
        (item.settings for item in questions if item.settings is not None),
        key=lambda values: float(values.get("profile.processes") or 0),
        default=None,
    )
    if longest is not None:
        return "measure longer", rerun.with_values(longest)
    row = None if comparison.serving is None else comparison.serving.best_row
    if row is not None and row.file is not None:
        return f"load {shown(row.file)}", None
    if (advice := _advice_of_failed(comparison)) is not None:
        return advice, None
    if (why := no_help(comparison)) is not None:
        return why, None
    if any(reason.change and reason.measure == TRAIN for of_one in comparison.reasons.values() for reason in of_one):
        return "see what can be tried", "halfstep advise"
    return "nothing here names a setting to try; the report has the reasons", None


def _advice_of_failed(comparison: Comparison) -> str | None:
    """What a failed variant needs, where nothing could be compared."""
    reasons = [reason for name, item in comparison.candidates.items() for reason in item.reasons if not item.speedups]
    return next((reason.advice for reason in reasons if reason.code == "arm_failed"), None)


def _settings_texts(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Every setting of a variant as a user sets it in their own program."""
    known: Mapping[tuple[str, Setting], str] = {
        ("onednn", False): "TF_ENABLE_ONEDNN_OPTS=0",
        ("onednn", True): "TF_ENABLE_ONEDNN_OPTS=1",
        ("xla", True): "jit_compile=True",
        ("xla", False): "jit_compile=False",
    }
    for key, value in settings.items():
        if key == "policy":
            yield f'keras.config.set_dtype_policy("{value}")'
        elif key == "float32_layers":
            yield f'dtype="float32" of {value}'
        else:
            yield known.get((key, value), f"{key}: {yaml_text(value)}")
