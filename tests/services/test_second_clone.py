"""A pipeline on the services of a team: another clone runs nothing again, and no result contains a secret."""

from __future__ import annotations

import io
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import Checkout, started_stages
from tests.services import parts
from tests.services.conftest import PASSWORDS, Team

pytestmark = pytest.mark.fleet
REMOTE = "s3://dvc/halfstep"


@dataclass(frozen=True)
class Published:
    """A finished pipeline whose results are in DVC's remote.

    Attributes:
        variables: what its user has set, with passwords and keys.
        printed: what all commands have printed.
    """

    checkout: Checkout
    variables: dict[str, str]
    printed: str


@pytest.fixture(scope="session")
def published(team: Team, pristine: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """Ann's pipeline. Her password is in the tracking URI, too."""
    checkout = pristine.copy(tmp_path_factory.mktemp("published") / "halfstep")
    checkout.configure({"train.variants": ["float32"], "train.epochs": 1, "tracking.experiment": "clones"})
    checkout.check_output("dvc", "remote", "add", "--default", "team", REMOTE)
    checkout.check_output("dvc", "remote", "modify", "team", "endpointurl", team.s3_uri)
    with_password = team.uri.replace("://", f"://ann:{PASSWORDS['ann']}@")
    variables = {**team.variables("ann"), **team.s3_variables, "MLFLOW_TRACKING_URI": with_password}
    printed = checkout.check_output("dvc", "repro", **variables)
    assert started_stages(printed) == {"environment", "prepare", "train@float32-0", "profile", "compare"}
    checkout.commit("Results")
    printed += checkout.check_output("dvc", "push", **variables)
    return Published(checkout, variables, printed)


def test_second_clone_runs_nothing_again(published: Published, tmp_path: Path) -> None:
    first, variables = published.checkout, published.variables
    subprocess.run(["git", "clone", "--quiet", str(first.root), str(tmp_path / "clone")], check=True)
    clone = Checkout(tmp_path / "clone")
    assert started_stages(clone.check_output("dvc", "repro", "--pull", **variables)) == {"environment"}
    for folder in ("data/prepared", "data/train", "data/profile", "data/compare"):
        assert clone.files(folder) == first.files(folder) != set(), folder
        assert all(
            (clone.root / folder / name).read_bytes() == (first.root / folder / name).read_bytes()
            for name in first.files(folder)
        ), folder


def test_clone_with_a_store_of_its_own_only_compares(published: Published, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", str(published.checkout.root), str(tmp_path / "clone")], check=True)
    clone = Checkout(tmp_path / "clone")
    variables = {name: value for name, value in published.variables.items() if not name.startswith("MLFLOW")}
    clone.check_output("dvc", "pull", **variables)
    assert started_stages(clone.check_output("dvc", "repro", **variables)) == {"environment", "compare"}
    assert {str(run.info.run_name) for run in clone.runs("clones")} == {
        "prepare",
        "train float32 seed 0",
        "float32",
        "compare",
    }


@pytest.mark.parametrize("command", ["push", "pull"])
def test_refused_key_is_reported_without_the_key(published: Published, command: str) -> None:
    wrong = published.variables | {"AWS_SECRET_ACCESS_KEY": "wr0ngSecretKey"}
    with published.checkout.restored("dvc.lock"):
        done = published.checkout.run("dvc", command, "--force" if command == "pull" else "--run-cache", **wrong)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "Traceback" not in output
    assert "wr0ngSecretKey" not in output


def test_no_secret_is_in_any_result(team: Team, published: Published, tmp_path: Path) -> None:
    secrets = {**parts.SECRETS, **PASSWORDS}
    places = dict(everything(team, published, tmp_path))
    for expected in ("dump of mlflow", "dump of mlflow_auth", "git", "printed", "dvc.lock", "data/compare/report.html"):
        assert places[expected], expected
    assert b"train float32 seed 0" in places["dump of mlflow"]  # the search finds what is there
    assert any(name.startswith("s3://mlflow/") for name in places)
    assert any(name.startswith("s3://dvc/") for name in places)
    assert any(name.startswith(".halfstep/") for name in places)
    found = [(name, place) for name, value in secrets.items() for place in places if value.encode() in places[place]]
    assert found == []


def everything(team: Team, published: Published, folder: Path) -> Iterator[tuple[str, bytes]]:
    """What a pipeline leaves behind, by the place where it is, with the members of archives."""
    root = published.checkout.root
    yield "printed", published.printed.encode()
    for database in ("mlflow", "mlflow_auth"):
        yield f"dump of {database}", parts.dump(team.database_port, database)
    objects = ["git", "cat-file", "--batch-all-objects", "--batch"]
    yield "git", subprocess.run(objects, cwd=root, capture_output=True, check=True).stdout
    for path in root.rglob("*"):
        if path.is_file() and ".git" not in path.relative_to(root).parts:
            yield from with_members(path.relative_to(root).as_posix(), path.read_bytes())
    for path in (root / ".git").rglob("*"):
        if path.is_file() and "objects" not in path.parts:
            yield f"git:{path.name}", path.read_bytes()
    for name, content in stored_objects(team):
        yield from with_members(name, content)


def with_members(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """A file and, of a zip archive (a Keras model), its members."""
    yield name, content
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                yield f"{name}/{member}", archive.read(member)


def stored_objects(team: Team) -> Iterator[tuple[str, bytes]]:
    """All objects of the S3 service."""
    import boto3

    names = {"aws_access_key_id": "AWS_ACCESS_KEY_ID", "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    keys: dict[str, Any] = {key: team.s3_variables[name] for key, name in names.items()}
    client = boto3.client("s3", endpoint_url=team.s3_uri, region_name="us-east-1", **keys)
    for bucket in ("mlflow", "dvc"):
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for entry in page.get("Contents", []):
                body = client.get_object(Bucket=bucket, Key=entry["Key"])["Body"]
                yield f"s3://{bucket}/{entry['Key']}", body.read()
