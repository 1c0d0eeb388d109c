"""`halfstep advise`: lists what the reasons advise, each change with a line to paste into a shell."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from halfstep.advise.advice import Advice, advice_of
from halfstep.advise.serving import serving_lines
from halfstep.cli import cli_entry
from halfstep.compare.answer import no_help
from halfstep.params import loading
from halfstep.results.comparison import COMPARISON, Comparison, Remedy
from halfstep.words.text import capitalized, yaml_text


@cli_entry
def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="halfstep advise", description=__doc__)
    parser.add_argument("--json", action="store_true", help="prints the list as JSON")
    arguments = parser.parse_args()
    settings, comparison = loading.load(), Comparison.read(COMPARISON)
    all_advice = advice_of(comparison, settings)
    if arguments.json:
        print(json.dumps([advice.as_json() for advice in all_advice], indent=2))
        return
    _list(all_advice, comparison)
    for line in serving_lines(comparison, settings):
        print(line)


def _list(all_advice: Sequence[Advice], comparison: Comparison) -> None:
    if not any(advice.trial for advice in all_advice):
        why = no_help(comparison) or "the reasons of the last comparison name no setting to try"
        print(f"{capitalized(why)}.")
    for advice in all_advice:
        if advice.remedy is not None and advice.trial is not None:
            print(_change(advice, advice.remedy))
            print(f"    {advice.trial.command}")
        else:
            why = f" ({advice.because})" if advice.because else ""
            print(f"{advice.variant}, {advice.reason.code}: {advice.reason.advice}{why}")


def _change(advice: Advice, remedy: Remedy) -> str:
    """Such as `variants.float32.xla: null → true (float32, model_too_small; brings at most 1.40×; takes 3 min)`."""
    before, to = map(yaml_text, (remedy.before, remedy.to))
    details = [f"{advice.variant}, {advice.reason.code}"]
    if remedy.at_most is not None:
        details.append(f"brings at most {remedy.at_most:.2f}×")
    if advice.cost_s is not None:
        details.append(f"takes {max(1, round(advice.cost_s / 60))} min")
    return f"{remedy.key}: {before} → {remedy.layers or to} ({'; '.join(details)})"
