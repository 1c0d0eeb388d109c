"""The rows of a table: what was compared, and what each candidate brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from halfstep.compare.ratio_text import ratio_text, verdict_text
from halfstep.results.comparison import Candidate
from halfstep.words.escaping import markdown_text
from halfstep.words.text import TRAIN, batch_size_of, ms_text, percent_text
from tools.gallery.merging import CandidateRow, mean_of, rows_of
from tools.gallery.results import Result
from tools.gallery.studies import Study

HEAD = ("study", "variant", "training step", "speed-up of training", "change of the score", "verdict", "inference")


def table(each: Mapping[str, Sequence[Result]], studies: Mapping[str, Study], *, best: bool = False) -> list[str]:
    """A table of the candidates of some studies on one machine; with `best`, a short one of one candidate a study."""
    columns = (0, 1, 3, 5) if best else range(len(HEAD))
    lines = [f"| {' | '.join(HEAD[column] for column in columns)} |", f"|{' --- |' * len(columns)}"]
    for name, occasions in each.items():
        rows = [best_of(occasions, studies[name])] if best else rows_of(occasions)
        for number, row in enumerate(rows):
            title = f"{studies[name].title} ({_data(occasions[-1])})" if number == 0 else ""
            texts = (title, *cells(row))
            lines.append(f"| {' | '.join(markdown_text(texts[column]) for column in columns)} |")
    return lines


def cells(row: CandidateRow) -> tuple[str, ...]:
    """The columns of `HEAD` but the first."""
    candidate, ratios = row.newest, row.ratios(TRAIN)
    step, speedup = "", "not compared"
    if ratios:
        newest = candidate.speedups.get(TRAIN)
        step = f"{ms_text(newest.baseline_time_ms)} → {ms_text(newest.candidate_time_ms)}" if newest else ""
        speedup = ratio_text(mean := mean_of(ratios))
        if mean.spread is not None:
            speedup += f", {len(ratios)} runs, spread {percent_text(mean.spread, 1)}"
    return row.name, step, speedup, _quality(candidate), _verdict(row), _inference(row)


def _inference(row: CandidateRow) -> str:
    """The speed-ups and verdicts of inference, those of the newest occasion."""
    candidate = row.newest
    measures = [measure for measure in candidate.speedups if measure != TRAIN]
    return "; ".join(
        f"batch {batch_size_of(measure)}: {ratio_text(mean_of(row.ratios(measure)))}, {candidate.verdicts[measure]}"
        for measure in measures
    )


def _verdict(row: CandidateRow) -> str:
    speed_only = row.results[-1].comparison.speed_only
    words = [candidate.verdict for candidate in row.candidates]
    if len(set(words)) == 1:
        return verdict_text(words[0], speed_only=speed_only)
    counts = ", ".join(f"{word} {words.count(word)}×" for word in sorted(set(words)))
    return verdict_text(row.verdict, speed_only=speed_only) + f" ({counts})"


def _quality(candidate: Candidate) -> str:
    if (quality := candidate.quality) is None:
        return "not judged"
    numbers = (quality.delta, quality.low, quality.high)
    return f"{quality.name} {{}} ({{}} to {{}})".format(*(f"{value:+.3f}".replace("-", "−") for value in numbers))


def _data(result: Result) -> str:
    """What is trained on, and whether its quality is judged."""
    setup, comparison = result.comparison.setup, result.comparison
    source = setup.data.source if setup and setup.data else "made by the example"
    return (
        f"{source}: speed only"
        if comparison.speed_only
        else f"{source}: {comparison.score.name}"
        if comparison.score
        else source
    )


def best_of(occasions: Sequence[Result], study: Study) -> CandidateRow:
    """The candidate in lower precision with the largest speed-up of training."""
    rows = rows_of(occasions)
    lower = [row for row in rows if study.lowers_precision(row.name)]
    return max(lower or rows, key=lambda row: mean_of(row.ratios(TRAIN)).ratio if row.ratios(TRAIN) else 0.0)
