"""A real server that refuses is reported in one line, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

from halfstep.machine.fingerprint import fingerprint
from halfstep.system import files
from stages import prepare as prepare
from tests.faults.servers import SMALL
from tests.team.conftest import Team

pytestmark = pytest.mark.fleet


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a stage."""
    monkeypatch.chdir(tmp_path)
    files.write_json(files.ENVIRONMENT_FILE, fingerprint())
    return tmp_path


def use(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], experiment: str) -> None:
    Path("params.yaml").write_text(yaml.safe_dump({"data": SMALL, "tracking": {"experiment": experiment}}))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_forbidden_experiment_names_it_and_who_can_help(
    team: Team, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    patient = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}  # the first request of a user takes seconds on a busy machine
    use(monkeypatch, team.variables("ann") | patient, "of ann")
    experiment = MlflowClient(team.uri).create_experiment("of ann")
    use(monkeypatch, team.variables("bob"), "of ann")
    assert prepare.main() == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(
        f"tracking.experiment is 'of ann', and {team.uri} does not allow this user to log to it (403 "
    )
    assert not files.PREPARED.exists()
    team.allow("bob", "of ann")
    assert (prepare.main(), capfd.readouterr().err) == (0, "")
    runs = MlflowClient(team.uri).search_runs([experiment])
    assert [(run.info.run_name, run.info.status) for run in runs] == [("prepare", "FINISHED")]
