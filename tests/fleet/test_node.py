"""Programs in a clone: their environment, and the one line that says why one failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stages.errors import FleetError
from stages.fleet import bootstrap, node, remote

ORDER = {"gpus": 0, "threads": 1, "variables": {"TF_CONFIG": "{}"}}


def test_environment_of_a_program() -> None:
    found = bootstrap._environment(ORDER)
    assert found["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert found["TF_CONFIG"] == "{}"
    assert found.get("TF_NUM_INTRAOP_THREADS") == ("1" if len(os.sched_getaffinity(0)) > 1 else None)


def test_variables_of_ray_are_not_passed_on(root: Path) -> None:
    """The parent's environment counts: `ray start` has it as the user set it."""
    code = (
        "import os, subprocess, sys\n"
        "child = 'from stages.fleet.bootstrap import node_environment as e; print(sorted(e()))'\n"
        "variables = os.environ | {'OMP_NUM_THREADS': '1', 'RAY_JOB_ID': '1'}\n"
        "subprocess.run([sys.executable, '-c', child], env=variables, check=True)\n"
    )
    variables = {"PATH": os.environ["PATH"], "AWS_PROFILE": "mine", "RAY_ADDRESS": "here", "DVC_ROOT": "/elsewhere"}
    variables |= {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "TF_CONFIG": "{}"}  # of the job that started Ray
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=variables, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "['AWS_PROFILE', 'PATH']"


@pytest.fixture(scope="module")
def initialized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC pipeline with stages that fail."""
    folder = tmp_path_factory.mktemp("pipeline")
    commands = {
        "retried": "echo before; echo 'train: rank 1 was lost' >&2; exit 75",
        "wrong": "echo 'train.batch_size is 0; it must be at least 1' >&2; exit 2",
        "killed": "kill -9 $$",
        "succeeds": "echo 1 > succeeds",
    }
    stages = {name: {"cmd": command, "outs": [name]} for name, command in commands.items()}
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet", "--no-scm"], cwd=folder, check=True)
    return folder


@pytest.fixture
def pipeline(initialized: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(initialized)
    return initialized


@pytest.mark.parametrize(
    ("stage", "reason", "status"),
    [
        ("retried", "train: rank 1 was lost", 75),
        ("wrong", "train.batch_size is 0; it must be at least 1", 1),
        ("killed", "a signal ended it (-9)", 75),
        ("unknown", "dvc repro: Stage 'unknown' not found inside 'dvc.yaml' file", 1),
    ],
)
def test_reason_of_a_failed_stage(pipeline: Path, stage: str, reason: str, status: int) -> None:
    with pytest.raises(node.StepError) as error:
        node.dvc("repro", "--single-item", stage)
    assert str(error.value).startswith(reason)
    assert error.value.exit_status == status


def test_reason_of_a_failed_module() -> None:
    with pytest.raises(node.StepError, match=r"No module named stages.fleet.missing") as error:
        node.run_module("stages.fleet.missing")
    assert error.value.exit_status == 1


def test_a_remote_that_refuses(pipeline: Path) -> None:
    config = "[core]\n    no_scm = true\n    remote = store\n['remote \"store\"']\n    url = ../file/below\n"
    (pipeline / ".dvc/config").write_text(config)
    (pipeline / "file").write_text("no folder")
    node.dvc("repro", "succeeds")
    with pytest.raises(FleetError, match=r"^dvc push: .*; check the remote 'store' and the credentials"):
        remote.push(["succeeds"])
