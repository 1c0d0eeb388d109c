"""Reports show the changes of their variants that `stages.advise` tried before."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from stages import params
from stages.compare.judge import document_of
from stages.compare.report.html import render_report
from stages.compare.report.markdown import render_markdown
from stages.compare.report.terminal import render
from stages.escaping import markdown_text
from stages.params import Params
from stages.results import trials
from stages.results.comparison import Ratio, Remedy, Trial
from tests.small_study import SmallStudy


def trial(variant: str, parent: str, *, kept: bool = False, **others: Any) -> Trial:
    values: dict[str, Any] = {
        "variant": variant,
        "parent": parent,
        "entry": {},
        "experiment": f"advise-{variant}",
        "change": Remedy(key=f"variants.{parent}.xla", before=None, to=True),
        "reason": "step_overhead",
        "over_parent": Ratio(value=0.99, low=0.9, high=1.09),
        "verdict": "reject",
        "kept": kept,
        "seconds": 60.0,
        "parameters_sha256": trials.digest_of(Params()),
    }
    return Trial(**values | others)


TRIALS = (
    trial("float32_xla_on", "float32"),
    trial("float32_batch_64", "float32", kept=True),
    trial("float32_batch_64_xla_on", "float32_batch_64"),
    trial("mixed_bfloat16", "float32"),  # is measured itself
    trial("other_xla_on", "other"),  # of a variant that is not compared
)


def test_changes_of_the_variants_that_are_not_measured_here_are_shown(project: SmallStudy) -> None:
    found = document_of(project.compare(), TRIALS)
    assert [item.variant for item in found.tried or ()] == [item.variant for item in TRIALS[:3]]
    assert document_of(project.compare(), TRIALS[3:]).tried is None
    expected = ("float32_xla_on", "xla: null → true", "0.99× (0.90 to 1.09) over float32", "dropped")
    report = render_report(found, None)
    assert all(f">{text}<" in report for text in expected)
    assert f"| {' | '.join(map(markdown_text, expected))} |" in render_markdown(found)
    shown = Console(file=io.StringIO(), width=200)
    shown.print(render(found, None))
    assert isinstance(shown.file, io.StringIO)
    assert f"Tried before: {expected[0]} ({expected[1]}): {expected[2]}, dropped" in shown.file.getvalue()


def test_trials_of_other_parameters_do_not_count(project: SmallStudy) -> None:
    trials.add(TRIALS[0])
    settings = params.Params()
    assert trials.of(settings) == TRIALS[:1]
    fewer = settings.train.model_copy(update={"variants": ("float32",)})
    assert trials.of(settings.model_copy(update={"train": fewer})) == TRIALS[:1]
    longer = settings.train.model_copy(update={"epochs": 99})
    assert trials.of(settings.model_copy(update={"train": longer})) == ()
