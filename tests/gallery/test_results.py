"""Files of the gallery are checked before they are shown, and say nothing of the host or its user."""

from __future__ import annotations

import getpass
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfstep.machine import fingerprint
from tests.gallery.conftest import KNOWN, Make
from tools.gallery import results, studies

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def written(folder: Path, make: Make) -> Path:
    """A file that the code has written."""
    result = make()
    result.write(studies.PUBLISHED / result.place)
    return studies.PUBLISHED / result.place


def test_file_is_read_as_it_was_written(written: Path, make: Make) -> None:
    assert results.read_one(written, studies.check_of(KNOWN)) == make()
    content = json.loads(written.read_text())
    assert (content["schema_version"], content["comparison"]["schema_version"]) == (1, 6)
    assert written.stat().st_size < 60_000


def test_accounts_of_an_earlier_schema_are_left_out(written: Path, make: Make) -> None:
    content = json.loads(written.read_text())
    content["comparison"]["schema_version"] = 3
    for candidate in content["comparison"]["candidates"].values():
        candidate["account"] = {"train": {"kinds": []}}
        candidate["why"] = "It adds up."
    written.write_text(json.dumps(content))
    result = results.read_one(written, studies.check_of(KNOWN))
    assert result.comparison.baseline == make().comparison.baseline
    assert [(item.account, item.why, item.operations) for item in result.comparison.candidates.values()] == [
        (None, None, None)
    ] * len(result.comparison.candidates)


def change_version_of_the_comparison(content: dict[str, Any]) -> None:
    content["comparison"]["schema_version"] = 99


CHANGES: dict[str, tuple[Change, str]] = {
    "version": (lambda content: content.update(schema_version=2), "the file has schema version 2 and this release"),
    "comparison": (change_version_of_the_comparison, "its comparison has schema version 99"),
    "unknown key": (lambda content: content.update(more=1), "more: Extra inputs are not permitted"),
    "verdict": (
        lambda content: content["comparison"]["candidates"]["mixed_float16"].update(verdict="great"),
        "verdicts.train: Input should be",
    ),
    "occasion": (lambda content: content.update(occasion="../../x"), "occasion: String should match pattern"),
    "study": (lambda content: content.update(study="lstm"), "its content belongs to"),
    "parameters": (
        lambda content: content.update(parameters_sha256="0" * 64),
        "cnn is not a study with these parameters any more: measure again",
    ),
    "device": (
        lambda content: content["comparison"]["environment"].update(device="Faster CPU"),
        "machine is not the one that the comparison describes",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_file_that_is_not_right_is_named_and_left_out(written: Path, make: Make, name: str) -> None:
    change, message = CHANGES[name]
    content = json.loads(written.read_text())
    change(content)
    written.write_text(json.dumps(content))
    other = make("lstm")
    other.write(studies.PUBLISHED / other.place)
    gallery_results = studies.read_results(KNOWN, studies.PUBLISHED)
    assert [one.study for one in gallery_results.shown] == ["lstm"]
    (line,) = gallery_results.left_out
    assert line.startswith(f"{written.as_posix()} is left out: ")
    assert message in line
    assert "dvc repro" not in line


@pytest.mark.parametrize("text", ["", "[]", '{"schema_version": 1, "comparison": []}'])
def test_file_that_is_no_result_is_left_out(written: Path, text: str) -> None:
    written.write_text(text)
    gallery_results = studies.read_results(KNOWN, studies.PUBLISHED)
    assert (len(gallery_results.shown), len(gallery_results.left_out)) == (0, 1)
    assert "dvc repro" not in gallery_results.left_out[0]


def test_what_was_measured_here_counts_before_what_is_published(written: Path, make: Make) -> None:
    newer = make(seconds=7.0)
    newer.write(studies.MEASURED / newer.place)
    assert [one.seconds for one in studies.read_results(KNOWN, studies.MEASURED, studies.PUBLISHED).shown] == [7.0]


def test_names_of_host_user_and_folders_are_left_out(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    node, user = "workstation-of-ann", "ann-smith"
    monkeypatch.setattr(platform, "node", lambda: node)
    monkeypatch.setattr(getpass, "getuser", lambda: user)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/home/someone/dumps")
    monkeypatch.setenv("OMP_AFFINITY", f"file-of-{user}")
    monkeypatch.setenv("KMP_HOSTS", node)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    environment = results.environment()
    assert environment["settings"].get("OMP_NUM_THREADS") == "2"
    assert {"XLA_FLAGS", "OMP_AFFINITY", "KMP_HOSTS"} & environment["settings"].keys() == set()
    comparison = make().comparison.model_copy(update={"environment": fingerprint.fingerprint()})
    text = json.dumps(results.public(comparison).as_json())
    assert [word for word in (node, user, "/home/", str(Path.home())) if word in text] == []
    assert results.public(comparison).environment == environment  # so the result is found again on this machine
