"""A pipeline of a team: another clone runs nothing again, and no result contains a secret."""

from __future__ import annotations

import io
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pipeline.conftest import Checkout, started_stages
from tests.team.conftest import PASSWORDS, Team

pytestmark = pytest.mark.fleet


@dataclass(frozen=True)
class Published:
    """A finished pipeline whose results are in DVC's remote.

    Attributes:
        variables: what its user has set, with passwords.
        printed: what all commands have printed.
    """

    checkout: Checkout
    variables: dict[str, str]
    printed: str


@pytest.fixture(scope="session")
def published(team: Team, pristine: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """Ann's pipeline. Her password is in the tracking URI, too."""
    folder = tmp_path_factory.mktemp("published")
    checkout = pristine.copy(folder / "halfstep")
    checkout.configure({"train.variants": ["float32"], "train.epochs": 1, "tracking.experiment": "clones"})
    checkout.check_output("dvc", "remote", "add", "--default", "team", str(folder / "remote"))
    with_password = team.uri.replace("://", f"://ann:{PASSWORDS['ann']}@")
    variables = {**team.variables("ann"), "MLFLOW_TRACKING_URI": with_password}
    printed = checkout.check_output("dvc", "repro", **variables)
    assert started_stages(printed) == {"environment", "prepare", "train@float32-0", "profile", "serve", "compare"}
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


def test_no_secret_is_in_any_result(team: Team, published: Published) -> None:
    places = dict(everything(team, published))
    for expected in ("server:mlflow.db", "server:users.db", "git", "printed", "dvc.lock", "data/compare/report.html"):
        assert places[expected], expected
    assert b"train float32 seed 0" in places["server:mlflow.db"]  # the search finds what is there
    assert any(name.startswith("server:artifacts/") for name in places)
    assert any(name.startswith("remote:") for name in places)
    assert any(name.startswith(".halfstep/") for name in places)
    leaks = [(name, place) for name, value in PASSWORDS.items() for place in places if value.encode() in places[place]]
    assert leaks == []


def everything(team: Team, published: Published) -> Iterator[tuple[str, bytes]]:
    """What a pipeline leaves behind, by the place where it is, with the members of archives."""
    root = published.checkout.root
    yield "printed", published.printed.encode()
    objects = ["git", "cat-file", "--batch-all-objects", "--batch"]
    yield "git", subprocess.run(objects, cwd=root, capture_output=True, check=True).stdout
    for label, folder in (("", root), ("remote:", root.parent / "remote"), ("server:", team.folder)):
        for path in folder.rglob("*"):
            name = path.relative_to(folder)
            if path.is_file() and ".git" not in name.parts and name.name != "auth.ini":  # the server's own settings
                yield from with_members(f"{label}{name.as_posix()}", path.read_bytes())
    for path in (root / ".git").rglob("*"):
        if path.is_file() and "objects" not in path.parts:
            yield f"git:{path.name}", path.read_bytes()


def with_members(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """A file and, of a zip archive (a Keras model), its members."""
    yield name, content
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                yield f"{name}/{member}", archive.read(member)
