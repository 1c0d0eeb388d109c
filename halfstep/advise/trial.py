"""What a change brought, by the comparison of its experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halfstep.compare.text import ratio_text
from halfstep.params import Variant
from halfstep.results.comparison import Comparison, Ratio
from halfstep.text import TRAIN


@dataclass(frozen=True)
class Trial:
    """A change that was tried.

    Attributes:
        variant: that was made; its entry names its parent.
        entry: its entry of `variants`.
        experiment: name of the DVC experiment.
        comparison: of the experiment.
    """

    variant: str
    entry: Variant
    experiment: str
    comparison: Comparison

    @property
    def parent(self) -> str:
        """The variant that was changed."""
        return str(self.entry.parent)

    @property
    def over(self) -> tuple[Ratio, str] | None:
        """The speed-up of training over the parent, or over the baseline if the parent was not measured."""
        candidate = self.comparison.candidates[self.variant]
        if candidate.over_parent is not None:
            return candidate.over_parent, f"its parent {self.parent}"
        speedup = candidate.speedups.get(TRAIN)
        return None if speedup is None else (speedup, f"{self.comparison.baseline}, as {self.parent} was not measured")

    @property
    def kept(self) -> bool:
        """Whether the interval of the speed-up reaches `compare.min_speedup`, and the quality is not refuted."""
        quality = self.comparison.candidates[self.variant].quality
        is_faster = self.over is not None and self.over[0].side(self.comparison.min_speedup) == "above"
        return is_faster and (quality is None or quality.outcome != "refuted")

    @property
    def failed(self) -> bool:
        """Whether a training of it failed. Its reasons may name the next layers to keep in float32."""
        return self.variant in (self.comparison.failed or ())

    def outcome(self) -> str:
        """Such as `x: 1.31× (1.28 to 1.35) over its parent y, kept; against the baseline: adopt; experiment e`."""
        brought = "could not be compared" if self.over is None else f"{ratio_text(self.over[0])} over {self.over[1]}"
        verdict = self.comparison.candidates[self.variant].verdict
        return (
            f"{self.variant}: {brought}, {'kept' if self.kept else 'dropped'}; against the baseline: {verdict}; "
            f"experiment {self.experiment}"
        )


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Of changes that exclude each other, the fastest that is kept; else one that failed, whose reasons say more."""
    kept = [trial for trial in trials if trial.kept and trial.over is not None]
    if kept:
        return max(kept, key=lambda trial: trial.over[0].value if trial.over else 0.0)
    return next((trial for trial in trials if trial.failed), None)
