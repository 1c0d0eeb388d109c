"""The search itself, which keeps each step and goes on from what an earlier search has kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from stages import files
from stages.compare.text import ratio_text
from stages.errors import CorruptFileError
from stages.params import Params, Variant
from stages.results.comparison import Change
from stages.results.profile import read_profile
from stages.results.search import CandidateTried, Outcome, Search, TrainingTried
from stages.results.training import read_metrics
from stages.search.candidates import Layers, best_first, candidates_of
from stages.search.deadline import Deadline, OutOfTimeError
from stages.search.needed import first_training, needed_layers, training_of
from stages.search.quality import Scores, change_of, is_trained, margin_of, scores_with_baseline_weights
from stages.search.timing import Timed, halving
from stages.telling import say


class Searching:
    """A search.

    Args:
        settings: all parameters.
        variant: name of the variant that is searched.
        deadline: nothing is started after it.
        path: of the file in which each step is kept.
        key: identifies all that decides the outcome; of another key, nothing is taken over.
    """

    def __init__(self, settings: Params, variant: str, deadline: Deadline, path: Path, key: str) -> None:
        self._settings, self._variant, self._deadline, self._path = settings, variant, deadline, path
        self._entry, self._baseline = settings.variants[variant], settings.compare.baseline
        found = _read(path)
        self.kept = found if found is not None and found.key == key else Search(variant=variant, key=key)

    def search(self) -> None:
        """Searches, unless an earlier search has finished; `kept` then has the outcome.

        Raises:
            SearchError: a training cannot be run.
        """
        if self.is_finished:
            return
        try:
            self._search()
        except OutOfTimeError:
            self._end("out of time", "The time was up; the next search goes on from here.")

    @property
    def is_finished(self) -> bool:
        """Whether there is an outcome."""
        return self.kept.outcome not in (None, "out of time")

    def _search(self) -> None:
        if first_training(self._settings, self._variant) is None:
            say("search", "nothing is trained (train.epochs is 0): only the speed is searched")
        needed = needed_layers(self._settings, self._variant, self.kept.trainings, self._after_training, self._deadline)
        if needed is None:
            sentence = f"{self._variant} does not train, and which layer to keep in float32 is not known."
            self._end("not located", sentence)
            return
        candidates = {name: self._with_layers(layers) for name, layers in self._sets(needed).items()}
        timed = self._timed(candidates) if len(candidates) > 1 else {}
        self._decide(needed, candidates, timed)

    def _with_layers(self, layers: Layers) -> Variant:
        return self._entry.model_copy(update={"float32_layers": layers, "parent": self._variant})

    def _sets(self, needed: Layers) -> dict[str, Layers]:
        """The sets to time; without a measurement of the variant, what it needs alone."""
        if not files.profile_dir(self._variant).is_dir():  # its training failed, so it was not measured
            return {"as it is": needed}
        return candidates_of(read_profile(self._baseline), read_profile(self._variant), needed)

    def _timed(self, candidates: Mapping[str, Variant]) -> Timed:
        if not self.kept.candidates:
            say("search", f"{len(candidates) - 1} sets of layers, timed in turns by successive halving")
            rows = [
                CandidateTried(name=name, float32_layers=entry.float32_layers) for name, entry in candidates.items()
            ]
            self._keep(candidates=tuple(rows))
        number = max(row.stage for row in self.kept.candidates)
        found = {
            row.name: (row.over_variant, row.over_baseline)
            for row in self.kept.candidates
            if row.over_baseline is not None and row.stage == number
        }
        return halving(self._settings, candidates, self._after_timing, self._deadline, (number, found))

    def _after_training(self, training: TrainingTried) -> None:
        self._keep(trainings=(*self.kept.trainings, training))
        how = "trains" if training.trains else training.why
        say("search", f"{', '.join(training.float32_layers)} in float32: {how}")

    def _after_timing(self, number: int, found: Timed) -> None:
        for name, (over_variant, over_baseline) in found.items():
            self._update(name, over_variant=over_variant, over_baseline=over_baseline, stage=number)
        best = max(found, key=lambda name: found[name][1].ratio)
        left = max(0.0, self._deadline.left_s) / 60
        text = f"{len(found)} sets, best: {best} ({ratio_text(found[best][1])} over {self._baseline})"
        say("search", f"measurement {number}: {text}; {left:.0f} min left")

    def _decide(self, needed: Layers, candidates: Mapping[str, Variant], found: Timed) -> None:
        """Keeps the best set that is faster beyond noise and keeps the quality, else what is needed."""
        variant, baseline = self._variant, self._baseline
        timed = {name: (over, over_base) for name, (over, over_base) in found.items() if over is not None}
        texts = {
            name: f"{ratio_text(over)} over {variant}, {ratio_text(over_base)} over {baseline}"
            for name, (over, over_base) in timed.items()
        }
        ordered = best_first(
            {name: over_base for name, (_, over_base) in timed.items()},
            {name: len(candidates[name].float32_layers) for name in timed},
        )
        faster = (name for name in ordered if timed[name][0].low > 1)
        chosen = next((name for name in faster if self._is_as_good(name, candidates[name])), None)
        is_needed = needed != self._entry.float32_layers
        if chosen is not None and (is_needed or timed[chosen][1].low >= self._settings.compare.min_speedup):
            self._end("faster", f"{chosen} in float32: {texts[chosen]}.", candidates[chosen])
        elif chosen is not None:
            why = f"{baseline} is as fast or faster"
            self._end("none pays", f"None pays, as {why}. The best set is {chosen} in float32: {texts[chosen]}.")
        elif is_needed:
            more = "; no larger set is faster at the same quality" if timed else ""
            sentence = f"{variant} trains with {', '.join(needed)} in float32{more}."
            self._end("needed", sentence, self._with_layers(needed))
        elif ordered:
            self._end("none pays", f"None pays: the best set, {ordered[0]} in float32, has {texts[ordered[0]]}.")
        else:
            why = "it trains, and no layer loses time in 16 bits beyond noise"
            self._end("nothing needed", f"Nothing is needed for {variant}: {why}.")

    def _is_as_good(self, name: str, entry: Variant) -> bool:
        """Whether no loss of quality is shown: with the baseline's weights first, then, if there is time, trained."""
        if not is_trained(self._settings):
            return True
        scores = scores_with_baseline_weights(self._settings, self._variant, entry)
        change = change_of(self._baseline_scores, scores)
        self._update(name, val_change=change)
        if not self._keeps(scores, change):
            return False
        expected_s = read_metrics(self._baseline, self._settings.train.seeds[0]).train_time_s or 0.0
        if self._deadline.left_s < expected_s:
            say("search", f"{name} in float32 is not trained here: the time is up, and `dvc repro` does it")
            return True
        training, scores = training_of(self._settings, self._variant, entry)
        change = change_of(self._baseline_scores, scores)
        self._update(name, training=training, trained_val_change=change)
        return training.trains and self._keeps(scores, change)

    def _keeps(self, scores: Scores | None, change: Change | None) -> bool:
        if scores is not None and not np.isfinite(scores).all():
            return False
        return change is None or change.high >= -margin_of(self._settings)

    @cached_property
    def _baseline_scores(self) -> Scores | None:
        return scores_with_baseline_weights(self._settings, self._baseline, self._settings.variants[self._baseline])

    def _end(self, outcome: Outcome, sentence: str, entry: Variant | None = None) -> None:
        written = None if entry is None else entry.model_dump(mode="json", exclude_none=True)
        name = None if entry is None else f"{self._variant}_layers"
        seconds = self.kept.seconds + self._deadline.spent_s
        self._keep(outcome=outcome, sentence=sentence, new_variant=name, entry=written, seconds=seconds)

    def _update(self, name: str, **changes: Any) -> None:
        rows = (row.model_copy(update=changes if row.name == name else {}) for row in self.kept.candidates)
        self._keep(candidates=tuple(rows))

    def _keep(self, **changes: Any) -> None:
        self.kept = self.kept.model_copy(update=changes)
        self.kept.write(self._path)


def _read(path: Path) -> Search | None:
    try:
        return Search.read(path) if path.is_file() else None
    except CorruptFileError:
        return None
