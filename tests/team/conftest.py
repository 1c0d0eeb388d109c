"""An MLflow server with two users, as a team has one, started once for all tests of this folder."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient
from mlflow.server import get_app_client

from tests.pipeline.conftest import Checkout, pristine  # noqa: F401  a fixture
from tests.ports import free_port

# New ones each time: a test searches everything for them.
PASSWORDS = {user: secrets.token_hex(12) for user in ("admin", "ann", "bob")}
_START_S = 90.0
_SETTINGS = """[mlflow]
database_uri = sqlite:///{folder}/users.db
admin_username = admin
admin_password = {password}
default_permission = READ
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
grant_default_workspace_access = false
"""


class Team:
    """The server, which can be killed and started again, and what its clients set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        settings = self.folder / "auth.ini"
        settings.write_text(_SETTINGS.format(folder=self.folder, password=PASSWORDS["admin"]))
        environment = {**os.environ, "MLFLOW_AUTH_CONFIG_PATH": str(settings), "MLFLOW_FLASK_SERVER_SECRET_KEY": "key"}
        command = [sys.executable, "-m", "mlflow", "server", "--app-name=basic-auth", "--workers=1", "--host=127.0.0.1"]
        command += [f"--port={self._port}", f"--backend-store-uri=sqlite:///{self.folder}/mlflow.db"]
        command += [f"--artifacts-destination={self.folder}/artifacts"]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._answers, f"the server does not answer: {self.folder / 'server.log'}")

    def kill(self) -> None:
        """Kills the server and its children."""
        assert self._process is not None
        with suppress(psutil.NoSuchProcess):
            started = psutil.Process(self._process.pid)
            for process in [started, *started.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()

    def variables(self, user: str) -> dict[str, str]:
        """What a user sets for the tracking server."""
        return {
            "MLFLOW_TRACKING_URI": self.uri,
            "MLFLOW_TRACKING_USERNAME": user,
            "MLFLOW_TRACKING_PASSWORD": PASSWORDS[user],
        }

    @property
    def as_admin(self) -> dict[str, str]:
        """The same for the administrator, who is patient with a busy machine."""
        return {**self.variables("admin"), "MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}

    def allow(self, user: str, experiment: str) -> None:
        """Grants EDIT on an experiment."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.as_admin.items():
                patch.setenv(name, value)
            stored_experiment = MlflowClient(self.uri).get_experiment_by_name(experiment)
            assert stored_experiment is not None
            users = get_app_client("basic-auth", self.uri)
            users.grant_user_permission(user, "experiment", stored_experiment.experiment_id, "EDIT")

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                return True
        except (HTTPException, OSError):  # urllib's own are OSErrors
            return False


def wait_until(condition: Callable[[], object], problem: str) -> None:
    """Waits until a condition holds."""
    ends_s = time.monotonic() + _START_S
    while not condition():
        assert time.monotonic() < ends_s, problem
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def as_users_start_it(cold_python: None) -> None:
    """Every stage starts as users start it."""


@pytest.fixture(scope="session")
def team(tmp_path_factory: pytest.TempPathFactory, store_template: Path) -> Iterator[Team]:
    """The server with the users of `PASSWORDS`."""
    if importlib.util.find_spec("flask_wtf") is None:
        pytest.skip('not installed: Flask-WTF (`pip install "mlflow[auth]"`)')
    server = Team(tmp_path_factory.mktemp("team"))
    shutil.copy(store_template, server.folder / "mlflow.db")  # whose tables the first request would create, in seconds
    server.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in server.as_admin.items():
                patch.setenv(name, value)
            for user in ("ann", "bob"):
                get_app_client("basic-auth", server.uri).create_user(user, PASSWORDS[user])
        yield server
    finally:
        server.kill()
