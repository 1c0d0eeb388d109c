"""`python -m stages.fleet profile`: measures each kind of machine of a Ray cluster, and brings the verdicts home."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from stages import files
from stages.errors import FleetError, HalfstepError
from stages.fleet import cluster, measurement, parcel, preflight, remote, running
from stages.fleet.cluster import Job, Node, Outcome
from stages.fleet.machines import COMPARISON, write_machine
from stages.fleet.report import report
from stages.fleet.unfinished import unfinished_trainings
from stages.locking import stage_lock
from stages.machine import fingerprint
from stages.params import Params
from stages.telling import told


def profile() -> None:
    """Measures, writes `data/fleet/<machine>/`, and prints the report.

    Raises:
        ParameterError, FleetError: nothing was measured; or machines failed, which are named after the report.
    """
    settings = preflight.checked_checkout()
    with stage_lock("fleet"):  # of both commands: they share a git reference, and folders of `data/fleet/`
        _profile(settings)


def _profile(settings: Params) -> None:
    with cluster.connected():
        nodes, _ = preflight.usable_nodes(settings)  # the notices are about trainings
        preflight.prepare()
        require_trainings(settings)
        remote.push([str(files.PREPARED), "train"])
        packed = parcel.build()
        failed = _measure(nodes, packed, settings.fleet.retries)
    if any(files.FLEET.glob(f"*/{COMPARISON}")):
        try:
            report()
        except HalfstepError as error:
            failed += map(str, error.args)
    if failed:
        raise FleetError(*failed)


def require_trainings(settings: Params) -> None:
    """Checks that every training has a result. With `train.epochs: 0` it makes them, which trains nothing.

    Raises:
        FleetError: some have none, which are named.
    """
    if not settings.train.epochs:
        remote.require_success(remote.run_dvc("repro", "train"), "dvc repro train")
    elif missing := unfinished_trainings(settings.train):
        raise FleetError(
            f"{', '.join(missing)} have no result yet, and `profile` trains nothing: run "
            "`python -m stages.fleet train`, or `dvc repro`, before"
        )


def _measure(nodes: Sequence[Node], packed: dict[str, Any], retries: int) -> list[str]:
    """Measures one node of each kind. Returns a line for each node that failed."""
    sent = cluster.put(packed)
    described = running.run([_describing(node) for node in nodes], sent, _on_event, retries)
    failed = [_failure(outcome) for outcome in described if outcome.status]
    found = kinds(nodes, described)
    _say(f"fingerprints of the {len(nodes)} nodes: {', '.join(found) or 'none'}")
    measuring = [_measuring(digest, node, packed) for digest, node in found.items()]
    for jobs in turns(measuring, list(found.values())):
        for outcome in running.run(jobs, sent, _on_event, retries):
            if problem := _failure(outcome) if outcome.status else _bring_home(outcome):
                failed.append(problem)
    return failed


def _describing(node: Node) -> Job:
    """With all cores and GPUs of the node, as the measurement: what Ray hides from it counts."""
    return Job(
        name=f"describe {node.host} {node.node_id[:6]}",
        module="stages.environment",
        cpus=node.cpus,
        gpus=node.gpus,
        node_id=node.node_id,
        collect=(str(files.ENVIRONMENT_FILE),),
    )


def kinds(nodes: Sequence[Node], described: Sequence[Outcome]) -> dict[str, Node]:
    """The first node with each fingerprint, by its digest. Nodes that failed are left out."""
    found: dict[str, Node] = {}
    for node, outcome in zip(nodes, described, strict=True):
        if not outcome.status:
            machine = json.loads(outcome.files[str(files.ENVIRONMENT_FILE)])
            found.setdefault(fingerprint.digest(machine), node)
    return found


def _measuring(digest: str, node: Node, packed: dict[str, Any]) -> Job:
    return Job(
        name=f"profile {digest} on {node.host}",
        module=measurement.__name__,
        arguments=("--commit", packed["commit"], "--changes", packed["changes"]),
        cpus=node.cpus,
        gpus=node.gpus,
        node_id=node.node_id,
        collect=tuple(map(str, measurement.COLLECTED)),
    )


def turns(jobs: Sequence[Job], nodes: Sequence[Node]) -> Iterator[list[Job]]:
    """The jobs in groups, so that no two of a group are on one host, where they would disturb each other."""
    by_host: dict[str, list[Job]] = {}
    for job, node in zip(jobs, nodes, strict=True):
        by_host.setdefault(node.host, []).append(job)
    for group in zip_longest(*by_host.values()):
        yield [job for job in group if job is not None]


def _bring_home(outcome: Outcome) -> str | None:
    """Writes the files of a machine; returns a line if they cannot be used."""
    try:
        folder = write_machine({path.name: outcome.files[str(path)] for path in measurement.COLLECTED})
    except HalfstepError as error:
        return f"{outcome.job.name}: {error}"
    _say(f"{outcome.job.name}: {folder}")
    return None


def _failure(outcome: Outcome) -> str:
    return f"{outcome.job.name}: {outcome.reason}"


def _on_event(job: Job, kind: str, text: str) -> None:
    if kind == "line":
        if state := told(text):
            _say(f"{job.name}: {state}")
    elif kind == "started":
        _say(f"{job.name}: started")
    elif text:  # of "retry", and of "ended" with a failure
        _say(f"{job.name}: {'failed' if kind == 'ended' else 'lost'}: {text}")


def _say(text: str) -> None:
    print(f"fleet: {text}", file=sys.stderr, flush=True)
