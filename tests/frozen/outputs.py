"""What a tree says of the frozen studies as they are and changed, under several settings: a digest of each output.

python -m tests.frozen.outputs          writes `outputs.json`, with which the slow test compares: one minute
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from halfstep.compare.document import document_of, judged
from halfstep.compare.metrics import dvc_metrics, tracking_metrics, tracking_tags
from halfstep.compare.report import tables
from halfstep.compare.study import Study, VariantResult, load_study, with_margin
from halfstep.errors import HalfstepError
from halfstep.params.schema import CompareParams
from halfstep.results.occasions import Earlier, FoundRatio, OccasionFile
from halfstep.results.profile import Profile
from halfstep.results.training import Training
from tests.frozen import FOLDER, unpack
from tests.frozen.test_frozen import texts_of

DIGESTS = FOLDER / "outputs.json"
SETTINGS: Mapping[str, dict[str, Any]] = {
    "": {},
    "gate": {"gate": "not_slower"},
    "strict": {"gate": "not_slower_strict", "max_slowdown": 0.0},
    "high": {"min_speedup": 1.3},
    "one": {"min_speedup": 1.0, "gate": True},
    "margin": {"quality_margin": 0.0005},
    "wide": {"quality_margin": 0.2, "min_speedup": 1.0},
    "class": {"class_margin": 0.05},
    "classes": {"class_margin": 0.3, "min_speedup": 1.0, "quality_margin": 0.3},
}
OF_CHANGED = ("", "one", "strict")


def _scaled(profile: Profile | None, factor: float) -> Profile | None:
    """The profile with all its times multiplied."""
    if profile is None:
        return None
    return replace(
        profile,
        rounds=profile.rounds.assign(round_time_ms=profile.rounds["round_time_ms"] * factor),
        calls=profile.calls.assign(latency_ms=profile.calls["latency_ms"] * factor),
        account=profile.account.assign(time_ms=profile.account["time_ms"] * factor)
        if not profile.account.empty
        else profile.account,
    )


def _of_candidates(study: Study, change: Callable[[VariantResult], VariantResult]) -> Study:
    return replace(study, candidates=tuple(map(change, study.candidates)))


def _faster(study: Study, factor: float) -> Study:
    return _of_candidates(study, lambda one: replace(one, profile=_scaled(one.profile, factor)))


def _waiting(study: Study) -> Study:
    """Of a step of the baseline 60 % waits for input."""
    profile = study.baseline.profile
    if profile is None or profile.input_rounds.empty:
        return study
    rows = profile.input_rounds
    times_ms = rows["round_time_ms"].where(rows["batches"] == "pipeline", rows["round_time_ms"] * 0.4)
    rows = rows.assign(round_time_ms=times_ms)

    def waits(one: VariantResult) -> VariantResult:
        return replace(one, profile=one.profile and replace(one.profile, input_rounds=rows))

    return replace(_of_candidates(study, waits), baseline=waits(study.baseline))


def _worse(study: Study) -> Study:
    """Candidates that lose a fifth of their scores."""

    def loses(training: Training) -> Training:
        if training.scores is None or study.task.score_kind == "metric":
            return training
        scores, is_binary = training.scores.copy(), set(training.scores) <= {0.0, 1.0}
        scores[: len(scores) // 5] = 0.0 if is_binary else min(0.0, scores.min() - 1)
        return replace(training, scores=scores)

    return _of_candidates(study, lambda one: replace(one, trainings=tuple(map(loses, one.trainings))))


def _earlier(study: Study) -> Study:
    """Two other occasions, one of which is void in training."""
    measures = ["train", *(f"inference_b{size}" for size in study.inference_batch_sizes)]
    ratios = tuple(
        FoundRatio(
            arms=(study.baseline.variant, one.variant),
            measure=measure,
            log_ratio=0.05,
            standard_error=0.01,
            degrees=4.0,
            confidence=0.98,
        )
        for one in study.candidates
        for measure in measures
    )
    occasions = {
        "monday": OccasionFile(occasion="monday", ratios=ratios),
        None: OccasionFile(void=("train",), ratios=ratios),
    }
    return replace(study, earlier=Earlier(occasions))


def _stalled(study: Study) -> Study:
    def stalls(one: VariantResult) -> VariantResult:
        if one.profile is None:
            return one
        rows: pd.DataFrame = one.profile.rounds
        slow = rows.assign(round_time_ms=rows["round_time_ms"] * (1 + 3 * (rows["round"] % 5 == 0)))
        return replace(one, profile=replace(one.profile, rounds=slow))

    return _of_candidates(study, stalls)


def changed(study: Study) -> dict[str, Study]:
    """The study with other times, scores and occasions, by what is changed."""
    fast = _faster(study, 0.6)
    return {
        "fast": fast,
        "close": _faster(study, 0.93),
        "edge": _faster(study, 0.9),
        "slow": _faster(study, 1.7),
        "void": replace(study, control=_scaled(study.control, 1.1)),
        "input": _waiting(study),
        "input_fast": _faster(_waiting(study), 0.8),
        "worse": _worse(_faster(study, 0.5)),
        "earlier": _earlier(study),
        "earlier_close": _earlier(_faster(study, 0.9)),
        "stalled": _stalled(fast),
        "no_weights": _of_candidates(fast, lambda one: replace(one, same_weights={})),
        "no_control": replace(study, control=None),
    }


def _rounded(value: Any) -> Any:
    """Numbers with six digits: the last ones differ from processor to processor."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def output(study: Study, settings: CompareParams) -> str:
    """Everything that is written, printed, logged and kept; or the message of a refusal."""
    try:
        judging = judged(study, with_margin(settings, study))
        document = document_of(judging)
    except HalfstepError as error:
        return str(error)
    numbers = [document.as_json(), dvc_metrics(study, document), tracking_metrics(document), tracking_tags(document)]
    kept = [sorted(judging.void), [ratio.model_dump() for ratio in judging.found_ratios()]]
    rows = tables.speedups(document).to_dict("records")
    return json.dumps(_rounded([*numbers, *kept, rows]), indent=1, sort_keys=True) + texts_of(document)


def digests_of(name: str) -> Iterator[tuple[str, str]]:
    """The digest of each output of a frozen study, by its label."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        unpack(name, Path(folder))
        params = yaml.safe_load((FOLDER / f"{name}.params.yaml").read_text(encoding="utf-8"))
        train, sizes = params["train"], params["profile"]["inference_batch_sizes"]
        study = load_study(params["compare"]["baseline"], train["variants"], train["seeds"], sizes)
        cases = [("", study, label) for label in SETTINGS]
        cases += [(what, other, label) for what, other in changed(study).items() for label in OF_CHANGED]
        for what, other, label in cases:
            text = output(other, CompareParams(**{**params["compare"], **SETTINGS[label]}))
            yield f"{what}.{label}", hashlib.sha256(text.encode()).hexdigest()[:16]


if __name__ == "__main__":
    from tests.frozen.test_frozen import STUDIES

    found = {name: dict(digests_of(name)) for name in STUDIES}
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
