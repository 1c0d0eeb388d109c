"""`python -m stages.search VARIANT`: finds the fewest layers in float32 with which a mixed policy is worth having."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stages import files, params
from stages.cli import cli_entry
from stages.compare.text import ratio_text
from stages.errors import CorruptFileError, SearchError
from stages.inputs import digests
from stages.locking import stage_lock
from stages.machine import fingerprint
from stages.params import Params, Variant
from stages.params.rules import did_you_mean
from stages.params.writing import add_variant
from stages.prepare.trials import servers
from stages.results.comparison import Ratio
from stages.results.profile import read_profile
from stages.results.search import CandidateTried, Outcome, Search, TrainingTried
from stages.results.task import resolved
from stages.search.candidates import candidates_of
from stages.search.needed import TRYING, first_training, needed_layers
from stages.search.quality import change_of
from stages.search.timing import halving
from stages.telling import say

FOLDER = files.WORK_DIR / "search"
MINUTES = 15.0


@cli_entry
def main() -> None:
    """Entry point.

    Raises:
        SearchError: the variant cannot be searched, or a training cannot be run.
        DataError: `dvc repro` has not run.
    """
    parser = argparse.ArgumentParser(prog="python -m stages.search", description=__doc__)
    parser.add_argument("variant", metavar="VARIANT", help="of train.variants, with a mixed policy")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="starts nothing after that (default: 15)")
    arguments = parser.parse_args()
    settings = resolved(params.load())
    _require_searchable(settings, arguments.variant)
    with stage_lock("search"):
        _Searching(settings, arguments.variant, arguments.minutes).run()


def _require_searchable(settings: Params, variant: str) -> None:
    listed = settings.train.variants
    if variant not in listed:
        raise SearchError(f"'{variant}' is not in train.variants ({', '.join(listed)}){did_you_mean(variant, listed)}")
    if variant == settings.compare.baseline:
        raise SearchError(f"'{variant}' is compare.baseline; search one of the others")
    if not settings.variants[variant].policy.startswith("mixed_"):
        raise SearchError(
            f"variants.{variant}.policy is {settings.variants[variant].policy}; only a mixed policy keeps some layers "
            "in float32"
        )


class _Searching:
    """A search that goes on from what an earlier one has kept."""

    def __init__(self, settings: Params, variant: str, minutes: float) -> None:
        self._settings, self._variant, self._entry = settings, variant, settings.variants[variant]
        self._ends_s, self._began_s = time.monotonic() + 60 * minutes, time.monotonic()
        self._path = files.original_root() / FOLDER / f"{variant}.json"
        key = _key(settings, variant)
        found = _read(self._path)
        self._kept = found if found is not None and found.key == key else Search(variant=variant, key=key)

    def run(self) -> None:
        """Searches, prints what was tried, and adds the variant to params.yaml if there is one worth having."""
        if self._kept.outcome in (None, "out of time"):
            with servers(TRYING, [self._entry]):
                self._search()
        print(flush=True)
        console = Console(highlight=False)
        if self._kept.trainings:
            console.print(_trainings_table(self._kept))
        if self._kept.candidates:
            console.print(_candidates_table(self._kept, self._settings.compare.baseline))
        console.print(Text(f"{self._kept.sentence}"))
        if self._kept.new_variant and self._kept.entry:
            add_variant(self._kept.new_variant, self._kept.entry)
            console.print(
                Text(
                    f"params.yaml: variants.{self._kept.new_variant} was added, and to train.variants; "
                    "`dvc repro` trains and measures it anew, and gives the verdict."
                )
            )

    def _left_s(self) -> float:
        return self._ends_s - time.monotonic()

    def _search(self) -> None:
        tried = list(self._kept.trainings)
        if not tried and first_training(self._settings, self._variant) is None:
            say("search", "nothing is trained (train.epochs is 0): only the speed is searched")
        needed = needed_layers(self._settings, self._variant, tried, self._after_training, self._left_s)
        if needed is None:
            self._end(
                "not located", f"{self._variant} does not train, and which layer to keep in float32 is not known."
            )
            return
        candidates = {
            name: self._entry.model_copy(update={"float32_layers": layers, "parent": self._variant})
            for name, layers in self._layers(needed).items()
        }
        found: dict[str, tuple[Ratio | None, Ratio]] = {}
        if len(candidates) > 1:
            if self._left_s() <= 0:
                self._end("out of time", "The time was up before anything was timed; the next search goes on.")
                return
            say("search", f"{len(candidates) - 1} sets of layers, timed in turns by successive halving")
            self._keep(
                candidates=tuple(
                    CandidateTried(name=name, float32_layers=entry.float32_layers) for name, entry in candidates.items()
                )
            )
            found = halving(self._settings, self._variant, candidates, self._after_timing, self._left_s)
        self._decide(needed, candidates, found)

    def _layers(self, needed: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """The sets to time; without a measurement of the variant, what it needs alone."""
        if not files.profile_dir(self._variant).is_dir():  # its training failed, so it was not measured
            return {"as it is": needed}
        return candidates_of(read_profile(self._settings.compare.baseline), read_profile(self._variant), needed)

    def _after_training(self, training: TrainingTried) -> None:
        self._keep(trainings=(*self._kept.trainings, training))
        say(
            "search",
            f"{', '.join(training.float32_layers)} in float32: {'trains' if training.trains else training.why}",
        )

    def _after_timing(self, stage: int, found: Mapping[str, tuple[Ratio | None, Ratio]]) -> None:
        rows = []
        for row in self._kept.candidates:
            over = found.get(row.name)
            update = {"over_variant": over[0], "over_baseline": over[1], "stage": stage} if over else {}
            rows.append(row.model_copy(update=update))
        self._keep(candidates=tuple(rows))
        best = max(found, key=lambda name: found[name][1].ratio)
        left = max(0.0, self._left_s()) / 60
        say(
            "search",
            f"measurement {stage}: {len(found)} sets, best: {best} ({ratio_text(found[best][1])}); {left:.0f} min left",
        )

    def _decide(
        self,
        needed: tuple[str, ...],
        candidates: Mapping[str, Variant],
        found: Mapping[str, tuple[Ratio | None, Ratio]],
    ) -> None:
        """Keeps the fastest set if it is faster beyond noise and keeps the quality, else what is needed."""
        variant, baseline, is_needed = (
            self._variant,
            self._settings.compare.baseline,
            needed != self._entry.float32_layers,
        )
        timed = {name: (over, over_base) for name, (over, over_base) in found.items() if over is not None}
        name = max(timed, key=lambda item: timed[item][1].ratio, default=None)
        if name is not None and timed[name][0].low > 1 and self._keeps_quality(name, candidates[name]):
            over, over_base = timed[name]
            sentence = f"{name} in float32: {ratio_text(over)} over {variant}, {ratio_text(over_base)} over {baseline}."
            if is_needed or over_base.low >= self._settings.compare.min_speedup:
                self._end("faster", sentence, candidates[name])
            else:
                self._end("none pays", f"None pays, as {baseline} is as fast or faster. The best set is {sentence}")
        elif is_needed:
            entry = self._entry.model_copy(update={"float32_layers": needed, "parent": variant})
            more = "; no larger set is faster" if timed else ""
            self._end("needed", f"{variant} trains with {', '.join(needed)} in float32{more}.", entry)
        elif name is None:
            why = "it trains, and no layer loses time in 16 bits beyond noise"
            self._end("nothing needed", f"Nothing is needed for {variant}: {why}.")
        else:
            over, over_base = timed[name]
            ratios = f"{ratio_text(over)} over {variant}, {ratio_text(over_base)} over {baseline}"
            self._end("none pays", f"None pays: the best set, {name} in float32, has {ratios}.")

    def _keeps_quality(self, name: str, entry: Variant) -> bool:
        change = change_of(self._settings, self._variant, entry)
        if change is None:
            return True
        rows = [
            row.model_copy(update={"val_change": change} if row.name == name else {}) for row in self._kept.candidates
        ]
        self._keep(candidates=tuple(rows))
        margin = self._settings.compare.quality_margin or 0.01
        return change["high"] >= -margin

    def _end(self, outcome: Outcome, sentence: str, entry: Variant | None = None) -> None:
        written = None if entry is None else entry.model_dump(mode="json", exclude_none=True)
        name = None if entry is None else f"{self._variant}_layers"
        self._keep(outcome=outcome, sentence=sentence, new_variant=name, entry=written)

    def _keep(self, **changes: object) -> None:
        seconds = self._kept.seconds if "outcome" not in changes else time.monotonic() - self._began_s
        self._kept = self._kept.model_copy(update={**changes, "seconds": seconds})
        self._kept.write(self._path)


def _read(path: Path) -> Search | None:
    try:
        return Search.read(path) if path.is_file() else None
    except CorruptFileError:
        return None


def _key(settings: Params, variant: str) -> str:
    """Identifies all that decides the outcome."""
    parts = {
        **settings.model_dump(mode="json", include={"task", "data", "model", "compare"}),
        "train": settings.train.model_dump(mode="json", exclude={"variants"}),
        "entries": [settings.variants[name].model_dump(mode="json") for name in (settings.compare.baseline, variant)],
        "machine": fingerprint.read(),
        "code": digests.code_digest("profile"),
        "data_sha256": files.verify_manifest(files.PREPARED),
        "profile": files.sha256_file(files.profile_dir(variant) / files.MANIFEST)
        if (files.profile_dir(variant) / files.MANIFEST).is_file()
        else None,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _trainings_table(found: Search) -> Table:
    table = Table(title="Trainings", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in ("in float32", "trains", "validation", "seconds"):
        table.add_column(head, overflow="fold")
    for row in found.trainings:
        score = "" if row.val_score is None else f"{row.val_score:.4f}"
        trains = "yes" if row.trains else f"no: {row.why}"
        table.add_row(Text(", ".join(row.float32_layers)), Text(trains), score, f"{row.seconds:.0f}")
    return table


def _candidates_table(found: Search, baseline: str) -> Table:
    table = Table(title="Timed in turns", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in (
        "in float32",
        "layers",
        f"over {found.variant}",
        f"over {baseline}",
        "measurement",
        "validation score",
    ):
        table.add_column(head, overflow="fold")
    for row in sorted(
        found.candidates, key=lambda row: (-row.stage, -(row.over_baseline.ratio if row.over_baseline else 0))
    ):
        change = "" if row.val_change is None else f"{row.val_change['mean']:+.4f}"
        ratios = ("" if ratio is None else ratio_text(ratio) for ratio in (row.over_variant, row.over_baseline))
        table.add_row(Text(row.name), f"{len(row.float32_layers)}", *ratios, f"{row.stage or ''}", change)
    return table


if __name__ == "__main__":
    raise SystemExit(main())
