"""A baseline that has learned nothing could lose nothing: the verdict is of speed only."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from halfstep.compare.document import document_of
from halfstep.compare.gate import check_gate
from halfstep.compare.report.html import render_report
from halfstep.compare.report.markdown import render_markdown
from halfstep.errors import GateError
from halfstep.results.comparison import Comparison
from halfstep.results.training import METRICS, PREDICTIONS
from halfstep.system import files
from halfstep.tasks import Task, scoring
from halfstep.train import result
from tests.small_study import CLASSES, FAILED, IMAGES, SEEDS, VARIANTS, SmallStudy

STUDIES = 20


def compared(project: SmallStudy, *p: float) -> Comparison:
    """The comparison, where predictions of the baseline are as good as permuted ones with this p-value by seed."""
    for seed, value in enumerate(p, start=1):
        folder = files.train_dir("float32", seed)
        metrics = json.loads((folder / "metrics.json").read_text())
        files.write_json(folder / "metrics.json", metrics | {"permuted_score": 0.1, "permuted_p": value})
        files.write_manifest(folder)
    return document_of(project.compare(gate=True))


@pytest.mark.parametrize("p", [(0.5, 0.9, 0.2), (1.0, 1.0, 1.0), (0.002, 0.4, 0.5), (0.0005, 0.4, 0.5)])
def test_baseline_that_has_learned_nothing_adopts_nothing(project: SmallStudy, p: tuple[float, ...]) -> None:
    comparison = compared(project, *p)
    assert comparison.speed_only is True
    candidate = comparison.candidates["mixed_bfloat16"]
    assert candidate.verdict != "adopt"
    assert candidate.sentence.startswith(
        "Speed only, because float32 has hardly learned anything (accuracy 98.0 %, by chance 10.0 %)"
    )
    with pytest.raises(GateError):
        check_gate(comparison)
    for page in (render_report(comparison), render_markdown(comparison)):
        assert "has hardly learned anything" in page


@pytest.mark.parametrize("equal", ["targets", "predictions"])
def test_where_all_are_equal_nothing_is_said_of_what_was_learned(project: SmallStudy, equal: str) -> None:
    """As of a network that makes an equation hold, whose targets are all 0."""
    drawn = np.random.default_rng(0).normal(size=(IMAGES, 1)).astype(np.float32)
    targets, predicted = (np.zeros_like(drawn), drawn) if equal == "targets" else (drawn, np.zeros_like(drawn))
    score = lambda y, predictions: -np.abs(y - predictions)[:, 0]  # noqa: E731
    task = Task(model=None, compile={}, train=None, score=score, score_name="neg_loss")
    permuted = result.of_permuted(scoring.permuted_scores(task, scoring.Tested(predicted, [(targets, predicted)])))
    assert permuted["permuted_p"] > 0.4
    assert permuted["permuted_score"] == pytest.approx(score(targets, predicted).mean(dtype=np.float64), rel=1e-12)
    for seed in SEEDS:
        folder = files.train_dir("float32", seed)
        metrics = json.loads((folder / METRICS).read_text())
        files.write_json(
            folder / METRICS, metrics | permuted | {"permuted_score": metrics["test_accuracy"] * (1 + 1e-15)}
        )
        files.write_manifest(folder)
    said = document_of(project.compare()).candidates["mixed_bfloat16"].sentence
    assert said.startswith(
        "Speed only, because nothing shows that float32 has learned anything (accuracy 98.0 %, also "
    )


@pytest.mark.parametrize("p", [(1e-5, 1e-9, 0.0), (0.0003, 0.9, 0.9), ()])
def test_baseline_that_has_learned_is_judged(project: SmallStudy, p: tuple[float, ...]) -> None:
    comparison = compared(project, *p)
    assert comparison.speed_only is None
    assert comparison.why_speed_only is None
    assert comparison.candidates["mixed_bfloat16"].verdict == "adopt"


def test_speed_up_on_random_labels_is_never_adopted(project: SmallStudy) -> None:
    """Its predictions are those of a study that adopts, for a speed-up of 1.6; the labels are drawn at random."""
    assert "adopt" not in {_verdict_on_random_labels(project, study) for study in range(STUDIES)}


def _verdict_on_random_labels(project: SmallStudy, study: int) -> str:
    labels = np.random.default_rng(study).integers(0, len(CLASSES), IMAGES).astype(np.int32)
    np.save(files.PREPARED / "test_labels.npy", labels)
    files.write_manifest(files.PREPARED)
    for variant in set(VARIANTS) - {FAILED}:
        for seed in SEEDS:
            folder = files.train_dir(variant, seed)
            predicted = np.load(folder / PREDICTIONS)
            metrics = json.loads((folder / METRICS).read_text())
            metrics |= {"test_accuracy": float(np.mean(predicted.argmax(1) == labels))}
            files.write_json(folder / METRICS, metrics | _permuted(labels, predicted))
            files.write_manifest(folder)
    return document_of(project.compare(gate=True)).candidates["mixed_bfloat16"].verdict


def _permuted(labels: NDArray[np.int32], predicted: NDArray[np.float32]) -> dict[str, float]:
    """What a training writes of such predictions."""
    right = lambda y, probabilities: probabilities.argmax(1) == y  # noqa: E731
    task = Task(model=None, compile={}, train=None, score=right, score_name="accuracy")
    scores = scoring.permuted_scores(task, scoring.Tested(predicted, [(labels, predicted)]))
    return result.of_permuted(scores)
