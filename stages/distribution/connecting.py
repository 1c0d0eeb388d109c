"""Connects the devices and hosts of one training: the strategy of `tf.distribute`, made before any operation runs."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stages.distribution import rendezvous
from stages.distribution.cluster import TF_CONFIG, Cluster, from_environment, mark_connected
from stages.errors import HalfstepError, LostRankError, ParameterError, one_line
from stages.tensorflow_import import tf

_OF_LOST_RANKS = (
    *(tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError),
    *(tf.errors.DeadlineExceededError, tf.errors.InternalError, tf.errors.FailedPreconditionError),
)
_PORT_S, _PORT_TRIES = 0.5, 4
_SLURM_PORTS = range(15_000, 30_000)  # below the ports that Linux gives to outgoing connections


@functools.cache
def strategy_of(replicas: int) -> Any:
    """The strategy of this process; None at one replica. The first call must precede every operation of TensorFlow.

    On one host a `MirroredStrategy` over its first GPUs. Over several hosts a `MultiWorkerMirroredStrategy`; the call
    then returns when all ranks have started. Without GPUs, the replicas of one host are logical CPU devices, which
    share its cores: nothing is gained, but a training can be tried.

    Args:
        replicas: `train.replicas`, over all hosts.

    Raises:
        ParameterError: the host has too few GPUs, or the environment does not describe a cluster.
        LostRankError: a rank has not started in time.
    """
    cluster = from_environment(replicas)
    if replicas == 1:
        return None
    tf.get_logger().setLevel("ERROR")  # it warns of what is done once an epoch
    local = replicas // (cluster.hosts if cluster else 1)
    devices = _devices(replicas, local, cluster)
    if cluster is None:
        return tf.distribute.MirroredStrategy(devices)
    cluster = with_addresses(cluster)
    rendezvous.meet(cluster)
    with lost_ranks_explained(cluster):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=_communication(devices))
    mark_connected()
    return strategy


def _devices(replicas: int, local: int, cluster: Cluster | None) -> list[str]:
    """The devices of this host's replicas; all other GPUs are hidden from TensorFlow."""
    gpus = tf.config.get_visible_devices("GPU")
    hosts = f" on {cluster.hosts} hosts, {local} each" if cluster else ""
    if gpus and local > len(gpus):
        raise ParameterError(
            f"train.replicas is {replicas}{hosts}, and TensorFlow can use {len(gpus)} GPUs of this host; set "
            f"train.replicas to at most {len(gpus) * (cluster.hosts if cluster else 1)}, or use a host with more GPUs"
        )
    if gpus:
        tf.config.set_visible_devices(gpus[:local], "GPU")
        return [f"/gpu:{number}" for number in range(local)]
    if cluster and local > 1:
        raise ParameterError(
            f"train.replicas is {replicas}{hosts}, and this host has no GPU; without GPUs a host has one replica: set "
            f"train.replicas to {cluster.hosts}"
        )
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(local)])
    return [f"/cpu:{number}" for number in range(local)]


def _communication(devices: list[str]) -> Any:
    """NCCL between GPUs where TensorFlow chooses it; between CPUs a ring, whose sums do not depend on the timing."""
    kinds = tf.distribute.experimental.CommunicationImplementation
    kind = kinds.AUTO if "gpu" in devices[0] else kinds.RING
    return tf.distribute.experimental.CommunicationOptions(implementation=kind)


def with_addresses(cluster: Cluster) -> Cluster:
    """The cluster with its addresses, which TensorFlow resolves under Slurm; sets `TF_CONFIG` for the strategy.

    Raises:
        ParameterError: Slurm's variables cannot be read.
    """
    if cluster.addresses:
        return cluster
    port = _SLURM_PORTS[_job() * 16 % len(_SLURM_PORTS)]  # two jobs may share a host
    tasks = cluster.hosts  # the resolver shares out GPUs, too, which `srun` has done: one for each task says nothing
    try:
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            port_base=port, gpus_per_node=tasks, gpus_per_task=1, auto_set_gpu=False
        )
        workers = resolver.cluster_spec().as_dict()["worker"]
    except (ValueError, RuntimeError, AssertionError) as error:
        reason = one_line(str(error), 200)
        raise ParameterError(f"Slurm's variables cannot be read ({reason}); start all ranks with one `srun`") from error
    task = {"type": "worker", "index": cluster.rank}
    os.environ[TF_CONFIG] = json.dumps({"cluster": {"worker": workers}, "task": task})
    return Cluster(cluster.hosts, cluster.rank, tuple(workers), cluster.source)


def _job() -> int:
    number = os.environ.get("SLURM_JOB_ID", "0")
    return int(number) if number.isdecimal() else 0


@contextmanager
def lost_ranks_explained(cluster: Cluster | None) -> Iterator[None]:
    """Turns the errors of collectives in the block, after a rank has ended, into one line that names what is known.

    Raises:
        LostRankError: another rank has ended.
    """
    try:
        yield
    except (HalfstepError, *_OF_LOST_RANKS) as error:
        cause = error.__cause__ if isinstance(error, HalfstepError) else error
        if cluster is None or not isinstance(cause, _OF_LOST_RANKS):
            raise
        raise LostRankError(_lost_text(with_addresses(cluster), cause)) from error


def _lost_text(cluster: Cluster, error: Exception) -> str:
    silent = rendezvous.silent_ranks(cluster)
    for _ in range(_PORT_TRIES):  # a process that was killed closes its port a moment after its connections
        if not silent:
            time.sleep(_PORT_S)
            silent = rendezvous.silent_ranks(cluster)
    who = rendezvous.named(cluster, silent) if silent else "another rank"
    reason = one_line(" ".join(str(error).split()), 160)
    return f"train: {who} has ended, and the training with it ({reason}); the next start on all hosts resumes it"
