"""A tracking server that is late, broken, another one or gone: told at the start, and no result lost afterwards."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from stages import files
from stages.environment import __main__ as environment
from stages.environment import reachable
from stages.environment.fingerprint import fingerprint
from stages.params import TrackingParams
from stages.prepare import __main__ as prepare
from tests.faults.servers import FaultyServer, hello, mlflow_server, serving

LIMIT_S = 15.0
SMALL = {"source": "synthetic", "synthetic_images": 40, "synthetic_classes": 2, "image_size": 8}


@pytest.fixture
def server(tmp_path: Path, store_template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """MLflow's server, and a working folder whose parameters name it."""
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    shutil.copy(store_template, tmp_path / "mlflow.db")
    with mlflow_server(tmp_path) as started:
        write_params(started.uri)
        files.write_json(files.ENVIRONMENT_FILE, fingerprint())
        yield started


def write_params(uri: str) -> None:
    tree = {"data": SMALL, "tracking": {"uri": uri.replace("://", "://user:s3cret@")}}
    Path("params.yaml").write_text(yaml.safe_dump(tree))


def checked(capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Status and standard error of `environment`."""
    capfd.readouterr()
    status = environment.main()
    return status, capfd.readouterr().err


def refused(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> str:
    status, said = checked(capfd)
    assert status == 2
    assert len(said.splitlines()) == 1
    assert said.startswith(f"params.yaml: tracking.uri is '{server.uri}': {server.uri} ")
    assert "; start it (`mlflow server`, see the README), or name another store" in said
    return said


def test_a_server_that_answers_is_none_to_speak_of(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert checked(capfd) == (0, "")
    assert server.requests == 1  # `environment` runs at every `dvc repro`


def test_a_late_server_is_waited_for(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.delay_s = 1.0
    assert checked(capfd) == (0, "")


def test_a_server_that_never_answers(
    server: FaultyServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reachable.CONNECT_S + reachable.ANSWER_S < reachable.DEADLINE_S < LIMIT_S
    monkeypatch.setattr(reachable, "ANSWER_S", 0.3)
    server.delay_s = 2.0
    assert "did not answer within 0.3 s" in refused(server, capfd)


def test_a_search_for_an_address_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "DEADLINE_S", 0.2)
    monkeypatch.setattr(reachable, "_mlflow_problem", lambda *_: time.sleep(2.0))
    started_s = time.monotonic()
    problem = reachable.problem_with_server(TrackingParams(uri="http://host:5000"))
    assert problem is not None
    assert problem.startswith("http://host:5000 did not answer within 0.2 s")
    assert time.monotonic() - started_s < 1.9


def test_a_server_that_fails(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.fail_from = 1
    said = refused(server, capfd)
    assert "answers with an error of its own (500 Internal Server Error)" in said


def test_a_server_that_hangs_up(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.vanish_from = 1
    assert "cannot be reached" in refused(server, capfd)


def test_a_server_of_something_else(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(hello) as other:
        write_params(other.uri)
        assert "is no MLflow server" in refused(other, capfd)


def test_a_server_that_is_gone(
    store_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(hello) as gone:
        write_params(gone.uri)
    started_s = time.monotonic()
    assert "cannot be reached (Connection refused)" in refused(gone, capfd)
    assert time.monotonic() - started_s < 15  # what is promised; a refused connection takes well under a second
    assert not Path("data").exists()


def test_a_door_that_asks_who_is_there_is_left_to_mlflow() -> None:
    def guarded(_: object, start_response: object) -> list[bytes]:
        start_response("401 Unauthorized", [("WWW-Authenticate", "Basic")])  # type: ignore[operator]
        return [b"who is there?"]

    with serving(guarded) as server:
        assert reachable.problem_with_server(TrackingParams(uri=server.uri)) is None


def requests_of_prepare(server: FaultyServer) -> int:
    before = server.requests
    assert prepare.main() == 0
    shutil.rmtree(files.PREPARED)
    return server.requests - before


@pytest.mark.parametrize("fault", ["vanish_from", "fail_from"])
def test_a_server_that_goes_away_in_the_middle_costs_no_result(
    fault: str, server: FaultyServer, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = requests_of_prepare(server)
    outcomes = []
    for number in range(1, whole + 1):
        server.requests = 0
        setattr(server, fault, number)
        shutil.rmtree(files.PREPARED, ignore_errors=True)
        capfd.readouterr()
        status = prepare.main()
        said = capfd.readouterr().err
        assert len(said.splitlines()) <= 1, said
        assert "s3cret" not in said
        outcomes.append(status)
        if status == 0:
            files.check_manifest(files.PREPARED)
        else:
            assert not files.PREPARED.exists()  # told before any work
    first_good = outcomes.index(0)
    assert outcomes == [1] * first_good + [0] * (whole - first_good)
    assert 1 <= first_good < whole  # one request at least is made of a result that is there
