"""The Ray cluster: the only module that imports Ray."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from halfstep.errors import FleetError, one_line
from halfstep.fleet import program as on_node
from halfstep.params.schema import FleetParams
from halfstep.system import files

LOG = files.WORK_DIR / "ray.log"
CONNECT_S = 5.0
START = "start one with `ray start --head`, and on each other machine `ray start --address HOST:6379`"


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, with the numbers of cores and GPUs that it offers."""

    node_id: str
    host: str
    cpus: float
    gpus: float


@contextmanager
def connected(tree: Path) -> Iterator[None]:
    """Connects to the cluster at `RAY_ADDRESS`, or to the one that runs on this machine. Never starts one.

    What Ray itself prints while it is connected goes to `.halfstep/ray.log`.

    Args:
        tree: the folder that Ray brings to each node.

    Raises:
        FleetError: Ray is not installed, no cluster is there, its Ray or Python is another one, or the tree is too
            large.
    """
    if importlib.util.find_spec("ray") is None:
        raise FleetError('Ray is not installed, which connects the machines; install it: pip install -e ".[fleet]"')
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # it prints a stack at SIGTERM
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"  # the tree has what travels
    address = os.environ.get("RAY_ADDRESS") or "auto"
    _require_listener(address)
    with _messages_of_ray_in_a_file():
        ray, on_sigterm = library(), signal.getsignal(signal.SIGTERM)
        environment = {"working_dir": str(tree)}
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="ERROR",
                include_dashboard=False,
                runtime_env=environment,
            )
        except (ConnectionError, RuntimeError, ValueError, AssertionError, ray.exceptions.RayError) as error:
            raise FleetError(_no_cluster(address, str(error))) from error
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray sets its own
        ray.cloudpickle.register_pickle_by_value(on_node)  # a node may have another release of halfstep
        try:
            yield
        finally:
            ray.shutdown()


def library() -> Any:
    """The module `ray`. Its types are those of the installed release, if one is installed at all."""
    import ray

    return ray


class _OfMainThread(io.TextIOBase):
    """A stream for what the main thread writes. What Ray's threads write goes to a file."""

    def __init__(self, ours: TextIO, log: TextIO) -> None:
        self._ours, self._log = ours, log

    def write(self, text: str) -> int:
        return (self._ours if threading.current_thread() is threading.main_thread() else self._log).write(text)

    def flush(self) -> None:
        self._ours.flush()


@contextmanager
def _messages_of_ray_in_a_file() -> Iterator[None]:
    """Ray prints to all streams, and its own process writes stacks to descriptor 2, when a machine is lost."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    before = sys.stdout, sys.stderr
    descriptor = os.dup(2)
    with LOG.open("w", encoding="utf-8", buffering=1) as log, os.fdopen(descriptor, "w", buffering=1) as errors:
        os.dup2(log.fileno(), 2)
        sys.stdout, sys.stderr = _OfMainThread(sys.stdout, log), _OfMainThread(errors, log)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            os.dup2(descriptor, 2)


def _no_cluster(address: str, message: str) -> str:
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()] or ["no reason is given"]
    if "exceeds the maximum size" in message:
        return f"{one_line(lines[0], 300)}: let git ignore what the trainings do not need"
    if address == "auto":
        where = "no Ray cluster runs on this machine, and RAY_ADDRESS is not set"
    else:
        where = f"RAY_ADDRESS is {one_line(address, 100)}, where no Ray cluster can be used"
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


def nodes() -> list[Node]:
    """The nodes that are alive and offer cores or GPUs."""
    available = []
    for node in library().nodes():
        cpus, gpus = (float(node["Resources"].get(name, 0)) for name in ("CPU", "GPU"))
        if node["Alive"] and (cpus or gpus):
            available.append(Node(node["NodeID"], node["NodeManagerHostname"], cpus, gpus))
    return sorted(available, key=lambda node: (node.host, node.node_id))


def require_resources(fleet: FleetParams) -> list[Node]:
    """The nodes that offer the resources of a training.

    Raises:
        FleetError: there is none.
    """
    available = nodes()
    if not available:
        raise FleetError(f"no node of the Ray cluster offers a core; {START}")
    fitting = [
        node for node in available if node.cpus >= fleet.cpus_per_training and node.gpus >= fleet.gpus_per_training
    ]
    if not fitting:
        most_cpus, most_gpus = max(node.cpus for node in available), max(node.gpus for node in available)
        name = "cpus" if most_cpus < fleet.cpus_per_training else "gpus"
        raise FleetError(
            f"fleet.{name}_per_training is {getattr(fleet, f'{name}_per_training')}; the {len(available)} nodes of the "
            f"cluster offer at most {most_cpus:g} cores and {most_gpus:g} GPUs each (`ray status`): reduce it, or add "
            "a larger node"
        )
    return fitting


def program(cpus: float, gpus: float, left_out: Sequence[str]) -> Any:
    """An actor `Program` with these resources, on any node that is not left out."""
    options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "max_concurrency": 2, "max_restarts": 0}
    options["scheduling_strategy"] = "SPREAD"
    if left_out:
        options["label_selector"] = {"ray.io/node-id": f"!in({','.join(left_out)})"}
    return library().remote(**options)(on_node.Program).remote()


def first_line(error: BaseException) -> str:
    """The first line of one of Ray's messages, or of what raised it on the node."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return one_line(lines[0] if lines else type(error).__name__, 300)
