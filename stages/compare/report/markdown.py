"""The comparison as Markdown, from `comparison.json`: the description of its run, and a comment on a pull request.

python -m stages.compare.report.markdown > comment.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stages.cli import cli_entry
from stages.compare.report.answer import answers
from stages.compare.report.tables import at_equal_batch, batch_table
from stages.compare.scale import Scale
from stages.compare.text import speed_only_note, verdict_text
from stages.escaping import markdown_text, truncated_markdown
from stages.results.comparison import COMPARISON, Candidate, Comparison, Quality, Ratio
from stages.text import measure_label, ms_text, number_text, timed_label

MAX_DESCRIPTION = 7900  # characters; a tag of MLflow holds 8,000


def render_markdown(comparison: Comparison) -> str:
    """The verdicts, a table of the numbers, and for each candidate its reasons and next steps."""
    candidates = comparison.candidates
    device = markdown_text(comparison.environment["device"])
    lines = [f"- **{item.about}: {item.word}.** {markdown_text(item.text)}".rstrip() for item in answers(comparison)]
    lines += ["", f"Compared with {markdown_text(comparison.baseline)} on {device}.", ""]
    if comparison.speed_only:
        lines += [markdown_text(speed_only_note(comparison.why_speed_only)), ""]
    if comparison.gate is not None:
        lines += [f"Gate: **{comparison.gate}**", ""]
    lines += [
        f"- **{markdown_text(name)}: {verdict_text(item.verdict, speed_only=comparison.speed_only)}.** "
        f"{markdown_text(' '.join(item.sentences))}"
        for name, item in candidates.items()
    ]
    compared = at_equal_batch(comparison)
    rows = [row for name, item in compared.items() for row in _rows(name, item)]
    rows += [row for name in compared for row in _cost_rows(name, comparison)] if rows else []
    if rows:
        before = markdown_text(comparison.baseline)
        verdict = "verdict, speed only" if comparison.speed_only else "verdict"
        lines += ["", f"| candidate | measure | {before}, mean | candidate, mean | ratio | 95 % interval | {verdict} |"]
        lines += ["| --- | --- | ---: | ---: | ---: | ---: | --- |", *rows]
    lines += _table(*batch_table(comparison))
    for note in comparison.notes or ():
        lines += ["", markdown_text(note)]
    for name, item in candidates.items():
        lines += _details(name, item)
    return "\n".join(lines) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = ["", f"| {' | '.join(map(markdown_text, heads))} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    return [*lines, *(_row(row[0], *map(markdown_text, row[1:])) for row in rows)]


def description(comparison: Comparison) -> str:
    """The same, truncated at the end of a line to what MLflow stores."""
    return truncated_markdown(render_markdown(comparison), MAX_DESCRIPTION, "The rest is in report.html.")


def _rows(name: str, item: Candidate) -> Iterator[str]:
    """The table's rows of a candidate; times are of a step or a call, and their quotient is the ratio."""
    for measure, found in item.speedups.items():
        times = [ms_text(time_ms) for time_ms in (found.baseline_time_ms, found.candidate_time_ms)]
        yield _row(name, timed_label(measure), *times, *_ratio_cells(found), item.verdicts[measure])
        if (factors := (item.factors or {}).get(measure)) is not None:
            yield _row("", "= settings", "", "", *_ratio_cells(factors.settings), "")
            yield _row("", "× precision", "", "", *_ratio_cells(factors.precision), "")
    changes = {"two trainings": item.quality, "the same weights": item.quality_same_weights}
    for what, quality in changes.items():
        if quality is not None:
            yield _quality_row(name, what, quality)


def _cost_rows(name: str, comparison: Comparison) -> Iterator[str]:
    """What stands beside the speed-ups: a whole training, and the start of a process."""
    costs = {"wall time of a training": comparison.train_time_s, "processor time to start": comparison.startup_s}
    for label, seconds in costs.items():
        if seconds is not None and name in seconds and comparison.baseline in seconds:
            times = [f"{number_text(seconds[variant])} s" for variant in (comparison.baseline, name)]
            yield _row(name, label, *times, "", "", "")


def _quality_row(name: str, what: str, quality: Quality) -> str:
    scale = Scale.of(quality)
    levels = [scale.value(level) for level in (quality.baseline, quality.candidate)]
    found = {"shown": "the loss is at most {}", "refuted": "the loss is more than {}"}
    outcome = found.get(quality.outcome, "the loss may be more than {}").format(scale.margin_number)
    label = f"{markdown_text(quality.name)}{',' if scale.points else ''}{scale.short_points}, {what}"
    return _row(name, label, *levels, scale.signed(quality.delta), scale.interval(quality), outcome)


def _ratio_cells(found: Ratio) -> tuple[str, str]:
    return f"{found.ratio:.2f}×", f"{found.low:.2f} to {found.high:.2f}"


def _row(name: str, *cells: str) -> str:
    return f"| {' | '.join([markdown_text(name), *cells])} |"


def _details(name: str, item: Candidate) -> list[str]:
    lines = [
        f"- {markdown_text(f'{reason.text} {reason.advice}')} (`{reason.code}`, {measure_label(reason.measure)})"
        for reason in item.reasons
    ]
    lines += [f"- To settle it: {markdown_text(sentence)}" for sentence in item.next_steps or ()]
    return ["", f"**Why, {markdown_text(name)}**", "", *lines] if lines else []


@cli_entry
def main() -> None:
    """Prints the Markdown of `data/compare/comparison.json`."""
    print(render_markdown(Comparison.read(COMPARISON)), end="")


if __name__ == "__main__":
    raise SystemExit(main())
