"""The comparison as Markdown, from `comparison.json`: the description of its run, and a comment on a pull request.

python -m stages.compare.report.markdown > comment.md
"""

from __future__ import annotations

from collections.abc import Iterable

from stages.errors import cli_entry
from stages.escaping import markdown_text, truncated_markdown
from stages.results.comparison import COMPARISON, CandidateResult, ComparisonResult

MAX_DESCRIPTION = 7900  # characters; a tag of MLflow holds 8,000


def render_markdown(comparison: ComparisonResult) -> str:
    """The verdicts, a table of the numbers, and for each candidate its reasons and next steps."""
    candidates = comparison.candidates
    device = markdown_text(comparison.environment["device"])
    lines = [f"Compared with {markdown_text(comparison.baseline)} on {device}.", ""]
    if comparison.gate is not None:
        lines += [f"Gate: **{comparison.gate}**", ""]
    lines += [
        f"- **{markdown_text(name)}: {item.verdict}.** {markdown_text(item.sentence)}"
        for name, item in candidates.items()
    ]
    rows = [row for name, item in candidates.items() for row in _rows(name, item)]
    if rows:
        lines += ["", "| candidate | measure | speed-up | 95 % interval | verdict |"]
        lines += ["| --- | --- | ---: | ---: | --- |", *rows]
    for name, item in candidates.items():
        lines += _details(name, item)
    return "\n".join(lines) + "\n"


def description(comparison: ComparisonResult) -> str:
    """The same, truncated at the end of a line to what MLflow stores."""
    return truncated_markdown(render_markdown(comparison), MAX_DESCRIPTION, "The rest is in report.html.")


def _rows(name: str, item: CandidateResult) -> Iterable[str]:
    for measure, found in (item.speedup or {}).items():
        yield (
            f"| {markdown_text(name)} | {markdown_text(measure)} "
            f"| {found.ratio:.2f}× | {found.low:.2f} to {found.high:.2f} "
            f"| {item.verdicts[measure]} |"
        )
    if (quality := item.quality) is not None:
        yield (
            f"| {markdown_text(name)} | {markdown_text(quality.name)}, points | {100 * quality.delta:+.2f} "
            f"| {100 * quality.low:+.2f} to {100 * quality.high:+.2f} "
            f"| the same within {100 * quality.margin:g}: {quality.outcome} |"
        )


def _details(name: str, item: CandidateResult) -> list[str]:
    lines = [
        f"- {markdown_text(reason.text)} {markdown_text(reason.advice)} (`{reason.code}`)" for reason in item.reasons
    ]
    lines += [f"- To settle it: {markdown_text(sentence)}" for sentence in item.next_steps or ()]
    return ["", f"**Why, {markdown_text(name)}**", "", *lines] if lines else []


@cli_entry
def main() -> None:
    """Prints the Markdown of `data/compare/comparison.json`."""
    print(render_markdown(ComparisonResult.read(COMPARISON)), end="")


if __name__ == "__main__":
    raise SystemExit(main())
