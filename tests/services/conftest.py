"""The services of a team, started once for all tests of this folder."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pipeline.conftest import Checkout, pristine  # noqa: F401  a fixture
from tests.services import parts

PASSWORDS = {user: secrets.token_hex(12) for user in ("ann", "bob")}


@dataclass
class Team:
    """The services, and what a client sets to use them."""

    server: parts.Server
    s3_uri: str
    database_port: int

    @property
    def uri(self) -> str:
        """The address of the tracking server."""
        return self.server.health.removesuffix("/health")

    def variables(self, user: str) -> dict[str, str]:
        """What a user sets for the tracking server."""
        password = parts.SECRETS["MLFLOW_ADMIN_PASSWORD"] if user == "admin" else PASSWORDS[user]
        return {
            "MLFLOW_TRACKING_URI": self.uri,
            "MLFLOW_TRACKING_USERNAME": user,
            "MLFLOW_TRACKING_PASSWORD": password,
        }

    @property
    def s3_variables(self) -> dict[str, str]:
        """What a user sets for DVC's remote."""
        return {
            "AWS_ACCESS_KEY_ID": parts.VALUES["S3_ACCESS_KEY"],
            "AWS_SECRET_ACCESS_KEY": parts.SECRETS["S3_SECRET_KEY"],
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@pytest.fixture(scope="session")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """PostgreSQL, the S3 service and the tracking server with the users of `PASSWORDS`."""
    parts.require_parts()
    folder = tmp_path_factory.mktemp("team")
    (folder / "s3").mkdir()
    (folder / "tracking").mkdir()
    with ExitStack() as stack:
        s3 = parts.s3_server(folder / "s3")
        stack.callback(s3.kill)
        s3.launch()
        port = stack.enter_context(parts.postgres())
        s3_uri = s3.health.removesuffix("/healthcheck")
        server = parts.tracking_server(folder / "tracking", port, s3_uri)
        stack.callback(server.kill)
        server.launch()
        s3.wait()
        create_buckets(s3_uri)
        server.wait()
        found = Team(server, s3_uri, port)
        create_users(found)
        yield found


def create_buckets(s3_uri: str) -> None:
    """What the service `buckets` does."""
    (program, script, *names), variables = parts.service("buckets", {**parts.VALUES, "S3_ENDPOINT_URL": s3_uri})
    assert program == "python"
    path = parts.DEPLOY / "tracking" / Path(script).name
    subprocess.run([sys.executable, str(path), *names], env={**os.environ, **variables}, check=True)


def create_users(team: Team) -> None:
    """What docs/tracking.md says."""
    for user, password in PASSWORDS.items():
        change_users(team, "create", user, typed=password)


def allow(team: Team, user: str, experiment: str) -> None:
    """Grants EDIT on an experiment."""
    change_users(team, "grant", user, experiment)


def change_users(team: Team, *arguments: str, typed: str = "") -> None:
    """Runs `users.py` as in the container of the server."""
    command = [sys.executable, str(parts.DEPLOY / "tracking/users.py"), *arguments]
    environment = {**team.server.environment, "MLFLOW_TRACKING_URI": team.uri}
    done = subprocess.run(command, env=environment, input=f"{typed}\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
