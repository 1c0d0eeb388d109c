"""What is checked before anything travels: the checkout, the remote, and the nodes. Each refusal names what it is."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from stages import files
from stages.environment.preflight import checked_params
from stages.errors import FleetError, one_line, without_password
from stages.fleet import bootstrap, cluster, parcel, remote
from stages.fleet.cluster import Node
from stages.inputs import digests
from stages.inputs.own_model import own_model_files
from stages.params import Params
from stages.tracking import store

PACKAGES = ("tensorflow", "keras", "dvc")  # halfstep's own code travels
_CODE = ("dvc.yaml", "params.yaml")
_MOST_NAMED = 3


def checked_checkout() -> Params:
    """Reads and checks the parameters as `environment` does, and that everything that they name can travel.

    Raises:
        ParameterError: one line for each invalid parameter.
        FleetError: no commit, no usable remote, or files that are not tracked by git.
    """
    settings = checked_params()
    _require_commit()
    remote.configured()
    _require_no_password(settings)
    if problems := list(_untracked(settings)):
        raise FleetError(*problems)
    if settings.train.require_gpu and not settings.fleet.gpus_per_training:
        raise FleetError("train.require_gpu is true and fleet.gpus_per_training is 0; set it to at least 1")
    return settings


def usable_nodes(settings: Params) -> tuple[list[Node], list[str]]:
    """The nodes of the cluster that have the resources of a training, after all nodes were checked.

    Returns:
        The nodes, and lines that the user should read.

    Raises:
        FleetError: no node has the resources, or a node has another version or another folder as its remote.
    """
    found = cluster.nodes()
    fitting = _fitting(found, settings)
    configured = remote.configured()
    with remote.probe_file(configured) as probe:
        described = cluster.ask_nodes(found, bootstrap.describe, list(PACKAGES), probe)
    problems = [line for node, facts in zip(found, described, strict=True) for line in version_problems(node, facts)]
    blind = [node.host for node, facts in zip(found, described, strict=True) if not facts["sees_probe"]]
    if blind:
        problems.append(
            f"the DVC remote '{configured.name}' is the folder {configured.folder}, which {_named(blind)} cannot read; "
            "use a folder that all machines share, or a server (s3://bucket/path, ssh://host/path)"
        )
    if problems:
        raise FleetError(*problems)
    return fitting, list(_notices(settings, found, described))


def prepare() -> None:
    """Runs `dvc repro prepare`, and prints what it prints only if it fails."""
    done = remote.run_dvc("repro", "prepare")
    if done.returncode:
        own = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("ERROR: ")]
        raise FleetError(*(own or [f"dvc repro prepare: {remote.dvc_error(done.stderr)}"]))


def _require_commit() -> None:
    try:
        parcel.git("rev-parse", "--verify", "--quiet", "HEAD")
    except FleetError as error:
        if "not installed" in str(error):
            raise
        raise FleetError(
            f"{Path.cwd()} has no git commit, and the fleet sends a commit to the nodes; "
            "`git init && git add --all && git commit -m start` makes one"
        ) from error


def _require_no_password(settings: Params) -> None:
    uri = settings.tracking.uri
    if uri and without_password(uri) != uri:
        raise FleetError(
            "tracking.uri contains a password, and params.yaml travels to the nodes; set it to null, and "
            "MLFLOW_TRACKING_URI, MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD on each machine"
        )


def _untracked(settings: Params) -> Iterator[str]:
    """One line for each file that a training depends on and that no clone would have."""
    tracked = set(parcel.git("ls-files", "-z").split("\0"))
    new = parcel.git("ls-files", "-z", "--others", "--exclude-standard", "--", "stages").split("\0")
    missing = [name for name in _CODE if name not in tracked] + [name for name in new if name]
    for name in missing[:_MOST_NAMED]:
        yield f"{one_line(name, 200)} is not tracked by git, so the nodes would not have it; `git add` it"
    task = settings.task
    subject = "model.name" if not task.is_own else "task.name" if task.script is None else "task.script"
    sources = (
        map(digests.task_files, settings.tasks.values()) if task.is_own else [own_model_files(settings.model.name)]
    )
    yield from _not_travelling(subject, (path for found in sources for path in found.values()), tracked)
    for path in task.depends if task.is_own else ():
        yield from _not_travelling("task.depends", _files_of(files.resolve_data_path(path)), tracked)


def _not_travelling(parameter: str, paths: Iterable[Path], tracked: set[str]) -> Iterator[str]:
    here, count = Path.cwd().resolve(), 0
    for path in paths:
        resolved = path.resolve()
        if not resolved.is_relative_to(here):
            problem = "is outside of this checkout, so the nodes would not have it; move it here and `git add` it"
        elif resolved.relative_to(here).as_posix() not in tracked:
            problem = "is not tracked by git, so the nodes would not have it; `git add` it"
        else:
            continue
        yield f"{parameter}: {one_line(str(path), 200)} {problem}"
        count += 1
        if count == _MOST_NAMED:
            return


def _files_of(path: Path) -> Iterator[Path]:
    """The files that the digest of `task.depends` covers."""
    if not path.is_dir():
        yield path
        return
    for folder, names in digests.visible_files(path):
        yield from (folder / name for name in sorted(names))


def _fitting(found: Sequence[Node], settings: Params) -> list[Node]:
    cpus, gpus = settings.fleet.cpus_per_training, settings.fleet.gpus_per_training
    if not found:
        raise FleetError(f"no node of the Ray cluster offers a core; {cluster.START}")
    fitting = [node for node in found if node.cpus >= cpus and node.gpus >= gpus]
    most_cpus, most_gpus = max(node.cpus for node in found), max(node.gpus for node in found)
    offered = f"the {len(found)} nodes of the cluster offer at most {most_cpus:g} cores and {most_gpus:g} GPUs each"
    if not fitting:
        name, value = ("cpus", cpus) if most_cpus < cpus else ("gpus", gpus)
        raise FleetError(
            f"fleet.{name}_per_training is {value}; {offered} (`ray status`): reduce it, or add a larger node"
        )
    return fitting


def version_problems(node: Node, facts: Mapping[str, Any]) -> Iterator[str]:
    """One line for each version of a node that differs from the head's."""
    subject = f"{facts['host']} ({node.address})"
    here, there = platform.python_version(), str(facts["python"])
    if here.split(".")[:2] != there.split(".")[:2]:
        yield f"{subject} has Python {there}, and this machine has Python {here}; use the same minor version everywhere"
    for name, found in facts["versions"].items():
        expected = metadata.version(name)
        if found != expected:
            has = f"has {name} {found}" if found else f"does not have {name}"
            advice = "install requirements.txt in the environment in which `ray start` runs"
            yield f"{subject} {has}, and this machine has {name} {expected}; {advice}"


def _notices(settings: Params, found: Sequence[Node], described: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if without := _hosts_without("HALFSTEP_CHECKPOINTS", described):
        yield (
            f"HALFSTEP_CHECKPOINTS is not set on {_named(without)}: if a machine is lost, its trainings start anew on "
            "another; set it to a folder that the machines share, before `ray start`"
        )
    uri = settings.tracking.uri
    local = _hosts_without("MLFLOW_TRACKING_URI", described) if uri is None else [facts["host"] for facts in described]
    if local and not (uri and store.sqlite_path(uri) is None):
        yield (
            f"no tracking server is set for {_named(local)}: the trainings there log to a store of their own, and "
            "`compare` logs them here from their files"
        )
    if not settings.fleet.gpus_per_training and any(node.gpus for node in found):
        yield "fleet.gpus_per_training is 0: the trainings use the CPU, although nodes of the cluster offer GPUs"


def _hosts_without(variable: str, described: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(facts["host"]) for facts in described if not facts["variables"][variable]]


def _named(hosts: Sequence[str]) -> str:
    names = sorted(set(hosts))
    others = f" and {len(names) - _MOST_NAMED} others" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + others
