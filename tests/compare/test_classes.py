"""Recall by class: a class that loses is named, and `compare.class_margin` judges it."""

from __future__ import annotations

import numpy as np
import pytest

from halfstep.compare.document import document_of
from halfstep.compare.report.markdown import render_markdown
from halfstep.errors import ComparisonError
from halfstep.results.comparison import Candidate
from halfstep.results.training import PREDICTIONS
from halfstep.system import files
from tests.small_study import CLASSES, SEEDS, SmallStudy, labels

DOG = CLASSES.index("dog")
NAME = "mixed_bfloat16"


def lose(wrong: int) -> None:
    """So many images of the last class are taken for another one after each training of one variant."""
    rows = np.flatnonzero(labels() == DOG)[-wrong:]
    for seed in SEEDS:
        folder = files.train_dir(NAME, seed)
        probabilities = np.load(folder / PREDICTIONS)
        probabilities[rows] = np.roll(probabilities[rows], 1, axis=1)
        np.save(folder / PREDICTIONS, probabilities)
        files.write_manifest(folder)


def judged(project: SmallStudy, **params: float | None) -> Candidate:
    return document_of(project.compare(quality_margin=0.05, **params)).candidates[NAME]


def test_equal_recall_is_not_mentioned(project: SmallStudy) -> None:
    candidate = judged(project)
    assert candidate.verdict == "adopt"
    assert candidate.classes is None
    assert candidate.class_sentence is None


def test_class_that_loses_is_named_and_not_judged_without_a_margin(project: SmallStudy) -> None:
    lose(24)  # 8 of 100 of the class, 2 of 100 of all
    candidate = judged(project)
    assert candidate.verdict == "adopt"
    (item,) = candidate.classes or ()
    assert (item.name, item.n, item.is_lost, item.outcome) == ("dog", 300, True, None)
    assert candidate.class_sentence in candidate.sentences
    assert candidate.class_sentence is not None
    assert candidate.class_sentence.startswith("Recall of class `dog` falls by 8.")
    assert item.low < item.value < item.high < 0
    assert "Recall of class" in render_markdown(document_of(project.compare(quality_margin=0.05)))


@pytest.mark.parametrize(
    ("margin", "verdict", "outcome"),
    [(0.03, "reject", "refuted"), (0.09, "inconclusive", "not established"), (0.3, "adopt", "shown")],
)
def test_margin_of_classes_is_part_of_the_verdict(
    project: SmallStudy, margin: float, verdict: str, outcome: str
) -> None:
    lose(24)
    candidate = judged(project, class_margin=margin)
    assert candidate.verdict == verdict
    assert [item.outcome for item in candidate.classes or () if item.name == "dog"] == [outcome]
    assert ("`dog`" in candidate.sentence) == (verdict != "adopt")
    assert candidate.verdicts["inference_b1"] == "adopt"  # the weights of the baseline lose nothing


def test_margin_without_classes_is_refused(project: SmallStudy) -> None:
    project.make_own("score")
    with pytest.raises(ComparisonError, match=r"compare\.class_margin is 0\.02, and no class has 30 test examples"):
        project.compare(quality_margin=0.05, class_margin=0.02)
