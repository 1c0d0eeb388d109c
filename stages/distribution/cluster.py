"""The hosts of one training, from `TF_CONFIG` or Slurm's variables. Does not import TensorFlow."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stages.errors import ParameterError, one_line

TF_CONFIG = "TF_CONFIG"
_TASKS, _RANK = "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"
_SLURM = (_TASKS, _RANK, "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
_EXAMPLE = (
    '{"cluster": {"worker": ["host1:12345", "host2:12345"]}, "task": {"type": "worker", "index": 0}}, '
    "with another index on each host"
)
_LONGEST = 80  # characters of a value in a message
_CONNECTED = threading.Event()


@dataclass(frozen=True)
class Cluster:
    """The processes of one training, one a host.

    Attributes:
        hosts: number of processes.
        rank: number of this process; 0 is the chief, which writes and logs.
        addresses: `host:port` of each process by rank; empty under Slurm, until TensorFlow has resolved them.
        source: the variable that names the hosts.
    """

    hosts: int
    rank: int
    addresses: tuple[str, ...] = ()
    source: str = TF_CONFIG

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0


def from_environment(replicas: int, variables: Mapping[str, str] = os.environ) -> Cluster | None:
    """The hosts that the environment names; None on one host, and at one replica, for which nothing is read.

    Args:
        replicas: `train.replicas`.
        variables: the environment variables.

    Raises:
        ParameterError: a variable is no description of a cluster, or the replicas cannot be shared evenly.
    """
    if replicas == 1:
        return None
    if text := variables.get(TF_CONFIG, "").strip():
        cluster = _from_tf_config(text)
    elif variables.get(_TASKS, "1") != "1":
        cluster = _from_slurm(variables)
    else:
        return None
    if cluster.hosts == 1:
        return None
    if replicas % cluster.hosts:
        raise ParameterError(
            f"train.replicas is {replicas}, and {cluster.source} names {cluster.hosts} hosts; it must be a multiple of "
            f"{cluster.hosts}, because each host has as many replicas as the others"
        )
    return cluster


def other_hosts_connected() -> bool:
    """Whether this process has connected to others: at its end, TensorFlow would wait for them."""
    return _CONNECTED.is_set()


def mark_connected() -> None:
    """Records that this process has connected to others."""
    _CONNECTED.set()


def _from_tf_config(text: str) -> Cluster:
    try:
        config = json.loads(text)
    except ValueError as error:
        found = f"{TF_CONFIG} is {_shown(text)}, which is no JSON"
        raise ParameterError(f"{found} ({error}); set it to {_EXAMPLE}") from error
    cluster = config.get("cluster") if isinstance(config, dict) else None
    jobs = cluster if isinstance(cluster, dict) else {}
    if others := sorted(set(jobs) - {"worker"}):
        found = f"{TF_CONFIG}: cluster has {', '.join(map(_shown, others))}"
        raise ParameterError(f"{found}; only worker is supported, and the first worker is the chief: {_EXAMPLE}")
    addresses = _addresses(jobs.get("worker"))
    return Cluster(len(addresses), _rank(config.get("task"), len(addresses)), addresses)


def _addresses(workers: Any) -> tuple[str, ...]:
    if not isinstance(workers, list) or not workers or not all(map(_is_address, workers)):
        raise ParameterError(
            f"{TF_CONFIG}: cluster.worker is {_shown(workers)}; it must be a list of host:port: {_EXAMPLE}"
        )
    if len(set(workers)) < len(workers):
        raise ParameterError(f"{TF_CONFIG}: cluster.worker lists an address twice ({_shown(workers)}); list each once")
    return tuple(workers)


def _is_address(value: Any) -> bool:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return bool(host) and port.isdecimal() and 0 < int(port) < 2**16


def _rank(task: Any, hosts: int) -> int:
    task = task if isinstance(task, dict) else {}
    kind, index = task.get("type"), task.get("index")
    if kind != "worker":
        raise ParameterError(f"{TF_CONFIG}: task.type is {_shown(kind)}; it must be worker: {_EXAMPLE}")
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < hosts:
        raise ParameterError(
            f"{TF_CONFIG}: task.index is {_shown(index)}; it must be the place of this host in cluster.worker, "
            f"0 to {hosts - 1}"
        )
    return index


def _from_slurm(variables: Mapping[str, str]) -> Cluster:
    for name in _SLURM:
        if name not in variables:
            raise ParameterError(f"{name} is not set, and {_TASKS} is: start all processes with one `srun`")
    numbers = [variables[name] for name in (_TASKS, _RANK)]
    if not all(number.isdecimal() for number in numbers) or int(numbers[1]) >= int(numbers[0]):
        raise ParameterError(
            f"{_RANK} is {_shown(numbers[1])} and {_TASKS} {_shown(numbers[0])}; they must be the rank and the number "
            "of the step's tasks, as `srun` sets them"
        )
    return Cluster(int(numbers[0]), int(numbers[1]), source=_TASKS)


def _shown(value: Any) -> str:
    return one_line("null" if value is None else repr(value), _LONGEST)
