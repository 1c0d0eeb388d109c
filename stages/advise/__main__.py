"""`python -m stages.advise [NUMBER | --all]`: lists what the reasons advise, or carries it out as DVC experiments."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from stages import params, workspace
from stages.advise import experiment
from stages.advise.advice import Advice, advice_of, with_variants
from stages.cli import cli_entry
from stages.compare.text import ratio_text
from stages.errors import AdviceError
from stages.params import Params
from stages.results import trials
from stages.results.comparison import COMPARISON, Comparison, Trial
from stages.terminal import wide_console
from stages.text import yaml_text


@cli_entry
def main() -> None:
    """Entry point."""
    arguments = _arguments()
    if lost := workspace.recover():
        print(f"advise: put back what an interrupted experiment had changed: {', '.join(lost)}", file=sys.stderr)
    settings, comparison = params.load(), Comparison.read(COMPARISON)
    found = advice_of(comparison, settings)
    if arguments.number is None and not arguments.all:
        _list(found, as_json=arguments.json)
        return
    with experiment.alone():
        experiment.remove_copies()  # of an earlier start that was killed
        if arguments.all:
            kept = _carry_out_all(comparison, settings, arguments.minutes)
        else:
            trial, _ = _carry_out(_chosen(found, arguments.number), settings, {})
            kept = [trial] if trial.kept else []
    if arguments.apply and kept:
        experiment.apply(kept[-1].experiment)
        print(f"applied {kept[-1].experiment}: params.yaml and the results are those of the experiment")


def _chosen(found: Sequence[Advice], number: int) -> Advice:
    possible = [advice for advice in found if advice.can_be_tried]
    if not 1 <= number <= len(possible):
        there = f"1 to {len(possible)} can be tried" if possible else "nothing can be tried here"
        raise AdviceError(f"advice {number} is not there: {there}; `python -m stages.advise` lists them")
    return possible[number - 1]


def _list(found: Sequence[Advice], *, as_json: bool) -> None:
    numbers = iter(range(1, len(found) + 1))
    numbered = [(next(numbers) if advice.can_be_tried else None, advice) for advice in found]
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
                "not known" if advice.remedy.at_most is None else f"{advice.remedy.at_most:.2f}×",
                "not known" if advice.cost_s is None else f"{max(1, round(advice.cost_s / 60))} min",
            )
    if table.row_count:
        console.print(table)
        console.print("`python -m stages.advise 1` tries one, in a DVC experiment; the workspace stays as it is.")
    else:
        console.print("Nothing can be tried: no reason of the last comparison names a change.")
    for _, advice in (item for item in numbered if item[0] is None):
        why = f" ({advice.because})" if advice.because else ""
        console.print(Text(f"By hand, {advice.parent}, {advice.reason.code}: {advice.reason.advice}{why}"))
    for trial in trials.read().trials:
        console.print(Text(f"Tried: {_outcome(trial)}"))


def _change(advice: Advice) -> str:
    assert advice.remedy is not None, "it can be tried"
    before, to = map(yaml_text, (advice.remedy.before, advice.remedy.to))
    along = "".join(f", {key}: {yaml_text(value)}" for key, value in advice.along.items())
    return f"{advice.remedy.key}: {before} → {to}{along}"


def _carry_out(advice: Advice, settings: Params, kept: dict[str, params.Variant]) -> tuple[Trial, Comparison]:
    """Tries one change beside everything that is measured already, and says what it brought.

    Returns:
        The trial, and the comparison of its experiment.
    """
    assert advice.entry is not None, "it can be tried"
    assert advice.variant is not None, "it can be tried"
    assert advice.remedy is not None, "it can be tried"
    started_s = time.monotonic()
    entries = {**kept, advice.variant: advice.entry}
    print(f"advise: tries {_change(advice)} as {advice.variant}", flush=True)
    together, name = with_variants(settings, entries), experiment.name_of(advice.variant)
    experiment.run(together, name, experiment.added(together, entries))
    comparison = experiment.comparison_of(name)
    candidate = comparison.candidates[advice.variant]
    over_parent, quality = candidate.over_parent, candidate.quality
    is_faster = over_parent is not None and over_parent.low >= settings.compare.min_speedup
    trial = Trial(
        variant=advice.variant,
        parent=advice.parent,
        entry=advice.entry.model_dump(mode="json"),
        experiment=name,
        change=advice.remedy,
        reason=advice.reason.code,
        over_parent=over_parent,
        verdict=candidate.verdict,
        quality=quality.outcome if quality else None,
        kept=is_faster and (quality is None or quality.outcome != "refuted"),
        seconds=time.monotonic() - started_s,
        parameters_sha256=trials.digest_of(settings),
    )
    trials.add(trial)
    print(f"advise: {_outcome(trial)}", flush=True)
    return trial, comparison


def _outcome(trial: Trial) -> str:
    """Such as `x: 1.31× (1.28 to 1.35) over its parent y, kept; against the baseline: adopt; experiment advise-x`."""
    brought = "could not be compared with" if trial.over_parent is None else f"{ratio_text(trial.over_parent)} over"
    word = "kept" if trial.kept else "dropped"
    return (
        f"{trial.variant}: {brought} its parent {trial.parent}, {word}; against the baseline: {trial.verdict}; "
        f"experiment {trial.experiment}"
    )


def _carry_out_all(comparison: Comparison, settings: Params, minutes: float | None) -> list[Trial]:
    """Tries what is advised, the most promising first, on top of what was kept, until nothing more is worth it."""
    ends_s = None if minutes is None else time.monotonic() + 60 * minutes
    entries: dict[str, params.Variant] = {}
    kept, seen = list[Trial](), set[str]()
    while (advice := _next(comparison, settings, seen, {trial.parent: trial.variant for trial in kept})) is not None:
        if ends_s is not None and time.monotonic() + (advice.cost_s or 0.0) > ends_s:
            print(f"advise: {advice.variant} does not fit into --minutes any more", flush=True)
            break
        seen.add(str(advice.variant))
        trial, found = _carry_out(advice, settings, entries)
        if trial.kept and advice.entry is not None:
            kept.append(trial)
            entries[trial.variant] = advice.entry
            settings = with_variants(settings, {trial.variant: advice.entry})
            comparison = found
    print(f"advise: kept {', '.join(trial.variant for trial in kept) or 'nothing'} of {len(seen)} tried", flush=True)
    return kept


def _next(comparison: Comparison, settings: Params, seen: set[str], kept: dict[str, str]) -> Advice | None:
    """The most promising change that was not tried yet, and that may bring enough."""
    for advice in advice_of(comparison, settings, kept):
        at_most = advice.remedy.at_most if advice.remedy else None
        is_worth_it = at_most is None or at_most >= settings.compare.min_speedup
        if advice.can_be_tried and advice.variant not in seen and is_worth_it:
            return advice
    return None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stages.advise", description=__doc__)
    parser.add_argument("number", nargs="?", type=int, metavar="NUMBER", help="of the list: tries this change")
    parser.add_argument("--all", action="store_true", help="tries all that may be worth it, on top of what was kept")
    parser.add_argument("--minutes", type=float, help="of --all: starts nothing that would take longer")
    parser.add_argument("--apply", action="store_true", help="takes the result into the workspace, if it is kept")
    parser.add_argument("--json", action="store_true", help="prints the list as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
