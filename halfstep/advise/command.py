"""`python -m halfstep advise [NUMBER | formats | --all]`: lists what is advised, or tries it as DVC experiments."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from halfstep import params
from halfstep.advise import experiment
from halfstep.advise.advice import Advice, advice_of, alternatives, with_variants
from halfstep.advise.serving import serving_lines, try_formats
from halfstep.advise.trial import Trial, best_of
from halfstep.cli import cli_entry
from halfstep.compare.report.answer import no_help
from halfstep.compare.rules.layer_sets import MOST_SETS
from halfstep.errors import AdviceError
from halfstep.params import Params
from halfstep.results.comparison import COMPARISON, Comparison
from halfstep.terminal import wide_console
from halfstep.text import capitalized, yaml_text

_FORMATS = "formats"


@cli_entry
def main() -> None:
    """Entry point."""
    arguments = _arguments()
    settings, comparison = params.load(), Comparison.read(COMPARISON)
    all_advice = advice_of(comparison, settings)
    if arguments.what is None and not arguments.all:
        _list(all_advice, comparison, as_json=arguments.json)
        if not arguments.json:
            for line in serving_lines(comparison, settings):
                print(line)
        return
    with experiment.alone():
        experiment.remove_clones()  # of an earlier start that was killed
        if arguments.what == _FORMATS:
            kept = [try_formats(settings)]
        elif arguments.all:
            kept = [trial.experiment for trial in _carry_out_all(comparison, settings, arguments.minutes)]
        else:
            trial = _carry_out(_chosen(all_advice, arguments.what), settings, {})
            kept = [trial.experiment] if trial.kept else []
    if arguments.apply and kept:
        experiment.apply(kept[-1])
        print(f"applied {kept[-1]}: params.yaml and the results are those of the experiment")


def _chosen(all_advice: Sequence[Advice], number: int) -> Advice:
    possible = [advice for advice in all_advice if advice.can_be_tried]
    if not 1 <= number <= len(possible):
        there = f"1 to {len(possible)} can be tried" if possible else "nothing can be tried here"
        raise AdviceError(f"advice {number} is not there: {there}; `python -m halfstep advise` lists them")
    return possible[number - 1]


def _list(all_advice: Sequence[Advice], comparison: Comparison, *, as_json: bool) -> None:
    numbers = iter(range(1, len(all_advice) + 1))
    numbered = [(next(numbers) if advice.can_be_tried else None, advice) for advice in all_advice]
    if as_json:
        print(json.dumps([advice.as_json(number) for number, advice in numbered], indent=2))
        return
    console = wide_console()
    table = Table(title="What can be tried", title_justify="left")
    for head in ("", "variant", "change", "why", "brings at most", "takes"):
        table.add_column(head, overflow="fold", no_wrap=head == "change")
    for number, advice in numbered:
        if number is not None and advice.remedy is not None:
            table.add_row(
                f"{number}",
                Text(advice.parent),
                Text(_change(advice).removeprefix(f"variants.{advice.parent}.")),
                Text(advice.reason.code),
                "not known" if advice.at_most is None else f"{advice.at_most:.2f}×",
                "not known" if advice.cost_s is None else f"{max(1, round(advice.cost_s / 60))} min",
            )
    if table.row_count:
        console.print(table)
        console.print("`python -m halfstep advise 1` tries one, in a DVC experiment; the workspace stays as it is.")
    else:
        why = no_help(comparison) or "the reasons of the last comparison name no setting to try"
        console.print(Text(f"{capitalized(why)}."))
    for _, advice in (item for item in numbered if item[0] is None):
        why = f" ({advice.because})" if advice.because else ""
        console.print(Text(f"{advice.parent}, {advice.reason.code}: {advice.reason.advice}{why}"))


def _change(advice: Advice) -> str:
    assert advice.remedy is not None, "it can be tried"
    before, to = map(yaml_text, (advice.remedy.before, advice.remedy.to))
    along = "".join(f", {key}: {yaml_text(value)}" for key, value in advice.along.items())
    return f"{advice.remedy.key}: {before} → {advice.remedy.layers or to}{along}"


def _carry_out(advice: Advice, settings: Params, kept: dict[str, params.Variant]) -> Trial:
    """Tries one change beside everything that is measured already, and says what it brought."""
    assert advice.entry is not None, "it can be tried"
    assert advice.variant is not None, "it can be tried"
    entries = {**kept, advice.variant: advice.entry}
    print(f"advise: tries {_change(advice)} as {advice.variant}", flush=True)
    together, name = with_variants(settings, entries), experiment.name_of(advice.variant)
    experiment.run(together, name, experiment.added(together, entries))
    trial = Trial(advice.variant, advice.entry, name, experiment.comparison_of(name))
    print(f"advise: {trial.outcome()}", flush=True)
    return trial


def _carry_out_all(comparison: Comparison, settings: Params, minutes: float | None) -> list[Trial]:
    """Tries what is advised, the most promising first, on top of what was kept, until nothing more is worth it.

    Of changes that exclude each other, all are tried, and the best one is kept.
    """
    ends_s = math.inf if minutes is None else time.monotonic() + 60 * minutes
    entries: dict[str, params.Variant] = {}
    kept, seen = list[Trial](), set[str]()
    is_over, failed = False, 0
    while not is_over and (chosen := _next(comparison, settings, seen, {k.parent: k.variant for k in kept})):
        trials = []
        for advice in chosen:
            is_over = time.monotonic() + (advice.cost_s or 0.0) > ends_s
            if is_over:
                print(f"advise: {advice.variant} does not fit into --minutes any more", flush=True)
                break
            seen.add(str(advice.variant))
            trials.append(_carry_out(advice, settings, entries))
        best = best_of(trials)
        if best is None or (best.failed and failed == MOST_SETS):
            continue
        if best.kept:
            kept.append(best)
        failed += best.failed
        entries[best.variant] = best.entry
        settings = with_variants(settings, {best.variant: best.entry})
        comparison = best.comparison
    print(f"advise: kept {', '.join(trial.variant for trial in kept) or 'nothing'} of {len(seen)} tried", flush=True)
    return kept


def _next(comparison: Comparison, settings: Params, seen: set[str], kept: dict[str, str]) -> list[Advice]:
    """The most promising change that was not tried yet and that may bring enough, with those that exclude it."""
    possible = [
        advice
        for advice in advice_of(comparison, settings, kept)
        if advice.can_be_tried
        and advice.variant not in seen
        and (advice.at_most is None or advice.at_most >= settings.compare.min_speedup)
    ]
    return alternatives(possible[0], possible) if possible else []


def _what(text: str) -> int | str:
    return text if text == _FORMATS else int(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="halfstep advise", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        type=_what,
        metavar="NUMBER",
        help="of the list: tries this change; or `formats`: tries those",
    )
    parser.add_argument("--all", action="store_true", help="tries all that may be worth it, on top of what was kept")
    parser.add_argument("--minutes", type=float, help="of --all: starts nothing that would take longer")
    parser.add_argument("--apply", action="store_true", help="takes the result into the workspace, if it is kept")
    parser.add_argument("--json", action="store_true", help="prints the list as JSON")
    return parser.parse_args()
