"""The gallery as a page of Markdown, and its rows for the README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill

from halfstep.errors import DataError
from halfstep.results.comparison import Candidate
from halfstep.words.escaping import markdown_text
from halfstep.words.text import TRAIN, measure_text, percent_text
from tools.gallery.merging import by_machine, expected_share, held, mean_of, rows_of
from tools.gallery.results import Result, Results, described
from tools.gallery.studies import Study
from tools.gallery.tables import best_of, table

START, END = "<!-- results:start -->", "<!-- results:end -->"
COMMAND = "python -m tools.gallery"
PICTURE = "gallery.svg"
_INTRODUCTION = f"""# Gallery: is lower precision faster on real networks?

`{COMMAND}` measures these studies and writes this page. The command below a study measures it on your
machine, and needs nothing beside this repository and its packages. Bad results stand beside good ones.

Images are scikit-learn's digits, whose accuracy is judged, or synthetic, for which only the speed is. `speed only` then
stands with the verdict, and `faster` and `slower` take the place of `adopt` and `reject`. Brackets are 95 % intervals.
A row of several runs has the mean of their speed-ups, averaged as logarithms. Its interval is Student's t interval
of the runs, which is wide for two of them; the spread is their standard deviation.

mixed_float16 is left out where the machine has no instructions for float16, and would convert each number. In the
picture, a grey bar is the interval of the mean of several runs, and the lines on it are the runs.
"""
_PICTURE = "![Speed-up of training of each network, with its interval](gallery.svg)\n"
_ADD = f"""## Add your machine

Run `{COMMAND} --minutes 70` with no other program running, then `{COMMAND} --add`, and open a
pull request with what it names. The files have the processor, the versions of the libraries, and the comparisons; no
path, host or user. A study that is killed goes on at the next start. `--occasion WORD` measures all of it again, and
both are kept.
"""
_README_NOTE = (
    "Each row has the precision with the largest speed-up. Brackets are 95 % intervals. `speed only`: nothing was "
    "trained, so accuracy is not judged."
)


def render(results: Results, studies: Mapping[str, Study]) -> str:
    """The page.

    Args:
        results: all results, and what cannot be shown.
        studies: all of them, by name.
    """
    machines = by_machine(results, list(studies))
    lines = [_INTRODUCTION, _PICTURE if machines else "There is no result yet.\n"]
    for each in machines.values():
        about = list(described([one for occasions in each.values() for one in occasions]))
        lines += [f"## {markdown_text(about[0])}", "", f"{markdown_text('; '.join(about))}.", ""]
        lines += table(each, studies)
        for name, occasions in each.items():
            lines += ["", *_details(studies[name], occasions)]
        lines += _occasions(each, studies)
        lines.append("")
    lines.append(_ADD)
    if results.left_out:
        lines += ["## Files that are left out", "", *(f"- {markdown_text(line)}" for line in results.left_out), ""]
    return "\n".join(lines).rstrip() + "\n"


def _details(study: Study, occasions: Sequence[Result]) -> Iterator[str]:
    """The verdict on the best candidate in lower precision, why, what would change it, and the command."""
    row = best_of(occasions, study)
    candidate = row.newest
    yield f"### {markdown_text(study.title)}"
    yield ""
    yield f"{markdown_text(study.shows)} `{COMMAND} --study {study.name}`, about {_minutes(occasions)} min here."
    yield ""
    yield f"- Verdict: {markdown_text(candidate.sentence)}"
    yield f"- Why: {markdown_text(_why(candidate))}"
    yield f"- What would change it: {markdown_text(_what_changes(candidate))}"


def _minutes(occasions: Sequence[Result]) -> int:
    return max(1, round(max(result.seconds for result in occasions) / 60))


def _why(candidate: Candidate) -> str:
    """The main cause of what training gains or loses; else the first reason, with its numbers."""
    texts = [reason.text for reason in candidate.reasons if reason.measure == TRAIN]
    return candidate.why or next(iter(texts), "not found: the parts of the step change by less than their noise.")


def _what_changes(candidate: Candidate) -> str:
    """What would settle training; else what its first reason advises."""
    others = ("inference", "to measure that long")
    steps = [step for step in candidate.next_steps or () if not any(word in step.lower() for word in others)]
    advice = [reason.advice for reason in candidate.reasons if reason.measure == TRAIN]
    return next(iter([*steps, *advice]), "nothing that was found here.")


def _occasions(each: Mapping[str, Sequence[Result]], studies: Mapping[str, Study]) -> list[str]:
    """How often the interval of an occasion holds the mean of the others; empty where no study has two."""
    lines = [
        f"| {' | '.join(map(markdown_text, cells))} |"
        for name, occasions in each.items()
        if len(occasions) > 1
        for cells in held_cells(occasions, studies[name].title)
    ]
    if not lines:
        return []
    head = ("study", "measure", "half-width of one run", "spread between runs", "held", "expected")
    return [
        *("", "### How often the intervals held", ""),
        "An interval of one run is right if it holds the mean of the others. Expected is how often it would if nothing "
        "but noise within a run made them differ.",
        *("", f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines),
    ]


def held_cells(occasions: Sequence[Result], title: str) -> Iterator[tuple[str, ...]]:
    """For each measure of a study: how wide the intervals are, how the occasions differ, and how many held."""
    rows = rows_of(occasions)
    measures = dict.fromkeys(measure for row in rows for candidate in row.candidates for measure in candidate.speedups)
    for measure in measures:
        groups = [ratios for row in rows if len(ratios := row.ratios(measure)) > 1]
        if not groups:
            continue
        total = sum(map(len, groups))
        widths = [(ratio.high - ratio.low) / 2 / ratio.ratio for ratios in groups for ratio in ratios]
        spreads = [mean_of(ratios).spread or 0.0 for ratios in groups]
        expected = sum(len(ratios) * expected_share(len(ratios)) for ratios in groups)
        yield (
            *(title, measure_text(measure), f"±{percent_text(sum(widths) / len(widths), 1)}"),
            percent_text(sum(spreads) / len(spreads), 1),
            f"{sum(map(held, groups))} of {total}",
            f"{expected:.1f} of {total}",
        )


def readme_rows(results: Results, studies: Mapping[str, Study]) -> str:
    """The studies for the README on the machine with the most of them, and its description; empty without a result."""
    wanted = [name for name, study in studies.items() if study.in_readme]
    each = next(iter(by_machine(results, wanted).values()), None)
    if each is None:
        return ""
    about = "; ".join(described([one for occasions in each.values() for one in occasions]))
    return "\n".join([*table(each, studies, best=True), "", fill(f"{markdown_text(about)}. {_README_NOTE}", 120)])


def between_markers(text: str, rows: str) -> str:
    """The text of the README with these rows between its markers.

    Raises:
        DataError: it has no such markers.
    """
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise DataError(f"README.md lacks {START} or {END}: add both around the table")
    return f"{before}{START}\n{rows}\n{END}{after}"
