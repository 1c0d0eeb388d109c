"""What is refused before anything travels: one line that names it."""

from __future__ import annotations

import importlib.util
import platform
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from stages.errors import FleetError
from stages.fleet import cluster, preflight, remote
from stages.fleet.cluster import Node
from stages.params import FleetParams, ModelParams, Params, TaskParams, TrackingParams
from tests.fleet.test_parcel import git, home

__all__ = ["home"]

NODE = Node("id", "gpu-1", "10.0.0.2", cpus=4.0, gpus=1.0)
SAME: dict[str, Any] = {
    "host": "gpu-1",
    "python": platform.python_version(),
    "versions": {name: metadata.version(name) for name in preflight.PACKAGES},
    "variables": {"HALFSTEP_CHECKPOINTS": True, "MLFLOW_TRACKING_URI": True},
    "sees_probe": True,
}


def set_remote(root: Path, *settings: str) -> None:
    lines = "".join(f"    {line}\n" for line in settings)
    (root / ".dvc/config").write_text(f"[core]\n    remote = store\n['remote \"store\"']\n{lines}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("url = https://user:word@host/x",), "remote.store.url contains a password"),
        (("url = https://host/x",), "remote.store.url is https://host/x; DVC keeps no run cache over HTTP"),
        (("url = s3://bucket", "secret_access_key = word"), "remote.store.secret_access_key is in .dvc/config"),
    ],
)
def test_refused_remote(home: Path, settings: tuple[str, ...], message: str) -> None:
    set_remote(home, *settings)
    with pytest.raises(FleetError) as error:
        remote.configured()
    assert str(error.value).startswith(message)
    assert "word@" not in str(error.value)


def test_no_remote(home: Path) -> None:
    (home / ".dvc/config").write_text("")
    with pytest.raises(FleetError, match=r"^no DVC remote is configured.*dvc remote add --default NAME URL"):
        remote.configured()


def test_probe_of_a_folder_is_removed(home: Path, tmp_path: Path) -> None:
    with remote.probe_file(remote.configured()) as path:
        assert path is not None
        assert Path(path).parent == tmp_path / "remote"
        assert Path(path).is_file()
    assert list((tmp_path / "remote").iterdir()) == []


def test_a_server_needs_no_probe(home: Path) -> None:
    set_remote(home, "url = s3://bucket/x")
    with remote.probe_file(remote.configured()) as path:
        assert path is None


def test_push_to_a_folder_that_cannot_be_written(home: Path, tmp_path: Path) -> None:
    (tmp_path / "remote").write_text("a file")
    with pytest.raises(FleetError, match=r"^remote.store.url is .*remote, which cannot be written"):
        remote.probe_file(remote.configured()).__enter__()


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("ERROR: failed to push: 403 Forbidden\nsecond\n", "failed to push: 403 Forbidden"),
        ("WARNING: odd\nERROR: s3://me:word@host refuses\n", "s3://host refuses"),
        ("killed\n", "killed"),
        ("", "it failed without a message"),
    ],
)
def test_error_of_dvc_is_one_line(output: str, line: str) -> None:
    assert remote.dvc_error(output) == line


def untracked(settings: Params) -> list[str]:
    return list(preflight._untracked(settings))


@pytest.fixture
def tracked_code(home: Path) -> Path:
    (home / "stages").mkdir()
    for name in ("dvc.yaml", "params.yaml", "stages/code.py", "mine.py", "words.txt"):
        (home / name).write_text("")
    (home / "mine.py").write_text("import helper\n")
    (home / "helper.py").write_text("")
    git("add", "--all")
    git("commit", "--quiet", "--message", "code")
    return home


def test_tracked_files_travel(tracked_code: Path) -> None:
    assert untracked(Params(model=ModelParams(name="mine:net"))) == []
    assert untracked(Params(task=TaskParams(name="mine:task", depends=("words.txt", "stages")))) == []


def test_untracked_files_are_named(tracked_code: Path) -> None:
    (tracked_code / "stages/new.py").write_text("")
    git("rm", "--quiet", "--cached", "helper.py")
    assert untracked(Params(model=ModelParams(name="mine:net"))) == [
        "stages/new.py is not tracked by git, so the nodes would not have it; `git add` it",
        f"model.name: {tracked_code}/helper.py is not tracked by git, so the nodes would not have it; `git add` it",
    ]


def test_what_a_task_depends_on_must_be_in_the_checkout(tracked_code: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/corpus.txt").write_text("")
    (tracked_code / "data/raw").mkdir()
    (tracked_code / "data/raw/a.txt").write_text("")
    depends = (str(tmp_path / "outside"), "data/raw")
    lines = untracked(Params(task=TaskParams(name="mine:task", depends=depends)))
    assert len(lines) == 2
    assert lines[0].startswith(f"task.depends: {tmp_path}/outside/corpus.txt is outside of this checkout")
    assert lines[1].startswith("task.depends: data/raw/a.txt is not tracked by git")


def test_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FleetError, match=r"has no git commit, and the fleet sends a commit.*git init"):
        preflight._require_commit()


def test_password_in_the_parameters() -> None:
    with pytest.raises(FleetError, match=r"^tracking.uri contains a password, and params.yaml travels"):
        preflight._require_no_password(Params(tracking=TrackingParams(uri="https://me:word@host")))
    preflight._require_no_password(Params(tracking=TrackingParams(uri="https://host")))


def test_equal_versions() -> None:
    assert list(preflight.version_problems(NODE, SAME)) == []


@pytest.mark.parametrize(
    ("facts", "start"),
    [
        ({"python": "3.9.1"}, "gpu-1 (10.0.0.2) has Python 3.9.1, and this machine has Python 3."),
        ({"versions": {"keras": "3.0.0"}}, "gpu-1 (10.0.0.2) has keras 3.0.0, and this machine has keras 3."),
        ({"versions": {"tensorflow": None}}, "gpu-1 (10.0.0.2) does not have tensorflow, and this machine has"),
    ],
)
def test_other_versions(facts: dict[str, Any], start: str) -> None:
    (line,) = preflight.version_problems(NODE, SAME | facts)
    assert line.startswith(start)


@pytest.mark.parametrize(
    ("fleet", "message"),
    [
        ({"cpus_per_training": 8}, "fleet.cpus_per_training is 8; the 1 nodes of the cluster offer at most 4 cores"),
        ({"gpus_per_training": 2}, "fleet.gpus_per_training is 2; the 1 nodes of the cluster offer at most 4 cores"),
    ],
)
def test_resources_that_no_node_has(fleet: dict[str, int], message: str) -> None:
    with pytest.raises(FleetError) as error:
        preflight._fitting([NODE], Params(fleet=FleetParams(**fleet)))
    assert str(error.value).startswith(message)


def test_notices() -> None:
    unset = SAME | {"variables": {"HALFSTEP_CHECKPOINTS": False, "MLFLOW_TRACKING_URI": False}}
    lines = list(preflight._notices(Params(), [NODE], [unset]))
    assert [line.split()[0] for line in lines] == ["HALFSTEP_CHECKPOINTS", "no", "fleet.gpus_per_training"]
    server = Params(tracking=TrackingParams(uri="https://host"), fleet=FleetParams(gpus_per_training=1))
    assert list(preflight._notices(server, [NODE], [SAME])) == []


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    with pytest.raises(FleetError, match=r'^Ray is not installed.*pip install -e "\.\[fleet\]"$'):
        cluster.connected().__enter__()


def test_nobody_listens_at_ray_address(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(FleetError) as error:
            cluster.connected().__enter__()
    assert str(error.value).startswith(f"RAY_ADDRESS is {address}, where no Ray cluster answers (Connection refused)")
    assert "`ray start --head`" in str(error.value)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://host:10001", "RAY_ADDRESS is ray://host:10001, an address for Ray clients"),
        ("no.such.host.invalid:6379", "RAY_ADDRESS is no.such.host.invalid:6379, where no Ray cluster answers"),
    ],
)
def test_addresses_that_cannot_be_used(address: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(FleetError) as error:
        cluster.connected().__enter__()
    assert str(error.value).startswith(message)
