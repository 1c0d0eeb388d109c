"""The files of `deploy/` agree with each other, with the release, and contain no secret."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

import pytest
import yaml


@pytest.fixture
def deploy(root: Path) -> Path:
    return root / "deploy"


def variables(text: str) -> set[str]:
    return set(re.findall(r"\$\{(\w+)", text))


def test_example_names_every_variable_of_compose(deploy: Path) -> None:
    example = (deploy / ".env.example").read_text()
    named = set(re.findall(r"^#?([A-Z0-9_]+)=", example, flags=re.MULTILINE))
    assert variables((deploy / "compose.yaml").read_text()) == named


def test_services_name_files_and_services_that_exist(deploy: Path) -> None:
    services = yaml.safe_load((deploy / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        assert "image" in service or (deploy / service["build"] / "Dockerfile").is_file()
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            assert not source.startswith(".") or (deploy / source).is_file(), source
        for port in service.get("ports", ()):
            assert ":-127.0.0.1:" in port  # passwords travel without TLS


def test_images_install_the_release_of_the_clients(deploy: Path, root: Path) -> None:
    (pinned,) = re.findall(r"^mlflow==(\S+)", (root / "requirements.txt").read_text(), flags=re.MULTILINE)
    assert f"\nmlflow[auth]=={pinned}\n" in (deploy / "tracking/requirements.txt").read_text()


def test_users_file_has_no_password_and_a_cache(deploy: Path) -> None:
    found = configparser.ConfigParser()
    found.read(deploy / "tracking/auth.ini")
    settings = found["mlflow"]
    assert "admin_password" not in settings
    assert re.fullmatch(r"postgresql\+psycopg://\w+@db/\w+", settings["database_uri"])
    assert int(settings["auth_cache_ttl_seconds"]) > 0


@pytest.mark.parametrize(
    ("key", "secret"), [("team", "x"), ("a:b:c", "x"), ("a_b:c", "x"), ("team:", "x"), ("a:b", "")]
)
def test_s3_service_refuses_a_key_that_swift_would_misread(deploy: Path, tmp_path: Path, key: str, secret: str) -> None:
    environment = {"S3_ACCESS_KEY": key, "S3_SECRET_KEY": secret, "PATH": "/usr/bin:/bin"}
    command = [str(deploy / "s3/start"), str(tmp_path / "swift"), "127.0.0.1", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert not (tmp_path / "swift").exists()
