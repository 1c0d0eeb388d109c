"""A tracking server that is slow, broken, missing or not MLflow is reported before any work, and costs no result."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from werkzeug.serving import make_ssl_devcert

from stages import files
from stages.environment import __main__ as environment
from stages.environment import server_preflight
from stages.machine.fingerprint import fingerprint
from stages.params import TrackingParams
from stages.prepare import __main__ as prepare
from stages.tracking import deadline
from tests.faults.servers import SMALL, FaultyServer, WithPassword, hello, serving

LIMIT_S = 15.0
START_SERVER = "; start it (`mlflow server`, see the README), or name another store\n"
CHECK_LOG = "; check its log, or name another store\n"
ERRORS = ("500 Internal Server Error", "429 Too Many Requests", "503 Service Unavailable", "501 Not Implemented")


@pytest.fixture
def server(server: FaultyServer) -> FaultyServer:
    """MLflow's server, and a working directory whose parameters name it."""
    write_params(server.uri)
    files.write_json(files.ENVIRONMENT_FILE, fingerprint())
    return server


def write_params(uri: str) -> None:
    tree = {"data": SMALL, "tracking": {"uri": uri.replace("://", "://user:s3cret@")}}
    Path("params.yaml").write_text(yaml.safe_dump(tree))


def run_environment(capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit status and standard error of `environment`."""
    capfd.readouterr()
    status = environment.main()
    return status, capfd.readouterr().err


def message(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> str:
    """The one line with which `environment` rejects a server, from the description of the problem on."""
    status, stderr = run_environment(capfd)
    assert status == 2
    assert len(stderr.splitlines()) == 1
    start = f"params.yaml: tracking.uri is '{server.uri}': {server.uri} "
    assert stderr.startswith(start)
    return stderr.removeprefix(start)


def test_working_server_is_accepted_after_one_request(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_environment(capfd) == (0, "")
    assert server.requests == 1  # `environment` runs at every `dvc repro`


def test_slow_server_is_waited_for(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.delay_s = 1.0
    assert run_environment(capfd) == (0, "")


def test_server_that_does_not_answer(
    server: FaultyServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server.delay_s = 3.0
    assert message(server, capfd) == f"did not answer within 1 s{START_SERVER}"


def test_address_lookup_without_end_is_stopped_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deadline.DEADLINE_S < LIMIT_S
    monkeypatch.setattr(deadline, "DEADLINE_S", 0.2)
    monkeypatch.setattr(server_preflight, "_mlflow_problem", lambda *_: time.sleep(2.0))
    started_s = time.monotonic()
    problem = server_preflight.server_problem(TrackingParams(uri="http://host:5000"))
    assert problem is not None
    assert problem.startswith("http://host:5000 did not answer within 0.2 s")
    assert time.monotonic() - started_s < 1.9


@pytest.mark.parametrize("error", ERRORS)
def test_server_that_responds_with_an_error(
    error: str, server: FaultyServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.fail_from, server.error = 1, error
    started_s = time.monotonic()
    assert message(server, capfd) == f"responds with an error ({error}){CHECK_LOG}"
    assert time.monotonic() - started_s < LIMIT_S  # the server asks for a retry after an hour
    assert server.requests <= 2


def test_server_that_closes_the_connection(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.vanish_from = 1
    assert message(server, capfd).startswith("cannot be reached (")


def test_server_that_is_not_mlflow(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    for app in (hello, response("404 Not Found", b"not here"), response("200 OK", b'{"experiment": {"name": "x"}}')):
        with serving(app) as other:
            write_params(other.uri)
            expected = f"is not an MLflow server (MLflow cannot read its response){START_SERVER}"
            assert message(other, capfd) == expected


def test_missing_server(
    store_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(hello) as closed:
        write_params(closed.uri)
    started_s = time.monotonic()
    assert message(closed, capfd) == f"cannot be reached (Connection refused){START_SERVER}"
    assert time.monotonic() - started_s < LIMIT_S
    assert not Path("data").exists()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("401 Unauthorized", b'{"detail": "Not authenticated"}'),
        ("403 Forbidden", b'{"detail": "Not authenticated"}'),
        ("403 Forbidden", b"Permission denied"),
    ],
)
def test_permission_is_left_to_mlflow(status: str, body: bytes) -> None:
    with serving(response(status, body)) as server:
        assert server_preflight.server_problem(TrackingParams(uri=server.uri)) is None


REJECTED = (
    "rejects the user name or the password (401 Unauthorized); set MLFLOW_TRACKING_USERNAME and "
    "MLFLOW_TRACKING_PASSWORD, or name another store\n"
)


@pytest.mark.parametrize(("user", "password"), [("user", "wr0ng"), ("another", "s3cret"), (None, None)])
@pytest.mark.parametrize("place", ["uri", "environment"])
def test_wrong_password_is_reported_before_any_work(
    user: str | None,
    password: str | None,
    place: str,
    server: FaultyServer,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.trouble, server.trouble_from = WithPassword(server.app, "user", "s3cret"), 1
    log_in(server, user, password, place, monkeypatch)
    line = message(server, capfd)
    assert line == REJECTED
    assert prepare.main() == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert password is None or password not in line
    assert not files.PREPARED.exists()


@pytest.mark.parametrize("place", ["uri", "environment"])
def test_right_password_is_accepted(
    place: str, server: FaultyServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.trouble, server.trouble_from = WithPassword(server.app, "user", "s3cret"), 1
    log_in(server, "user", "s3cret", place, monkeypatch)
    assert run_environment(capfd) == (0, "")
    assert prepare.main() == 0
    assert capfd.readouterr().err == ""


def log_in(
    server: FaultyServer, user: str | None, password: str | None, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "environment" and user and password:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    uri = server.uri
    if place == "uri" and user:
        uri = uri.replace("://", f"://{user}:{password}@")
    Path("params.yaml").write_text(yaml.safe_dump({"data": SMALL, "tracking": {"uri": uri}}))


@pytest.fixture
def tls_server(server: FaultyServer, tmp_path: Path) -> Iterator[FaultyServer]:
    """MLflow's server with a certificate that no authority has signed, in the parameters of the working folder."""
    with serving(server.app, make_ssl_devcert(str(tmp_path / "tls"), host="localhost")) as with_tls:
        write_params(with_tls.uri)
        yield with_tls


def test_certificate_that_no_authority_has_signed(
    tls_server: FaultyServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert message(tls_server, capfd) == (
        "has a certificate that is not accepted (self-signed certificate); set MLFLOW_TRACKING_SERVER_CERT_PATH to a "
        "file with the certificate of its authority, or, only on a network that you trust, "
        "MLFLOW_TRACKING_INSECURE_TLS=true\n"
    )
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(tmp_path / "missing.pem"))
    missing = f"MLFLOW_TRACKING_SERVER_CERT_PATH is '{tmp_path}/missing.pem', which does not exist; correct it\n"
    assert message(tls_server, capfd) == f"cannot be checked: {missing}"
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(tmp_path / "tls.crt"))
    assert run_environment(capfd) == (0, "")
    monkeypatch.delenv("MLFLOW_TRACKING_SERVER_CERT_PATH")
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")
    assert run_environment(capfd)[0] == 0


def test_server_without_tls(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.uri = server.uri.replace("http://", "https://")
    write_params(server.uri)
    expected = "cannot be reached by TLS ("
    assert message(server, capfd).startswith(expected)


def test_database_without_its_driver(
    server: FaultyServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)  # as Python sees a package that is not installed
    server.uri = f"{server.uri.replace('http', 'postgresql')}/mlflow"
    write_params(server.uri)
    expected = "needs the Python module psycopg, which is not installed; install the package that contains it"
    assert message(server, capfd) == f"{expected}, or name another store\n"


def response(status: str, body: bytes) -> Callable[..., Iterable[bytes]]:
    def app(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response(status, [("Content-Type", "text/plain")])
        return [body]

    return app


def run_prepare(server: FaultyServer) -> int:
    """Runs `prepare`, and returns the number of its requests."""
    before = server.requests
    assert prepare.main() == 0
    shutil.rmtree(files.PREPARED)
    return server.requests - before


@pytest.mark.parametrize(
    "error",
    [None, ERRORS[0], pytest.param(ERRORS[1], marks=pytest.mark.slow)],
    ids=["connection closed", *ERRORS[:2]],
)
def test_server_that_fails_during_a_stage_costs_no_result(
    error: str | None, server: FaultyServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    count = run_prepare(server)
    server.error = error or server.error
    statuses = []
    for number in range(1, count + 1):
        server.requests = 0
        server.fail_from, server.vanish_from = (number, None) if error else (None, number)
        shutil.rmtree(files.PREPARED, ignore_errors=True)
        capfd.readouterr()
        status = prepare.main()
        stderr = capfd.readouterr().err
        assert len(stderr.splitlines()) <= 1, stderr
        assert "s3cret" not in stderr
        statuses.append(status)
        if status == 0:
            files.verify_manifest(files.PREPARED)
        else:
            assert not files.PREPARED.exists()  # reported before any work
    failed = statuses.index(0)
    assert statuses == [1] * failed + [0] * (count - failed)
    assert 1 <= failed < count  # at least one request follows the result
