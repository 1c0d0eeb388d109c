"""Each kind of trouble with the server, from each kind of request of each stage on: seconds, one line, nothing lost."""

from __future__ import annotations

import itertools
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from halfstep.params.schema import Params
from halfstep.profile import stage as profile_stage_module
from halfstep.system import files
from halfstep.system.locking import machine_lock
from stages import compare as compare
from stages import environment as environment
from stages import profile as profile
from tests.faults import servers
from tests.faults.servers import SMALL, FaultyServer
from tests.small_study import complete_data  # noqa: F401  (a fixture)
from tests.tracked_runs import name_of

TROUBLES = (servers.refuse, servers.hang, servers.later, servers.hello, servers.redirect, servers.noise)
TIMEOUT_S = 1
REQUESTS = 4  # that may each take as long: a call is tried twice, and a server that hangs also delays the end of a run
SLACK_S = 6.0
NAMES = ("float32", "mixed_float16")
SECTIONS = {
    "data": SMALL,
    "train": {"variants": list(NAMES), "seeds": [1], "epochs": 2, "batch_size": 8},
    "variants": {name: {"policy": name} for name in NAMES},
}


RunLister = Callable[[str], list[tuple[str, str, bool]]]


@dataclass(frozen=True)
class Stage:
    """A stage in a folder with its inputs.

    Attributes:
        run: runs it, and returns the exit status.
        result: a file that exists when its work is done.
        output: the folder that DVC removes before it starts the stage.
    """

    run: Callable[[], int]
    result: Path
    output: Path


@pytest.fixture
def stages(
    server: FaultyServer,
    complete_data: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Mapping[str, Callable[[], Stage]]:
    """Prepares the working folder for a stage."""

    def study() -> None:
        shutil.copytree(complete_data, files.DATA)
        for name in ("class_counts.csv", "rejected.csv"):
            (files.PREPARED / name).write_bytes(b"")
        files.write_manifest(files.PREPARED)

    def profile_stage() -> Stage:
        study()
        shutil.move(files.PROFILE, "measured")
        monkeypatch.setattr(profile_stage_module, "_measure_and_write", _copy_measurement)
        monkeypatch.setattr(profile, "machine_lock", lambda: machine_lock(Path("machine.lock").resolve()))
        return Stage(profile.main, files.profile_dir("float32") / "manifest.json", files.PROFILE)

    def compare_stage() -> Stage:
        study()
        return Stage(compare.main, files.COMPARE / "report.html", files.COMPARE)

    return {"profile": profile_stage, "compare": compare_stage}


@pytest.fixture
def project_runs(tmp_path: Path) -> RunLister:
    """Name and status of each run of an experiment, and whether it has a parent."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")

    def runs(experiment: str) -> list[tuple[str, str, bool]]:
        mlflow_experiment = client.get_experiment_by_name(experiment)
        rows = client.search_runs([mlflow_experiment.experiment_id]) if mlflow_experiment else []
        return sorted((name_of(run), str(run.info.status), "mlflow.parentRunId" in run.data.tags) for run in rows)

    return runs


def _copy_measurement(settings: Params, *_: object) -> dict[str, str]:
    shutil.copytree("measured", files.PROFILE, dirs_exist_ok=True)
    return {name: files.verify_manifest(files.profile_dir(name)) for name in settings.train.variants}


def write_params(uri: str, experiment: str) -> None:
    """An experiment of its own makes each attempt log everything."""
    tracking = {"uri": uri.replace("://", "://user:s3cret@"), "experiment": experiment}
    Path("params.yaml").write_text(yaml.safe_dump({**SECTIONS, "tracking": tracking}))


def kind(request: tuple[str, str]) -> tuple[str, str]:
    """Method and endpoint of a request, without identifiers and names of files."""
    method, path = request
    return method, "/".join(re.sub(r"m-[0-9a-f]{32}|[0-9a-f]{32}", "ID", path).split("/")[:6])


def first_of_each_kind(log: list[tuple[str, str]]) -> list[int]:
    """Numbers of the first request of each kind, and of one in the middle and the last one."""
    kinds = [kind(request) for request in log]
    return sorted({kinds.index(name) + 1 for name in kinds} | {len(log) // 2 + 1, len(log)})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["profile", "compare"])
def test_trouble_costs_seconds_and_one_line(
    name: str,
    server: FaultyServer,
    stages: Mapping[str, Callable[[], Stage]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    stage = stages[name]()
    write_params(server.uri, "healthy")
    started_s = time.monotonic()
    capfd.readouterr()
    assert (stage.run(), capfd.readouterr().err) == (0, "")
    healthy_s, log = time.monotonic() - started_s, list(server.log)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", str(TIMEOUT_S))
    for number, trouble in zip(first_of_each_kind(log), itertools.cycle(TROUBLES), strict=False):
        case = f"{name}: {trouble.__name__} from request {number} of {len(log)} on, {kind(log[number - 1])}"
        write_params(server.uri, f"{trouble.__name__} {number}")
        shutil.rmtree(stage.output, ignore_errors=True)
        server.requests, server.trouble, server.trouble_from = 0, trouble, number
        started_s = time.monotonic()
        status = stage.run()
        duration_s = time.monotonic() - started_s
        stderr = capfd.readouterr().err
        server.trouble_from = None
        assert duration_s < healthy_s + REQUESTS * TIMEOUT_S + SLACK_S, case
        lines = stderr.splitlines()
        assert len(lines) == 1, f"{case}: {stderr}"
        assert lines[0].isprintable(), f"{case}: {stderr!r}"
        assert "s3cret" not in stderr, case
        assert (status == 0) == stage.result.exists(), f"{case}: {status}"  # an error is reported before any work


def identity() -> str:
    """What `environment` writes to `data/keys/tracking`: DVC runs `compare` again if it changes."""
    assert environment.main() == 0
    return str(files.read_json(files.TRACKING_FILE)["sha256"])


@pytest.mark.slow
@pytest.mark.parametrize("request_kind", ["search", "mlflow-artifacts"])
def test_next_pipeline_logs_what_compare_could_not_log(
    request_kind: str, server: FaultyServer, stages: Mapping[str, Callable[[], Stage]], project_runs: RunLister
) -> None:
    stages["compare"]()
    write_params(server.uri, "healthy")
    assert compare.main() == 0
    number = next(place for place, (_, path) in enumerate(server.log, 1) if request_kind in path)
    write_params(server.uri, "incomplete")
    before = identity()
    server.requests, server.trouble, server.trouble_from = 0, servers.refuse, number
    assert compare.main() == 0
    server.trouble_from = None
    assert project_runs("incomplete") != project_runs("healthy")
    changed = identity()
    assert changed != before
    assert compare.main() == 0
    ended = [row for row in project_runs("incomplete") if row[1] != "KILLED"]  # what was logged in part
    assert ended == project_runs("healthy")
    assert identity() == changed  # nothing to do


def test_failed_store_does_not_hide_the_first_error(
    server: FaultyServer, stages: Mapping[str, Callable[[], Stage]], capfd: pytest.CaptureFixture[str]
) -> None:
    stages["compare"]()
    write_params(server.uri, "Default")
    (files.PROFILE / "float32/rounds.csv").write_text("damaged")
    server.trouble, server.trouble_from = servers.refuse, 2  # the first one finds the experiment
    assert compare.main() == 1
    assert "rounds.csv is damaged" in capfd.readouterr().err
