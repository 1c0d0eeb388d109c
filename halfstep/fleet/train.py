"""`halfstep fleet train`: sends the trainings that have no result to the nodes of a Ray cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from halfstep.environment.preflight import checked_params
from halfstep.errors import FleetError, without_password
from halfstep.fleet import cluster, remote, tree
from halfstep.fleet.driving import Driving, Job
from halfstep.fleet.program import version_of
from halfstep.fleet.unfinished import unfinished_trainings
from halfstep.params.schema import Params
from halfstep.system import commands, files
from halfstep.system.locking import stage_lock
from halfstep.tracking import provenance, run_logging, store

PACKAGES = ("tensorflow", "keras", "dvc", "python")  # halfstep's own code travels
HOME = "`dvc repro --pull` brings the results home"


def train() -> None:
    """Trains what is missing. The results are in the DVC remote afterwards.

    Raises:
        ParameterError, FleetError: nothing was sent; or trainings failed, which are named.
        KeyboardInterrupt: all trainings were ended.
    """
    settings = checked_settings()
    if not settings.train.epochs:
        raise FleetError("train.epochs is 0: nothing is trained; `dvc repro` measures the speed, on this machine")
    started_s = time.monotonic()
    with connected(settings):
        nodes = cluster.require_resources(settings.fleet)
        for line in _notices(settings, nodes):
            print(f"fleet: {line}", file=sys.stderr, flush=True)
        prepare()
        jobs = [_job(settings, *pair) for pair in unfinished_trainings(settings.train).values()]
        if not jobs:
            print(f"fleet: all trainings have their results; {HOME}")
            return
        remote.push([str(files.PREPARED)])
        print(f"fleet: {len(jobs)} trainings for {len(nodes)} nodes", flush=True)
        try:
            outcomes = driving(settings).run(jobs)
        except KeyboardInterrupt:
            print("fleet: ended what was running; the same command continues it", file=sys.stderr)
            raise
    failed = [outcome for outcome in outcomes if outcome.status]
    print(
        f"fleet: {len(outcomes) - len(failed)} of {len(outcomes)} trainings are done, in "
        f"{time.monotonic() - started_s:.0f} s; {HOME}",
        flush=True,
    )
    if failed:
        raise FleetError(*(f"{one.job.name} on {one.host or 'a lost node'}: {one.reason}" for one in failed))


def checked_settings() -> Params:
    """Reads and checks the parameters as `environment` does, and that nothing secret would travel.

    Raises:
        ParameterError: one line for each invalid parameter.
        FleetError: no usable remote, or a password in what travels.
    """
    settings = checked_params()
    remote.configured()
    uri = settings.tracking.uri
    if uri and without_password(uri) != uri:
        raise FleetError(
            "tracking.uri contains a password, and params.yaml travels to the nodes; set it to null, and "
            "MLFLOW_TRACKING_URI, MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD on each machine"
        )
    if settings.train.require_gpu and not settings.fleet.gpus_per_training:
        raise FleetError("train.require_gpu is true and fleet.gpus_per_training is 0; set it to at least 1")
    return settings


@contextmanager
def connected(settings: Params) -> Iterator[None]:
    """Connects to the cluster with the tree of this checkout. One fleet command runs at once."""
    with stage_lock("fleet"), tree.staged(settings) as folder, cluster.connected(folder):
        yield


def driving(settings: Params) -> Driving:
    """What runs jobs on the nodes, after `prepare`."""
    versions = {name: version for name in PACKAGES if (version := version_of(name)) is not None}
    return Driving(tree.contents(), provenance.checkout_id(), versions, settings.fleet.retries)


def prepare() -> None:
    """Runs `dvc repro prepare`, and prints what it prints only if it fails."""
    done = commands.run_dvc("repro", "prepare")
    if done.returncode:
        own = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("ERROR: ")]
        raise FleetError(*(own or [f"dvc repro prepare: {commands.dvc_error(done.stderr)}"]))


def _job(settings: Params, variant: str, seed: int) -> Job:
    fleet = settings.fleet
    return Job(
        name=run_logging.training(variant, seed).name,
        arguments=("--variant", variant, "--seed", str(seed)),
        cpus=fleet.cpus_per_training,
        gpus=fleet.gpus_per_training,
        threads=fleet.cpus_per_training,
    )


def _notices(settings: Params, nodes: Sequence[cluster.Node]) -> Iterator[str]:
    if not settings.fleet.gpus_per_training and any(node.gpus for node in nodes):
        yield "fleet.gpus_per_training is 0: the trainings use the CPU, although nodes of the cluster offer GPUs"
    if store.sqlite_path(store.resolve_uri(settings.tracking)) is not None:
        yield (
            "no tracking server is set here: trainings on nodes without one log to a store of their own, and `compare` "
            "logs them here from their files"
        )
