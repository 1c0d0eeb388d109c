"""A tracking server that is slow, broken, missing or not MLflow is reported before any work, and costs no result."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from werkzeug.serving import make_ssl_devcert

from halfstep.machine.fingerprint import fingerprint
from halfstep.system import files
from stages import prepare as prepare
from tests.faults.servers import SMALL, FaultyServer, WithPassword, hello, later, refuse, serving

LIMIT_S = 15.0


@pytest.fixture
def server(server: FaultyServer) -> FaultyServer:
    """MLflow's server, and a working directory whose parameters name it."""
    write_params(server.uri)
    files.write_json(files.ENVIRONMENT_FILE, fingerprint())
    return server


def write_params(uri: str) -> None:
    tree = {"data": SMALL, "tracking": {"uri": uri.replace("://", "://user:s3cret@")}}
    Path("params.yaml").write_text(yaml.safe_dump(tree))


def response(status: str, body: bytes) -> Callable[..., Iterable[bytes]]:
    def app(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response(status, [("Content-Type", "text/plain")])
        return [body]

    return app


def message(capfd: pytest.CaptureFixture[str]) -> str:
    """The one line with which `prepare` ends before any work."""
    capfd.readouterr()
    started_s = time.monotonic()
    assert prepare.main() == 1
    assert time.monotonic() - started_s < LIMIT_S
    (line,) = capfd.readouterr().err.splitlines()
    assert "s3cret" not in line
    assert not files.PREPARED.exists()
    return line


def broken(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    return response("500 Internal Server Error", b"<h1>Error</h1>")(environ, start_response)


@pytest.mark.parametrize("trouble", [broken, later, refuse])
def test_server_that_does_not_work(trouble: Any, server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.trouble, server.trouble_from = trouble, 1
    assert server.uri in message(capfd)


def test_server_that_is_not_mlflow(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    for app in (hello, response("404 Not Found", b"not here")):
        with serving(app) as other:
            write_params(other.uri)
            assert other.uri in message(capfd)


def test_missing_server(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(hello) as closed:
        write_params(closed.uri)
    line = message(capfd)
    assert closed.uri in line
    assert "Connection refused" in line


@pytest.mark.parametrize(("user", "password"), [("user", "wr0ng"), (None, None)])
def test_wrong_password_is_reported_before_any_work(
    user: str | None, password: str | None, server: FaultyServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.trouble, server.trouble_from = WithPassword(server.app, "user", "s3cret"), 1
    log_in(server, user, password)
    line = message(capfd)
    assert "401" in line
    assert password is None or password not in line


def test_right_password_is_accepted(server: FaultyServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.trouble, server.trouble_from = WithPassword(server.app, "user", "s3cret"), 1
    log_in(server, "user", "s3cret")
    capfd.readouterr()
    assert prepare.main() == 0
    assert capfd.readouterr().err == ""


def log_in(server: FaultyServer, user: str | None, password: str | None) -> None:
    uri = server.uri.replace("://", f"://{user}:{password}@") if user else server.uri
    Path("params.yaml").write_text(yaml.safe_dump({"data": SMALL, "tracking": {"uri": uri}}))


def test_certificate_that_no_authority_has_signed(
    server: FaultyServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving(server.app, make_ssl_devcert(str(tmp_path / "tls"), host="localhost")) as with_tls:
        write_params(with_tls.uri)
        line = message(capfd)
        assert with_tls.uri in line
        assert "self-signed certificate" in line
        monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(tmp_path / "tls.crt"))
        assert prepare.main() == 0


def run_prepare(server: FaultyServer) -> int:
    """Runs `prepare`, and returns the number of its requests."""
    before = server.requests
    assert prepare.main() == 0
    shutil.rmtree(files.PREPARED)
    return server.requests - before


@pytest.mark.parametrize("trouble", [broken, refuse])
def test_server_that_fails_during_a_stage_costs_no_result(
    trouble: Any, server: FaultyServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    count = run_prepare(server)
    server.trouble = trouble
    statuses = []
    for number in range(1, count + 1):
        server.requests, server.trouble_from = 0, number
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
