"""The services of a team on one machine: the parts and files of `deploy/compose.yaml`, without Docker."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
START_S = 90.0
# What an administrator writes to `.env`: new ones each time, because the tests search everything for them.
SECRETS = {
    name: secrets.token_hex(12)
    for name in ("POSTGRES_PASSWORD", "MLFLOW_ADMIN_PASSWORD", "MLFLOW_SECRET_KEY", "S3_SECRET_KEY")
}
VALUES = {**SECRETS, "S3_ACCESS_KEY": "team:halfstep"}


def require_parts() -> None:
    """Skips the test, and says why, if a part is not installed."""
    problems = [
        "PostgreSQL (initdb and postgres)" * (not _postgres("initdb")),
        "OpenStack Swift (.ci/swift)" * (_swift() is None),
        'Flask-WTF (`pip install "mlflow[auth]"`)' * (not importlib.util.find_spec("flask_wtf")),
        '`pip install -e ".[team]"`' * (not all(map(importlib.util.find_spec, ("psycopg", "boto3", "dvc_s3")))),
    ]
    if missing := ", ".join(filter(None, problems)):
        pytest.skip(f"not installed: {missing}")


def _postgres(program: str) -> str | None:
    """A program of PostgreSQL; Debian has those of the server outside of PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"), key=lambda path: int(path.parts[4]))
    return shutil.which(program) or (str(installed[-1]) if installed else None)


def _swift() -> Path | None:
    """The folder of Swift's programs: of the environment in `HALFSTEP_TEST_SWIFT`, or in `.venv-swift`."""
    folder = Path(os.environ.get("HALFSTEP_TEST_SWIFT", ROOT / ".venv-swift")) / "bin"
    return folder if (folder / "swift-proxy-server").exists() else None


def service(name: str, values: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Command and environment variables of a service of `compose.yaml`, with `values` in place of `.env`."""
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"][name]

    def filled(text: str) -> str:
        return re.sub(r"\$\{(\w+)(?::[-?]([^}]*))?\}", lambda match: values.get(match[1], match[2] or ""), text)

    return [filled(part) for part in found["command"]], {k: filled(v) for k, v in found["environment"].items()}


def free_port(count: int = 1) -> int:
    """The first of `count` ports, one after the other, on which nothing listens."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
        try:
            for number in range(port, port + count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", number))
        except (OSError, OverflowError):
            continue
        return port


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until a server answers a request, and raises an error with its log if it does not."""
    wait_until(lambda: process.poll() is not None or _answers(url), f"{url} does not answer", log)
    assert process.poll() is None, log.read_text()[-4000:]


def wait_until(condition: Callable[[], object], problem: str, log: Path | None = None) -> None:
    """Waits until a condition holds."""
    ends_s = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < ends_s, f"{problem}\n{log.read_text()[-4000:] if log else ''}"
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


@dataclass
class Server:
    """A server with its children, which can be killed and started again."""

    command: list[str]
    environment: dict[str, str]
    folder: Path
    health: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def launch(self) -> None:
        """Starts the server, and does not wait for it."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Waits until the server answers."""
        assert self.process is not None
        wait_for(self.health, self.process, self.log)

    def kill(self) -> None:
        """Kills the server and its children, also those that have made a session of their own, as Swift's do."""
        if self.process is None:
            return
        with suppress(psutil.NoSuchProcess):
            started = psutil.Process(self.process.pid)
            for process in [started, *started.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()


@contextmanager
def postgres() -> Iterator[int]:
    """PostgreSQL with the databases of `compose.yaml`. Yields its port on 127.0.0.1."""
    user = _database_user()
    folder = Path(tempfile.mkdtemp(prefix="halfstep-pg-"))  # not in pytest's folder, which only this user may open
    try:
        (folder / "password").write_text(SECRETS["POSTGRES_PASSWORD"])
        if user:
            for path in (folder, folder / "password"):
                os.chown(path, user["user"], user["group"])
        arguments = ["--username=mlflow", "--auth=scram-sha-256", f"--pwfile={folder}/password", "--no-sync"]
        _run([_postgres("initdb"), "--pgdata", f"{folder}/data", *arguments], cwd=folder, **user)
        port = free_port()
        with (folder / "log").open("wb") as log:
            options = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": folder, "fsync": "off"}
            settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
            command = [str(_postgres("postgres")), "-D", f"{folder}/data", *settings]
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, **user)
        try:
            _create_databases(port)
            yield port
        finally:
            process.send_signal(signal.SIGINT)  # disconnects all clients and ends
            process.wait(20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _database_user() -> dict[str, Any]:
    """For Popen: PostgreSQL does not run as root."""
    if os.getuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    found = names.get("postgres") or names["nobody"]
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def psql(port: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `psql` as the user of the databases."""
    environment = {**os.environ, "PGPASSWORD": SECRETS["POSTGRES_PASSWORD"]}
    command = [str(_postgres("psql")), "--host=127.0.0.1", f"--port={port}", "--username=mlflow", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _create_databases(port: int) -> None:
    """What the image of PostgreSQL does at its first start."""
    wait_until(lambda: psql(port, "--dbname=postgres", "-c", "select 1").returncode == 0, "PostgreSQL does not answer")
    init = str(DEPLOY / "postgres/init.sql")
    for arguments in (("--dbname=postgres", "-c", "create database mlflow"), ("--dbname=mlflow", "-f", init)):
        done = psql(port, "-v", "ON_ERROR_STOP=1", *arguments)
        assert done.returncode == 0, done.stderr


def _run(command: list[Any], **options: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr


def s3_server(folder: Path) -> Server:
    """The S3 service, not started."""
    (_, *arguments), variables = service("s3", VALUES)
    port, programs = free_port(4), _swift()
    places = {"/srv/swift": str(folder / "swift"), "0.0.0.0": "127.0.0.1", "8080": str(port)}
    command = [str(DEPLOY / "s3/start"), *(places[part] for part in arguments)]
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return Server(command, {**os.environ, **variables, "PATH": path}, folder, f"http://127.0.0.1:{port}/healthcheck")


def tracking_server(folder: Path, database_port: int, s3_uri: str, *, cache_s: int | None = None) -> Server:
    """The tracking server, not started. `cache_s`: another time in the cache of passwords."""
    (program, *arguments), variables = service("tracking", {**VALUES, "S3_ENDPOINT_URL": s3_uri})
    assert program == "mlflow"
    port, database = free_port(), f"@127.0.0.1:{database_port}/"
    text = (DEPLOY / "tracking/auth.ini").read_text().replace("@db/", database)
    if cache_s is not None:
        text = re.sub("auth_cache_ttl_seconds = .*", f"auth_cache_ttl_seconds = {cache_s}", text)
    (folder / "auth.ini").write_text(text)
    arguments = [part.replace("@db/", database).replace("=0.0.0.0", "=127.0.0.1") for part in arguments]
    arguments = [part.replace("=5000", f"={port}") for part in arguments]
    environment = {**os.environ, **variables, "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini")}
    command = [sys.executable, "-m", program, *arguments]
    return Server(command, environment, folder, f"http://127.0.0.1:{port}/health")


def dump(port: int, database: str) -> bytes:
    """Everything in a database, as text."""
    environment = {**os.environ, "PGPASSWORD": SECRETS["POSTGRES_PASSWORD"]}
    command = [str(_postgres("pg_dump")), "--host=127.0.0.1", f"--port={port}", "--username=mlflow", database]
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout
