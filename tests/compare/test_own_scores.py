"""A comparison of a task that is not `images`: its score's name and units wherever accuracy would stand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.report.markdown import render_markdown
from halfstep.compare.words import verdict_sentence
from halfstep.errors import ComparisonError, CorruptFileError, DataError, ParameterError
from halfstep.results.training import SCORES
from halfstep.stats.bootstrap import MetricChange
from halfstep.stats.scores import ScoreChange
from halfstep.system import files
from tests.small_study import IMAGES, SEEDS, SmallStudy, sentences, terminal_of, write_results_of

MARGIN = 0.02
FAST = "mixed_bfloat16"


@pytest.fixture(params=["score", "metric"])
def own(request: pytest.FixtureRequest, project: SmallStudy) -> SmallStudy:
    project.make_own(request.param)
    return project


@pytest.fixture
def comparison(own: SmallStudy) -> Judging:
    return own.compare(quality_margin=MARGIN)


def test_change_is_that_of_the_scores(comparison: Judging) -> None:
    candidate = comparison.cases[1]
    assert isinstance(candidate.quality, MetricChange if comparison.study.task.score_kind == "metric" else ScoreChange)
    assert candidate.quality.seeds == 3
    assert candidate.quality.examples == IMAGES
    means = [item.mean_test_score for item in (comparison.study.baseline, candidate.result)]
    assert (candidate.quality.baseline, candidate.quality.candidate) == pytest.approx(tuple(means))
    assert candidate.quality.delta == pytest.approx(-0.002, abs=0.002)
    assert candidate.same_weights is not None
    assert candidate.same_weights.delta == pytest.approx(-0.001, abs=0.002)
    assert candidate.verdict == "adopt"


def test_texts_are_in_units_of_the_score(comparison: Judging) -> None:
    write_results_of(comparison)
    console = Console(width=200)
    with console.capture() as capture:
        console.print(terminal_of(comparison))
    page = (files.COMPARE / "report.html").read_text()
    for text in (capture.get(), page, render_markdown(document_of(comparison))):
        assert "iou is the same within 0.02" in text
        for word in ("accuracy", "percentage", "test images", "images/s"):
            assert word not in text, text[max(0, text.find(word) - 200) : text.find(word) + 100]
    assert "<h2>Quality: iou</h2>" in page
    assert re.search(r"<dd>mine:build, .*, 1,200 test examples</dd>", page)
    change = comparison.cases[1].quality
    assert change is not None
    assert f"−{abs(change.delta):.4f}" in page


def test_task_without_epochs_of_its_score(own: SmallStudy) -> None:
    for variant in ("float32", "mixed_float16", FAST):
        for seed in SEEDS:
            path = files.train_dir(variant, seed) / "history.csv"
            pd.read_csv(path)[["epoch", "epoch_time_s"]].to_csv(path, index=False)
            files.write_manifest(path.parent)
    comparison = own.compare(quality_margin=MARGIN)
    result = write_results_of(comparison)
    assert result.time_to_accuracy is None
    assert "by epoch</h2>" not in (files.COMPARE / "report.html").read_text()


def test_margin_must_be_declared(own: SmallStudy) -> None:
    with pytest.raises(ParameterError, match=r"compare\.quality_margin is null, which only accuracy may leave so"):
        document_of(own.compare())


def test_margin_need_not_be_declared_where_nothing_was_trained(own: SmallStudy) -> None:
    own.make_speed_only()
    comparison = own.compare_speed_only()
    assert comparison.study.speed_only
    write_results_of(comparison)


def test_too_few_examples_are_named_wherever_the_outcome_stands(own: SmallStudy) -> None:
    """A test set of 400: half of the scores are cut off."""
    if own.load().task.score_kind == "metric":
        pytest.skip("the array of a metric is not cut")
    own.shorten_test_set(400)
    comparison = own.compare(quality_margin=MARGIN)
    candidate = comparison.cases[1]
    reason = "a score that is not 0 or 1 takes at least 1,000 test examples, and there are 400"
    assert candidate.verdict == "inconclusive"
    quality = write_results_of(comparison).candidates[FAST].quality
    assert quality is not None
    assert (quality.outcome, quality.reason) == ("not established", reason)
    assert reason in verdict_sentence(candidate)
    assert reason in (files.COMPARE / "report.html").read_text()
    assert any("test examples instead of 400" in text for text in sentences(candidate))


def test_scores_of_0_and_1_are_shown_as_a_share(project: SmallStudy) -> None:
    project.make_own("score", "hit_rate")
    for path in files.DATA.rglob("*.npy"):
        np.save(path, (np.load(path) > 0.3).astype(float))
        files.write_manifest(path.parent)
    comparison = project.compare(quality_margin=0.1)
    assert comparison.is_fraction
    sentence = verdict_sentence(comparison.cases[1])
    assert "the hit_rate is the same within 10 percentage points" in sentence


def test_scores_that_happen_to_be_0_and_1_have_the_unit_of_the_others(project: SmallStudy) -> None:
    """Those of one candidate alone are not: each change has the unit of the report's score."""
    project.make_own("score", "hit_rate")
    for path in files.DATA.rglob("*.npy"):
        scores = (np.load(path) > 0.3).astype(float)
        if "mixed_float16" in path.as_posix():
            scores[0] = 0.5
        np.save(path, scores)
        files.write_manifest(path.parent)
    candidates = document_of(project.compare(quality_margin=0.1)).candidates.values()
    changes = [change for item in candidates for change in (item.quality, item.quality_same_weights) if change]
    assert {change.kind for change in changes} == {"binary", "score"}
    assert {change.unit for change in changes} == {None}


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, DataError, "is missing"),
        (np.array([np.nan] * IMAGES), CorruptFileError, "finite numbers"),
        (np.zeros((IMAGES, 2)), CorruptFileError, "1 dimensions"),
        (np.zeros(7), (ComparisonError, CorruptFileError), r"7 rows|1,200 test examples has 2,201 values, not 7"),
    ],
)
def test_scores_that_cannot_be_used(
    own: SmallStudy, content: np.ndarray | None, error: type[Exception], message: str
) -> None:
    of_weights = [] if content is None else [files.profile_dir(FAST) / "same_weights_2.npy"]  # it may be missing
    for path in (files.train_dir(FAST, 2) / SCORES, *of_weights):
        before = path.read_bytes()
        _replace(path, content)
        with pytest.raises(error, match=message) as caught:
            own.compare(quality_margin=MARGIN)
        assert str(path) in str(caught.value)
        assert "run `dvc repro -f -s " in str(caught.value)
        path.write_bytes(before)
        files.write_manifest(path.parent)


def _replace(path: Path, content: np.ndarray | None) -> None:
    if content is None:
        path.unlink()
    else:
        np.save(path, content)
    files.write_manifest(path.parent)
