"""`python -m halfstep fleet profile`: measures each kind of machine of a Ray cluster, and brings the verdicts home."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import zip_longest
from pathlib import Path
from typing import Any

from halfstep import commands, files
from halfstep.errors import FleetError, HalfstepError
from halfstep.fleet import cluster, remote, tree
from halfstep.fleet.cluster import Node
from halfstep.fleet.driving import Driving, Job, Outcome
from halfstep.fleet.report import STUDY, report
from halfstep.fleet.train import checked_settings, connected, driving, prepare
from halfstep.fleet.unfinished import unfinished_trainings
from halfstep.gallery import results
from halfstep.gallery.results import Result
from halfstep.machine import fingerprint
from halfstep.params import Params
from halfstep.results.comparison import COMPARISON, Comparison
from halfstep.tracking.provenance import git_tags
from halfstep.tracking.run_params import flattened

# Parameters that change no result. All others must be the same on all machines.
_WITHOUT_EFFECT = (
    *("tracking.", "fleet.", "train.checkpoint_every", "train.require_gpu"),
    *("compare.gate", "compare.max_slowdown"),
)


def profile() -> None:
    """Measures, writes `data/fleet/<machine>/`, and prints the report.

    Raises:
        ParameterError, FleetError: nothing was measured; or machines failed, which are named after the report.
    """
    settings = checked_settings()
    with connected(settings) as folder:
        nodes = cluster.require_resources(settings.fleet)
        prepare()
        require_trainings(settings)
        remote.push([str(files.PREPARED), "train"])
        failed = _measure(nodes, driving(settings), alike(settings, folder))
    if any(files.FLEET.glob("*/*.json")):
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
        commands.dvc("repro", "train")
    elif missing := unfinished_trainings(settings.train):
        raise FleetError(
            f"{', '.join(missing)} have no result yet, and `profile` trains nothing: run "
            "`python -m halfstep fleet train`, or `dvc repro`, before"
        )


def alike(settings: Params, folder: Path) -> dict[str, Any]:
    """What must be the same where machines are compared: the code, the data, and the parameters that change results."""
    flat = flattened(settings.model_dump(mode="json"))
    return {
        "the digest of the code": tree.sha256(folder),
        "the digest of data/prepared": files.sha256_file(files.PREPARED / files.MANIFEST),
        **{name: value for name, value in flat if not name.startswith(_WITHOUT_EFFECT)},
    }


def _measure(nodes: Sequence[Node], runner: Driving, same: dict[str, Any]) -> list[str]:
    """Measures one node of each kind. Returns a line for each node that failed."""
    described = runner.run(
        [_job("describe", f"describe {node.host} {node.node_id[:6]}", node, files.ENVIRONMENT_FILE) for node in nodes]
    )
    failed = [f"{outcome.job.name}: {outcome.reason}" for outcome in described if outcome.status]
    node_by_digest = kinds(nodes, described)
    print(f"fleet: fingerprints of the {len(nodes)} nodes: {', '.join(node_by_digest) or 'none'}", flush=True)
    measuring = [_job("measure", f"profile {digest}", node, COMPARISON) for digest, node in node_by_digest.items()]
    for jobs in turns(measuring, list(node_by_digest.values())):
        began_s = time.monotonic()
        for outcome in runner.run(jobs):
            try:
                if outcome.status:
                    raise FleetError(outcome.reason)
                _bring_home(outcome, same, time.monotonic() - began_s)
            except HalfstepError as error:
                failed.append(f"{outcome.job.name}: {error}")
    return failed


def _job(what: str, name: str, node: Node, collect: Path) -> Job:
    """With all cores and GPUs of the node: what Ray hides from it counts."""
    return Job(
        name=name,
        arguments=(what,),
        cpus=node.cpus,
        gpus=node.gpus,
        node_id=node.node_id,
        collect=(str(collect),),
    )


def kinds(nodes: Sequence[Node], described: Sequence[Outcome]) -> dict[str, Node]:
    """The first node with each fingerprint, by its digest. Nodes that failed are left out."""
    node_by_digest: dict[str, Node] = {}
    for node, outcome in zip(nodes, described, strict=True):
        if not outcome.status:
            machine = json.loads(outcome.files[str(files.ENVIRONMENT_FILE)])
            node_by_digest.setdefault(fingerprint.digest(machine), node)
    return node_by_digest


def turns(jobs: Sequence[Job], nodes: Sequence[Node]) -> Iterator[list[Job]]:
    """The jobs in groups, so that no two of a group are on one host, where they would disturb each other."""
    by_host: dict[str, list[Job]] = {}
    for job, node in zip(jobs, nodes, strict=True):
        by_host.setdefault(node.host, []).append(job)
    for group in zip_longest(*by_host.values()):
        yield [job for job in group if job is not None]


def _bring_home(outcome: Outcome, same: dict[str, Any], took_s: float) -> None:
    """Writes the result of a machine in place of an older one.

    Raises:
        HalfstepError: it cannot be used or written.
    """
    comparison = Comparison.of(json.loads(outcome.files[str(COMPARISON)]), COMPARISON)
    tags, public_comparison = git_tags(), results.public(comparison)
    one = Result(
        study=STUDY,
        occasion=(today := date.today().isoformat()),
        date=today,
        commit=tags.get("git.commit", "0" * 40),
        dirty=tags.get("git.dirty") != "false",
        halfstep=results.version(),
        machine=results.machine_id(public_comparison.environment),
        parameters_sha256=hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest(),
        seconds=round(took_s, 1),
        alike=same,
        comparison=public_comparison,
    )
    shutil.rmtree(files.FLEET / one.machine, ignore_errors=True)
    one.write(files.FLEET / one.place)
    print(f"fleet: {outcome.job.name}: {files.FLEET / one.place}", flush=True)
