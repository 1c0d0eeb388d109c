"""What travels to a node, what is refused before, and the one line that says why a program failed there."""

from __future__ import annotations

import errno
import importlib.util
import itertools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from halfstep.errors import FleetError
from halfstep.fleet import cluster, driving, node, program, remote, train, tree
from halfstep.fleet.cluster import Node
from halfstep.params.schema import FleetParams, ModelParams, Params, TaskParams, TrackingParams
from halfstep.system import files
from halfstep.tracking import provenance

REMOTE = "[core]\n    remote = store\n['remote \"store\"']\n    url = ../../remote\n"


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], capture_output=True, check=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without a commit, with a remote and the digests of `environment`."""
    root = tmp_path / "home"
    (root / ".dvc").mkdir(parents=True)
    monkeypatch.chdir(root)
    for name in (files.SOURCE_FILE, files.MODEL_FILE, files.TASK_FILE):
        files.write_json(root / name, {"name": name.stem})
    ignored = {".gitignore": "/data/\n/.halfstep/\nhelper.py\n", ".dvc/.gitignore": "/config.local\n/tmp\n"}
    code = {"tracked.py": "1\n", "mine.py": "import helper\n", "helper.py": ""}
    for path, text in ({".dvc/config": REMOTE, "dvc.lock": "schema: '2.0'\n"} | ignored | code).items():
        (root / path).write_text(text)
    git("init", "--quiet")
    git("add", "tracked.py")
    return root


def sent(settings: Params) -> set[str]:
    with tree.staged(settings) as folder:
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_tree_has_what_git_does_not_ignore_and_the_sources_of_the_task(home: Path) -> None:
    (home / "data/raw").mkdir()
    (home / "data/raw/a.txt").write_text("")
    plain = {"tracked.py", "mine.py", "dvc.lock", ".gitignore", ".dvc/config", ".dvc/.gitignore"}
    assert sent(Params()) == plain
    assert sent(Params(model=ModelParams(name="mine:net"))) == plain | {"helper.py"}
    task = TaskParams(name="mine:task", depends=("data/raw",))
    assert sent(Params(task=task)) == plain | {"helper.py", "data/raw/a.txt"}


def test_sources_outside_of_the_checkout_are_named(home: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("")
    task = TaskParams(name="mine:task", depends=(str(tmp_path / "corpus.txt"),))
    with pytest.raises(FleetError, match=r"^task\.depends: \S+/corpus\.txt is outside of this checkout"):
        sent(Params(task=task))


def test_a_folder_without_git_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FleetError, match=r"^git says what travels to the nodes, but git ls-files: fatal: not a git rep"
    ):
        sent(Params())


def test_copy_on_a_node_has_the_remote_and_no_secret(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".dvc/config").write_text(REMOTE.replace("../../remote", "s3://bucket/store"))
    local = "['remote \"store\"']\n    secret_access_key = word\n    endpointurl = http://host:9000\n"
    (home / ".dvc/config.local").write_text(local)
    contents = tree.contents()
    assert b"word" not in b"".join(contents.values())
    monkeypatch.setenv("HALFSTEP_FLEET", str(tmp_path / "node"))
    monkeypatch.setattr(program, "node_environment", lambda: dict(os.environ))
    left = tmp_path / "node" / socket.gethostname() / "id" / "work-999999999-left"
    left.mkdir(parents=True)
    with program._copied_tree("id", contents) as work:
        assert not left.exists(), "its worker was killed"
        assert (work / "tracked.py").read_text() == "1\n"
        head = files.read_json(work / ".halfstep/fleet.json")
        assert (head["checkout"], head["git"]) == (provenance.checkout_id(), {})
        told = (work / ".dvc/config.local").read_text()
    assert not work.exists()
    for line in ('url = "s3://bucket/store"', 'endpointurl = "http://host:9000"', "no_scm = true"):
        assert line in told


def test_variables_of_ray_are_not_passed_on(root: Path) -> None:
    """The parent's environment counts: `ray start` has it as the user set it."""
    code = (
        "import os, subprocess, sys\n"
        "child = 'from halfstep.fleet.program import node_environment as e; print(sorted(e()))'\n"
        "variables = os.environ | {'OMP_NUM_THREADS': '1', 'RAY_JOB_ID': '1'}\n"
        "subprocess.run([sys.executable, '-c', child], env=variables, check=True)\n"
    )
    variables = {"PATH": os.environ["PATH"], "AWS_PROFILE": "mine", "RAY_ADDRESS": "here", "DVC_ROOT": "/elsewhere"}
    variables |= {"SLURM_PROCID": "1", "TF_CONFIG": "{}"}  # of the job that started Ray
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=variables, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "['AWS_PROFILE', 'PATH']"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("url = https://user:word@host/x", "remote.store.url contains a password"),
        ("url = https://host/x", "remote.store.url is https://host/x; DVC keeps no run cache over HTTP"),
        ("url = s3://bucket\n    secret_access_key = word", "remote.store.secret_access_key is in .dvc/config"),
        (None, "no DVC remote is configured"),
    ],
)
def test_refused_remote(home: Path, settings: str | None, message: str) -> None:
    lines = f"[core]\n    remote = store\n['remote \"store\"']\n    {settings}\n" if settings else ""
    (home / ".dvc/config").write_text(lines)
    with pytest.raises(FleetError) as error:
        remote.configured()
    assert str(error.value).startswith(message)
    assert "word@" not in str(error.value)


def test_password_in_the_parameters(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "checked_params", lambda: Params(tracking=TrackingParams(uri="https://me:word@host")))
    with pytest.raises(FleetError, match=r"^tracking.uri contains a password, and params.yaml travels"):
        train.checked_settings()


@pytest.mark.parametrize(
    ("fleet", "message"),
    [
        ({"cpus_per_training": 8}, "fleet.cpus_per_training is 8; the 1 nodes of the cluster offer at most 4 cores"),
        ({"gpus_per_training": 2}, "fleet.gpus_per_training is 2; the 1 nodes of the cluster offer at most 4 cores"),
    ],
)
def test_resources_that_no_node_has(fleet: dict[str, int], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "nodes", lambda: [Node("id", "gpu-1", cpus=4.0, gpus=1.0)])
    with pytest.raises(FleetError) as error:
        cluster.require_resources(FleetParams(**fleet))
    assert str(error.value).startswith(message)


def test_without_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find_spec(name))
    with pytest.raises(FleetError, match=r'^Ray is not installed.*pip install -e "\.\[fleet\]"$'):
        cluster.connected(tmp_path).__enter__()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://host:10001", "RAY_ADDRESS is ray://host:10001, an address for Ray clients"),
        ("no.such.host.invalid:6379", "RAY_ADDRESS is no.such.host.invalid:6379, where no Ray cluster answers"),
        ("127.0.0.1:1", "RAY_ADDRESS is 127.0.0.1:1, where no Ray cluster answers (Connection refused)"),
    ],
)
def test_addresses_that_cannot_be_used(
    address: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(FleetError) as error:
        cluster.connected(tmp_path).__enter__()
    assert str(error.value).startswith(message)


def test_reason_of_a_failed_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own failure is not tried again, a signal's is, and DVC's own is the node's fault."""
    cases = {
        "retried": ("echo before; echo 'train: was lost' >&2; exit 75", "train: was lost", 75),
        "wrong": ("echo 'train.batch_size is 0' >&2; exit 2", "train.batch_size is 0", 2),
        "killed": ("kill -9 $$", "a signal ended it (-9)", 75),
    }
    stages = {name: {"cmd": command, "outs": [name]} for name, (command, _, _) in cases.items()}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet", "--no-scm"], check=True)
    unknown = ("", "dvc repro: Stage 'unknown' not found inside 'dvc.yaml' file", 74)
    for stage, (_, reason, status) in {**cases, "unknown": unknown}.items():
        with pytest.raises(node.StepError) as error:
            node.dvc("repro", "--single-item", stage)
        assert str(error.value).startswith(reason)
        assert error.value.exit_status == status


class _LostError(Exception):
    """Ray's error about a worker or a machine."""


STARTED, TOLD, ENDED, LOST = ("started", "host", "id"), ("line", '{"halfstep": "x"}'), ("ended", 0, ""), _LostError()
Reports = Iterable[Any]


def outcome(attempts: Iterator[Reports], monkeypatch: pytest.MonkeyPatch) -> driving.Outcome:
    """Of a job that may be tried again once; `attempts` are what its tries report."""

    def get(report: Any) -> Any:
        if isinstance(report, Exception):
            raise report
        return report

    errors = SimpleNamespace(RayError=_LostError, RayActorError=_LostError, ActorUnavailableError=_LostError)
    ray = SimpleNamespace(put=dict, get=get, wait=lambda streams, **_: (streams, []), exceptions=errors)
    options = SimpleNamespace(remote=lambda *_: iter(next(attempts)))
    actor = SimpleNamespace(run=SimpleNamespace(options=lambda **_: options))
    monkeypatch.setattr(cluster, "library", lambda: ray)
    monkeypatch.setattr(cluster, "program", lambda *_: actor)
    (ended,) = driving.Driving({}, "id", {}, retries=1).run([driving.Job("job")])
    return ended


def test_lost_machine_uses_up_no_retry_of_what_had_not_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = [STARTED, TOLD, LOST]
    assert outcome(iter([[LOST], [STARTED, LOST], begun, [STARTED, LOST], [ENDED]]), monkeypatch).status == 0
    printed = capsys.readouterr().out
    assert printed.count("had not begun, and is tried elsewhere: its worker was lost") == 3
    assert printed.count("retry 1 of 1: its worker was lost") == 1
    assert outcome(iter([begun, begun]), monkeypatch).status == program.LOST


def test_worker_that_can_start_nowhere_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: Iterator[Reports] = itertools.repeat([LOST], driving.FREE_TRIES + 2)
    assert outcome(attempts, monkeypatch).status == program.LOST


def test_full_disk_of_a_node_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, text = tmp_path / "disk", "[Errno 28] No space left on device"
    monkeypatch.setattr(Path, "is_mount", lambda path: path in (Path("/"), disk))
    copied = shutil.Error([("a", f"{disk}/a", f"{text}: 'a' -> '{disk}/x/a'")])
    faults = {
        copied: f"the disk {disk} is full (No space left on device): free some space there",
        OSError(errno.EDQUOT, "Disk quota exceeded"): f"the disk {disk} is full (Disk quota exceeded): free some",
        program._NodeError(f"dvc push: failed - {text}: '{disk}/a' -> '/b'"): "the disk / is full (No space left",
        shutil.Error([("a", "b", "[Errno 13] Permission denied: 'a'")]): "[Errno 13] Permission denied: 'a'",
        OSError(errno.EACCES, "Permission denied", "a"): "a: Permission denied",
        program._NodeError("dvc pull: no access"): "dvc pull: no access",
    }
    for fault, reason in faults.items():
        assert program._explained(fault, disk / "home").startswith(reason)
