"""The comparison with names that are code in the language of a report."""

from __future__ import annotations

import io
from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console

from halfstep.compare.case import Case, Judging
from halfstep.compare.study import VariantResult
from halfstep.errors import printable
from tests.compare.report.test_html import _Balance
from tests.hostile_names import NAMES
from tests.small_study import SmallStudy, given, html_of, terminal_of


class _Page(_Balance):
    """Tags and attributes of a page that must be balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def _renamed(comparison: Judging, name: str) -> Judging:
    """The comparison with this name for its second candidate."""

    def named(result: VariantResult) -> VariantResult:
        return replace(result, variant=name) if result.variant == "mixed_bfloat16" else result

    study = replace(comparison.study, candidates=tuple(map(named, comparison.study.candidates)))
    cases = tuple(
        given(case, result=(result := named(case.result)), variant=result.variant, speedups=case.speedups)
        for case in comparison.cases
    )
    return given(comparison, study=study, cases=cases)


def _named(item: Case) -> Case:
    """The candidate with a layer, a class and an operation of each of `NAMES`."""
    if item.accounts is None:
        return item
    rows = item.accounts.candidate
    repeats = rows[["process"]].drop_duplicates()
    own = dict.fromkeys(("layer", "layer_class", "operation", "dtype"))
    more = [repeats.assign(kind="memory", time_ms=1.0, **dict.fromkeys(own, name)) for name in NAMES]
    return given(item, accounts=replace(item.accounts, candidate=pd.concat([rows, *more])), account=item.account)


def test_page_shows_any_name_as_text(project: SmallStudy) -> None:
    plain = _Page(html_of(project.compare()))
    project.edit_profile("mixed_bfloat16", warnings=NAMES)
    comparison = project.compare()
    environment = comparison.study.environment | {
        "device": NAMES[0],
        "settings": {f"A{n}": x for n, x in enumerate(NAMES)},
    }
    comparison = given(
        comparison,
        study=replace(comparison.study, environment=environment),
        cases=tuple(map(_named, comparison.cases)),
    )
    html = html_of(_renamed(comparison, "".join(NAMES)))
    page = _Page(html)
    assert page.tags <= plain.tags
    assert page.attributes <= plain.attributes
    assert all(char.isprintable() for char in html.replace("\n", ""))
    text = "".join(page.text)
    assert [name for name in NAMES if printable(name) not in text] == []


@pytest.mark.parametrize("name", [name for name in NAMES if len(name) < 20 and printable(name) == name])
def test_terminal_shows_any_name_as_text(comparison: Judging, name: str) -> None:
    console = Console(file=io.StringIO(), width=300, color_system="truecolor", force_terminal=True)
    console.print(terminal_of(_renamed(comparison, name)))
    assert isinstance(console.file, io.StringIO)
    assert any(name in line for line in console.file.getvalue().splitlines() if "mean" in line)
