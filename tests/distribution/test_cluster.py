from __future__ import annotations

import json
from typing import Any

import pytest

from stages.distribution.cluster import Cluster, from_environment
from stages.errors import ParameterError

WORKERS = ["node1:12345", "[fe80::1]:12345"]


def config(workers: Any = WORKERS, index: Any = 1, kind: Any = "worker", **jobs: Any) -> dict[str, str]:
    tree = {"cluster": {"worker": workers, **jobs}, "task": {"type": kind, "index": index}}
    return {"TF_CONFIG": json.dumps(tree)}


def slurm(tasks: str = "2", rank: str = "1") -> dict[str, str]:
    names = {"SLURM_STEP_NODELIST": "gpu[01-02]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    return {"SLURM_STEP_NUM_TASKS": tasks, "SLURM_PROCID": rank} | names


def test_hosts_are_read_from_tf_config() -> None:
    assert from_environment(4, config()) == Cluster(2, 1, tuple(WORKERS))
    assert not Cluster(2, 1).is_chief
    assert Cluster(2, 0).is_chief


def test_hosts_are_read_from_slurm() -> None:
    assert from_environment(4, slurm()) == Cluster(2, 1, source="SLURM_STEP_NUM_TASKS")
    assert from_environment(4, slurm() | config(index=0)) == Cluster(2, 0, tuple(WORKERS))  # TF_CONFIG comes first


@pytest.mark.parametrize(
    ("replicas", "variables"),
    [
        (1, config()),
        (1, {"TF_CONFIG": "no JSON"}),  # at one replica nothing is read
        (2, {}),
        (2, {"TF_CONFIG": " "}),
        (2, config(["host:1"], 0)),
        (2, slurm("1", "0")),
    ],
)
def test_one_host(replicas: int, variables: dict[str, str]) -> None:
    assert from_environment(replicas, variables) is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TF_CONFIG": "{worker"}, "TF_CONFIG is '{worker', which is no JSON (Expecting property name"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG: cluster.worker is null; it must be a list of host:port"),
        ({"TF_CONFIG": '{"cluster": 3}'}, "TF_CONFIG: cluster.worker is null"),
        (config([]), "TF_CONFIG: cluster.worker is []; it must be a list of host:port"),
        (config(["node1"]), "TF_CONFIG: cluster.worker is ['node1']"),
        (config(["node1:0"]), "TF_CONFIG: cluster.worker is ['node1:0']"),
        (config([1, 2]), "TF_CONFIG: cluster.worker is [1, 2]"),
        (config(["a:1", "a:1"]), "TF_CONFIG: cluster.worker lists an address twice"),
        (config(ps=["c:1"]), "TF_CONFIG: cluster has 'ps'; only worker is supported"),
        (config(kind="chief"), "TF_CONFIG: task.type is 'chief'; it must be worker"),
        (config(index=2), "TF_CONFIG: task.index is 2; it must be the place of this host in cluster.worker, 0 to 1"),
        (config(index=-1), "TF_CONFIG: task.index is -1"),
        (config(index="1"), "TF_CONFIG: task.index is '1'"),
        (config(index=True), "TF_CONFIG: task.index is True"),
        (config(index=None), "TF_CONFIG: task.index is null"),
        (config(["a:1", "b:1", "c:1"]), "train.replicas is 4, and TF_CONFIG names 3 hosts; it must be a multiple of 3"),
        (slurm("3"), "train.replicas is 4, and SLURM_STEP_NUM_TASKS names 3 hosts"),
        (slurm(rank="2"), "SLURM_PROCID is '2' and SLURM_STEP_NUM_TASKS '2'; they must be the rank and the number"),
        (slurm("many"), "SLURM_PROCID is '1' and SLURM_STEP_NUM_TASKS 'many'"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_PROCID is not set, and SLURM_STEP_NUM_TASKS is"),
    ],
)
def test_what_is_no_cluster_is_refused_in_one_line(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        from_environment(4, variables)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400
