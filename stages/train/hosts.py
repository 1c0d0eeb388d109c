"""One training on several hosts: all connect and agree on where to resume, and those that are not the chief follow."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from stages import files, precision
from stages.distribution.cluster import Cluster, from_environment
from stages.distribution.connecting import lost_ranks_explained, strategy_of
from stages.distribution.replicas import numbers_of_replicas
from stages.errors import LostRankError, ParameterError
from stages.params import Params
from stages.tasks.spec import TaskSpec
from stages.train import checkpoints
from stages.train.checkpoints import FOLDER_VARIABLE, Checkpoint
from stages.train.interruption import SharedInterruption
from stages.train.resume import Session
from stages.train.training import follow as train_with_chief


@dataclass(frozen=True)
class Start:
    """What all hosts must have in common: the key of their checkpoints, and the one that they resume from."""

    key: str
    checkpoint: Checkpoint


def follow(settings: Params, variant: str, seed: int) -> None:
    """Trains with the chief, from the same checkpoint. Writes no file, logs no run, and prints errors only.

    Raises:
        LostRankError: another host has ended, or does not train the same.
    """
    cluster = from_environment(settings.train.replicas)
    assert cluster is not None, "a follower"
    digest = files.verify_manifest(files.PREPARED)
    spec = TaskSpec.of(settings, variant, digest)
    key = checkpoints.checkpoint_key(settings, variant, seed, digest)
    interruption = SharedInterruption()
    with interruption.time_limit():
        start = checkpoints.newest_of(files.train_dir(variant, seed).name, key) or Checkpoint()
        connect(cluster, settings, variant, Start(key, start))
        session = Session(start, save_nothing, interruption)
        train_with_chief(spec, settings.variants[variant], seed, session)


def save_nothing(_: Checkpoint) -> None:
    """Stands for the chief's store: all hosts must read the variables of a checkpoint together."""


def connect(cluster: Cluster, settings: Params, variant: str, start: Start) -> None:
    """Waits for all hosts, and checks that they train the same, from the same checkpoint.

    Raises:
        LostRankError: a host does not come, or sees another checkpoint.
        ParameterError: a host has other parameters, data or code.
    """
    precision.activate(settings.variants[variant], require_gpu=settings.train.require_gpu)
    strategy = strategy_of(settings.train.replicas)
    with lost_ranks_explained(cluster):
        keys = numbers_of_replicas(strategy, _number(start.key))
        steps = numbers_of_replicas(strategy, start.checkpoint.step)
        contents = numbers_of_replicas(strategy, _number(repr(start.checkpoint.epochs)))
    if len(set(keys)) > 1:
        others = [str(rank) for rank, key in enumerate(_by_host(keys, cluster)) if key != keys[0]]
        raise ParameterError(
            f"train: rank {', '.join(others)} differs from rank 0 in parameters, data, code or releases; update the "
            "checkouts and data/prepared of all hosts, then start again"
        )
    if len(set(steps)) > 1 or len(set(contents)) > 1:
        seen = ", ".join(f"rank {rank} step {step}" for rank, step in enumerate(_by_host(steps, cluster)))
        raise LostRankError(
            f"train: the hosts see different checkpoints ({seen}); set {FOLDER_VARIABLE} to a folder that all of them "
            "share, then start again"
        )


def _by_host(numbers: list[int], cluster: Cluster) -> list[int]:
    return numbers[:: len(numbers) // cluster.hosts]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
