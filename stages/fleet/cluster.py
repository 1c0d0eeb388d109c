"""The Ray cluster: the only module that imports Ray. Programs run on its nodes in clones of the head's checkout."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from stages.errors import FleetError, one_line
from stages.fleet import bootstrap

CONNECT_S = 5.0
POLL_S = 0.5
PROBE_S = 60.0  # starting a Ray worker takes some seconds
LOST = 75  # EX_TEMPFAIL of sysexits.h: the status of a program that can be tried again
START = "start one with `ray start --head`, and on each other machine `ray start --address HOST:6379`"

Handle = Any  # a reference to an object in Ray's store


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, with the numbers of cores and GPUs that it offers."""

    node_id: str
    host: str
    address: str
    cpus: float
    gpus: float


@dataclass(frozen=True)
class Job:
    """A program of the clone, which runs on one node.

    Attributes:
        name: shown to the user; unique among the jobs of one call.
        module, arguments: `python -m module arguments`.
        cpus, gpus: of the node; for whole-node jobs all of them.
        node_id: the node; None for any.
        collect: files and folders, relative to the clone, whose content comes home.
        threads: limit of TensorFlow's threads on larger nodes; None for none.
        variables: added to the environment of the program.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    cpus: float = 1
    gpus: float = 0
    node_id: str | None = None
    collect: tuple[str, ...] = ()
    threads: int | None = None
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        status: of the program; 75 if its node was lost once more than `retries` allows.
        reason: empty if the status is 0.
        files: content by path relative to the clone.
    """

    job: Job
    host: str
    status: int
    reason: str
    files: dict[str, bytes]


OnEvent = Callable[[Job, str, str], None]


@contextmanager
def connected() -> Iterator[None]:
    """Connects to the cluster at `RAY_ADDRESS`, or to the one that runs on this machine. Never starts one.

    Raises:
        FleetError: Ray is not installed, no cluster is there, or its Ray or Python is another one.
    """
    if importlib.util.find_spec("ray") is None:
        raise FleetError('Ray is not installed, which connects the machines; install it: pip install -e ".[fleet]"')
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # it prints a stack at SIGTERM
    address = os.environ.get("RAY_ADDRESS") or "auto"
    _require_listener(address)
    ray, on_sigterm = library(), signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError, AssertionError) as error:
        raise FleetError(_no_cluster(address, str(error))) from error
    signal.signal(signal.SIGTERM, on_sigterm)  # Ray sets its own
    _send_by_value()
    try:
        yield
    finally:
        ray.shutdown()


def library() -> Any:
    """The module `ray`. Its types are those of the installed release, if one is installed at all."""
    import ray

    return ray


def _no_cluster(address: str, message: str) -> str:
    if address == "auto":
        where = "no Ray cluster runs on this machine, and RAY_ADDRESS is not set"
    else:
        where = f"RAY_ADDRESS is {one_line(address, 100)}, where no Ray cluster can be used"
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    if "ersion mismatch" in message or "Version mismatch" in message:
        versions = "; ".join(
            line for line in lines if line.startswith(("The cluster", "This process", "Ray:", "Python:"))
        )
        return f"{where}: its versions of Ray or Python differ from those here ({one_line(versions or lines[0], 300)})"
    return f"{where}; {START}; this machine must be one of them"


def _require_listener(address: str) -> None:
    """Ray waits for a minute, and ends the process, if nobody listens at an address."""
    if address.startswith("ray://"):
        raise FleetError(
            f"RAY_ADDRESS is {one_line(address, 100)}, an address for Ray clients; run this on a machine of the "
            "cluster, with RAY_ADDRESS set to HOST:6379 or not at all"
        )
    host, _, port = address.rpartition(":")
    if address == "auto" or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FleetError(
            f"RAY_ADDRESS is {one_line(address, 100)}, where no Ray cluster answers ({reason}); {START}, and set "
            "RAY_ADDRESS to HOST:6379"
        ) from error


def _send_by_value() -> None:
    """Workers get the functions of `bootstrap` themselves: they cannot import this checkout's."""
    library().cloudpickle.register_pickle_by_value(bootstrap)


def nodes() -> list[Node]:
    """The nodes that are alive and offer cores or GPUs."""
    found = []
    for node in library().nodes():
        offered = node["Resources"]
        cpus, gpus = float(offered.get("CPU", 0)), float(offered.get("GPU", 0))
        if node["Alive"] and (cpus or gpus):
            found.append(Node(node["NodeID"], node["NodeManagerHostname"], node["NodeManagerAddress"], cpus, gpus))
    return sorted(found, key=lambda node: (node.host, node.node_id))


def put(value: object) -> Handle:
    """Stores a value from where the nodes fetch it once each."""
    return library().put(value)


def ask_nodes(asked: Sequence[Node], function: Callable[..., Any], *arguments: object) -> list[Any]:
    """Calls a function of `bootstrap` on each node, and returns the results in order.

    Raises:
        FleetError: a node does not answer within `PROBE_S` seconds, or the function failed there.
    """
    ray = library()
    pending = [task(function, 0, 0, node.node_id).remote(*arguments) for node in asked]
    results = []
    for node, reference in zip(asked, pending, strict=True):
        try:
            results.append(ray.get(reference, timeout=PROBE_S))
        except ray.exceptions.RayError as error:
            raise FleetError(f"{node.host} ({node.address}) does not answer: {first_line(error)}") from error
    return results


def task(function: Callable[..., Any], cpus: float, gpus: float, node_id: str | None, group: Any = None) -> Any:
    """A function of `bootstrap` as a Ray task. It is not retried by Ray: `run` does, and says so."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    where = group or ("SPREAD" if node_id is None else NodeAffinitySchedulingStrategy(node_id, soft=False))
    made = library().remote(num_cpus=cpus, num_gpus=gpus, max_retries=0, scheduling_strategy=where)
    return made(function)


def first_line(error: BaseException) -> str:
    """The first line of one of Ray's messages, or of what raised it on the node."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return one_line(lines[0] if lines else type(error).__name__, 300)
