"""The comparison as Markdown, from `comparison.json`: the description of its run, and a comment on a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from halfstep.compare.report import serving
from halfstep.compare.report.answer import answers
from halfstep.compare.report.rows import heads, rows
from halfstep.compare.report.tables import batch_table
from halfstep.compare.text import speed_only_note, verdict_text
from halfstep.escaping import markdown_text, truncated_markdown
from halfstep.results.comparison import Candidate, Comparison
from halfstep.text import measure_label

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
        lines += [markdown_text(": ".join(filter(None, ["Gate", comparison.gate, comparison.gate_text]))), ""]
    lines += [
        f"- **{markdown_text(name)}: {verdict_text(item.verdict, speed_only=comparison.speed_only)}.** "
        f"{markdown_text(' '.join(item.sentences))}"
        for name, item in candidates.items()
    ]
    for name, of_one in rows(comparison).items():
        lines += _table(heads(comparison, name), [row.cells for row in of_one])
    lines += _table(*batch_table(comparison))
    if comparison.serving is not None:
        lines += ["", markdown_text(comparison.serving.sentence)]
        lines += _table(serving.heads(comparison), serving.cells(comparison))
        lines += ["", f"{markdown_text(serving.caption(comparison.serving))}."]
        lines += [f"\n{markdown_text(text)}" for text in serving.refusals(comparison.serving)]
    for note in comparison.notes or ():
        lines += ["", markdown_text(note)]
    for name, item in candidates.items():
        lines += _details(name, item)
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    if not cells:
        return []
    lines = ["", f"| {' | '.join(map(markdown_text, columns))} |", f"| --- |{' ---: |' * (len(columns) - 1)}"]
    return [*lines, *(f"| {' | '.join(map(markdown_text, map(str.strip, row)))} |" for row in cells)]


def description(comparison: Comparison) -> str:
    """The same, truncated at the end of a line to what MLflow stores."""
    return truncated_markdown(render_markdown(comparison), MAX_DESCRIPTION, "The rest is in report.html.")


def _details(name: str, item: Candidate) -> list[str]:
    lines = [
        f"- {markdown_text(f'{reason.text} {reason.advice}')} (`{reason.code}`, {measure_label(reason.measure)})"
        for reason in item.reasons
    ]
    lines += [f"- To settle it: {markdown_text(sentence)}" for sentence in item.next_steps or ()]
    return ["", f"**Why, {markdown_text(name)}**", "", *lines] if lines else []
