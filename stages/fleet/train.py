"""`python -m stages.fleet train`: sends the trainings that have no result to the nodes of a Ray cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from stages import files
from stages.errors import FleetError
from stages.fleet import cluster, parcel, preflight, remote, running
from stages.fleet.cluster import Job, Outcome
from stages.fleet.progress import JobProgress
from stages.fleet.unfinished import unfinished_trainings
from stages.locking import stage_lock
from stages.params import Params
from stages.tracking import run_logging, store

HOME = "`dvc repro --pull` brings the results home"


def train() -> None:
    """Trains what is missing. The results are in the DVC remote afterwards.

    Raises:
        ParameterError, FleetError: nothing was sent; or trainings failed, which are named.
        KeyboardInterrupt: all trainings were cancelled.
    """
    settings = preflight.checked_checkout()
    if not settings.train.epochs:
        raise FleetError("train.epochs is 0: nothing is trained; `dvc repro` measures the speed, on this machine")
    with stage_lock("fleet"), cluster.connected():
        started_s = time.monotonic()
        nodes, notices = preflight.usable_nodes(settings)
        for line in notices:
            print(f"fleet: {line}", file=sys.stderr, flush=True)
        preflight.prepare()
        jobs = _missing_jobs(settings)
        if not jobs:
            print(f"fleet: all trainings have their results; {HOME}")
            return
        print(f"fleet: {len(jobs)} trainings for {len(nodes)} nodes", flush=True)
        outcomes = _run(jobs, settings)
        _close_abandoned(settings, jobs)
    _summarize(outcomes, time.monotonic() - started_s)


def _missing_jobs(settings: Params) -> list[Job]:
    """A job for each training without a result."""
    return [_job(settings, *pair) for pair in unfinished_trainings(settings.train).values()]


def _job(settings: Params, variant: str, seed: int) -> Job:
    fleet = settings.fleet
    return Job(
        name=run_logging.training(variant, seed).name,
        module="stages.fleet.node",
        arguments=("--variant", variant, "--seed", str(seed)),
        cpus=fleet.cpus_per_training,
        gpus=fleet.gpus_per_training,
        threads=fleet.cpus_per_training,
    )


def _run(jobs: Sequence[Job], settings: Params) -> list[Outcome]:
    remote.push([str(files.PREPARED)])
    sent = cluster.put(parcel.build())
    with JobProgress(jobs) as progress:
        try:
            return running.run(jobs, sent, progress.on_event, settings.fleet.retries)
        except KeyboardInterrupt:
            print("fleet: cancelled what was running; the same command continues it", file=sys.stderr)
            raise


def _close_abandoned(settings: Params, jobs: Sequence[Job]) -> None:
    """Ends the runs that lost machines have left RUNNING. Those in the nodes' own stores cannot be reached."""
    if store.sqlite_path(store.resolve_uri(settings.tracking)) is not None:
        return
    from stages.tracking.abandoned import close_abandoned

    names = {job.name for job in jobs}
    for variant in settings.train.variants:
        for seed in settings.train.seeds:
            identity = run_logging.training(variant, seed)
            if identity.name in names:
                close_abandoned(settings.tracking, identity)


def _summarize(outcomes: Sequence[Outcome], took_s: float) -> None:
    failed = [outcome for outcome in outcomes if outcome.status]
    done = len(outcomes) - len(failed)
    print(f"fleet: {done} of {len(outcomes)} trainings are done, in {took_s:.0f} s; {HOME}", flush=True)
    if failed:
        raise FleetError(
            *(f"{outcome.job.name} on {outcome.host or 'a lost node'}: {outcome.reason}" for outcome in failed)
        )
