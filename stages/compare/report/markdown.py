"""The comparison as Markdown, from `comparison.json`: the description of its run, and a comment on a pull request.

python -m stages.compare.report.markdown > comment.md
"""

from __future__ import annotations

from collections.abc import Iterable

from stages.errors import cli_entry
from stages.results.comparison import COMPARISON, CandidateResult, ComparisonResult

MAX_DESCRIPTION = 7900  # characters; a tag of MLflow holds 8,000
_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#"})


def render_markdown(comparison: ComparisonResult) -> str:
    """The verdicts, a table of the numbers, and for each candidate its reasons and next steps."""
    candidates = comparison.candidates
    device = _escaped(comparison.environment["device"])
    lines = [f"Compared with {_escaped(comparison.baseline)} on {device}.", ""]
    if comparison.gate is not None:
        lines += [f"Gate: **{comparison.gate}**", ""]
    lines += [f"- **{_escaped(name)}: {item.verdict}.** {_escaped(item.sentence)}" for name, item in candidates.items()]
    rows = [row for name, item in candidates.items() for row in _rows(name, item)]
    if rows:
        lines += ["", "| candidate | measure | speed-up | 95 % interval | verdict |"]
        lines += ["| --- | --- | ---: | ---: | --- |", *rows]
    for name, item in candidates.items():
        lines += _details(name, item)
    return "\n".join(lines) + "\n"


def description(comparison: ComparisonResult) -> str:
    """The same, truncated at the end of a line to what MLflow stores."""
    text = render_markdown(comparison)
    if len(text) <= MAX_DESCRIPTION:
        return text
    return text[: text.rindex("\n", 0, MAX_DESCRIPTION)] + "\n\nThe rest is in report.html.\n"


def _rows(name: str, item: CandidateResult) -> Iterable[str]:
    for measure, found in (item.speedup or {}).items():
        yield (
            f"| {_escaped(name)} | {_escaped(measure)} | {found.ratio:.2f}× | {found.low:.2f} to {found.high:.2f} "
            f"| {item.verdicts[measure]} |"
        )
    if (quality := item.quality) is not None:
        yield (
            f"| {_escaped(name)} | {_escaped(quality.name)}, points | {100 * quality.delta:+.2f} "
            f"| {100 * quality.low:+.2f} to {100 * quality.high:+.2f} "
            f"| the same within {100 * quality.margin:g}: {quality.outcome} |"
        )


def _details(name: str, item: CandidateResult) -> list[str]:
    lines = [f"- {_escaped(reason.text)} {_escaped(reason.advice)} (`{reason.code}`)" for reason in item.reasons]
    lines += [f"- To settle it: {_escaped(sentence)}" for sentence in item.next_steps or ()]
    return ["", f"**Why, {_escaped(name)}**", "", *lines] if lines else []


def _escaped(text: str) -> str:
    """Text without special characters of Markdown or HTML: names come from folders and parameters."""
    return " ".join(text.split()).translate(_SPECIAL)


@cli_entry
def main() -> None:
    """Prints the Markdown of `data/compare/comparison.json`."""
    print(render_markdown(ComparisonResult.read(COMPARISON)), end="")


if __name__ == "__main__":
    raise SystemExit(main())
