"""What was measured of each candidate beside the baseline: one list of rows, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass

from halfstep.compare.report.tables import at_equal_batch
from halfstep.compare.scale import Scale
from halfstep.compare.text import ratio_text
from halfstep.results.comparison import Candidate, Comparison, Quality
from halfstep.text import ms_text, number_text, timed_label


@dataclass(frozen=True)
class Row:
    """Texts; `change` is a speed-up, or the change of a score, with its interval."""

    label: str
    before: str = ""
    after: str = ""
    change: str = ""
    verdict: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """The texts below `heads`."""
        return astuple(self)


def heads(comparison: Comparison, candidate: str) -> tuple[str, ...]:
    """The heads of the columns."""
    verdict = "verdict, speed only" if comparison.speed_only else "verdict"
    return ("mean", comparison.baseline, candidate, "change", verdict)


def rows(comparison: Comparison) -> dict[str, list[Row]]:
    """By candidate at the baseline's batch: its measures, their factors, its score, and what a training and it cost."""
    found = {name: item for name, item in at_equal_batch(comparison).items() if item.speedups}
    return {name: [*_measured(item), *_quality(item), *_costs(name, item, comparison)] for name, item in found.items()}


def _measured(item: Candidate) -> Iterator[Row]:
    """Times are of a step or a call; their quotient is the ratio."""
    for measure, found in item.speedups.items():
        times = (ms_text(found.baseline_time_ms), ms_text(found.candidate_time_ms))
        yield Row(timed_label(measure), *times, ratio_text(found), item.verdicts[measure])
        if (factors := (item.factors or {}).get(measure)) is not None:
            yield Row("  = settings", change=ratio_text(factors.settings))
            yield Row("  × precision", change=ratio_text(factors.precision))
        if item.has_reason("stalls", measure):
            yield Row("  typical rounds", change=f"{found.typical_ratio:.2f}×")


def _quality(item: Candidate) -> Iterator[Row]:
    if item.quality is not None:
        yield _score(item.quality.name, item.quality)
    if item.quality_same_weights is not None:
        yield _score("same weights", item.quality_same_weights)


def _score(name: str, quality: Quality) -> Row:
    scale = Scale.of(quality)
    outcomes = {"shown": "loss ≤ {}", "refuted": "loss > {}", "not established": "loss > {}?"}
    outcome = outcomes[quality.outcome].format(scale.margin_number)
    label = f"{name}{', ' if scale.unit else ''}{scale.unit}"
    return Row(label, scale.value(quality.baseline), scale.value(quality.candidate), scale.change(quality), outcome)


def _costs(name: str, item: Candidate, comparison: Comparison) -> Iterator[Row]:
    """What stands beside the speed-ups: a whole training, the start of a process, and memory."""
    costs = {"whole training": comparison.train_time_s, "start (processor)": comparison.startup_s}
    for label, seconds in costs.items():
        if seconds is not None and name in seconds and comparison.baseline in seconds:
            yield Row(label, *(f"{number_text(seconds[variant])} s" for variant in (comparison.baseline, name)))
    if (peak := item.peak_memory_mib) is not None:
        yield Row("peak memory", f"{number_text(peak.baseline)} MiB", f"{number_text(peak.candidate)} MiB")
