"""What an inconclusive verdict says about the way out of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stages import files
from stages.compare.settling import what_would_settle


def _protocol(project: Any, **protocol: Any) -> None:
    path = files.profile_dir("float32") / "summary.json"
    project.edit(path, protocol={"confidence": 0.95, "timing_seconds": 30.0, "target_precision": 0.02} | protocol)


def test_a_clear_verdict_needs_nothing(project: Any) -> None:
    for candidate in project.compare().candidates[:2]:
        assert what_would_settle(candidate, project.compare()) == ()


@pytest.mark.parametrize(
    ("ended_by", "expected"),
    [("max_seconds", "set profile.max_seconds to about "), ("rounds", ", profile.rounds to about ")],
)
def test_an_open_speed_up_names_the_parameter_and_the_way(project: Any, ended_by: str, expected: str) -> None:
    _protocol(project, ended_by=ended_by)
    comparison = project.compare(min_speedup=1.595)
    (said,) = what_would_settle(comparison.candidates[1], comparison)
    assert said.startswith("Training, 1.60× (1.58 to 1.62), is neither clearly below nor clearly above 1.595×")
    assert expected in said
    assert "; inference, batch 1, 1.60×" in said
    assert "profile.target_precision to 0.00" in said  # it would end too early otherwise


def test_a_speed_up_at_the_threshold_is_told_as_such(project: Any) -> None:
    comparison = project.compare(min_speedup=1.6)
    said = what_would_settle(comparison.candidates[1], comparison)
    assert any("lies so near 1.60×" in sentence for sentence in said)


def test_an_open_accuracy_names_test_images_or_seeds(project: Any) -> None:
    comparison = project.compare(accuracy_margin=0.0075)
    (said,) = what_would_settle(comparison.candidates[1], comparison)
    assert "leaves open whether more than 0.75 percentage points is lost" in said
    assert "test images in place of 400" in said


def test_a_margin_that_can_never_be_shown_is_said(project: Any) -> None:
    comparison = project.compare(accuracy_margin=0.002)
    said = what_would_settle(comparison.candidates[1], comparison)
    assert said[0].startswith("400 test images cannot show compare.accuracy_margin 0.002")


def test_what_is_heading_for_reject_needs_no_accuracy(project: Any) -> None:
    """0.25 with a wide interval is open; however the accuracy turns out, it will not be adopted."""
    folder = files.profile_dir("mixed_float16")
    table = (folder / "rounds.csv").read_text().splitlines()
    header, rows = table[0], [row.split(",") for row in table[1:]]
    for row in rows:
        row[4] = str(float(row[4]) * np.exp(1.5 * (-1) ** int(row[0])))
    (folder / "rounds.csv").write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    files.write_manifest(folder)
    comparison = project.compare(accuracy_margin=0.002)
    candidate = comparison.candidates[0]
    assert candidate.verdict == "inconclusive"
    assert [sentence for sentence in what_would_settle(candidate, comparison) if "accuracy" in sentence] == []
