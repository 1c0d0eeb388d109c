"""Jobs on the cluster until they end: where they are tried, which nodes are left out, and their cancelling."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from halfstep.errors import FleetError, one_line
from halfstep.fleet import cluster
from halfstep.fleet.program import LOST, STOP_S
from halfstep.system.telling import ASKED, told

NO_NODE_S = 120.0  # for a machine with enough resources to come back
STRIKES = 3  # after which a node gets no more jobs
FREE_TRIES = 10  # of a job whose worker is lost before its training begins: some workers cannot start anywhere
_POLL_S, _NODES_S = 0.5, 2.0


@dataclass(frozen=True)
class Job:
    """What runs on one node.

    Attributes:
        name: shown to the user; unique among the jobs of one call.
        arguments: of `python -m halfstep.fleet.node`.
        cpus, gpus: of the node.
        threads: limit of TensorFlow's threads on larger nodes; None for none.
    """

    name: str
    arguments: tuple[str, ...] = ()
    cpus: float = 1
    gpus: float = 0
    threads: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How a job ended: the status of the program, and why it is not 0."""

    job: Job
    host: str
    status: int
    reason: str


@dataclass(eq=False)
class _Attempt:
    """A try of a job; `host` and `node_id` are known when it has started, and it has begun when its program tells."""

    job: Job
    actor: Any
    stream: Any
    host: str = ""
    node_id: str = ""
    has_begun: bool = False


class Driving:
    """Runs jobs. What all of them need is stored in the cluster once.

    Args:
        contents: files that are written into each copy of the tree, by path.
        checkout: identifier of this checkout.
        versions: that the nodes must have, by package; see `Program.run`.
        retries: how often a job is tried again that lost its node, or whose program was ended by a signal.
    """

    def __init__(self, contents: Mapping[str, bytes], checkout: str, versions: dict[str, str], retries: int) -> None:
        self._contents, self._versions = cluster.library().put(dict(contents)), versions
        self._checkout, self._retries = checkout, retries
        self._strikes: dict[str, list[str]] = {}  # what failed before a program started, by node
        self._began_s = self._looked_s = self._node_seen_s = time.monotonic()

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Runs jobs, as many at once as the cluster's resources allow, and waits for all of them.

        Returns:
            The outcomes in the order of `jobs`.

        Raises:
            FleetError: the cluster ended, or no node is left.
            KeyboardInterrupt: after Ctrl-C, when all programs have ended.
        """
        self._tries = {job.name: 0 for job in jobs}
        self._free_tries = {job.name: 0 for job in jobs}
        self._outcomes: dict[str, Outcome] = {}
        self._open = [self._start(job) for job in jobs]
        ray = cluster.library()
        try:
            while self._open:
                ready, _ = ray.wait([attempt.stream for attempt in self._open], timeout=_POLL_S, fetch_local=False)
                for attempt in [attempt for attempt in self._open if attempt.stream in ready]:
                    self._receive(attempt)
                if time.monotonic() - self._looked_s > _NODES_S:
                    self._look_at_nodes()
        except KeyboardInterrupt:
            self._say("all trainings are ended, which save their checkpoints")
            self._stop()
            raise
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise FleetError(f"the Ray cluster has ended: {cluster.first_line(error)}") from error
        return [self._outcomes[job.name] for job in jobs]

    def _start(self, job: Job) -> _Attempt:
        left_out = [node for node, why in self._strikes.items() if len(why) >= STRIKES]
        actor = cluster.program(job.cpus, job.gpus, left_out)
        order = {**asdict(job), "variables": ASKED, "checkout": self._checkout}
        stream = actor.run.options(num_returns="streaming").remote(order, self._contents, self._versions)
        return _Attempt(job, actor, stream)

    def _receive(self, attempt: _Attempt) -> None:
        """Handles what an attempt reports next."""
        ray = cluster.library()
        try:
            kind, *rest = ray.get(next(attempt.stream))
        except StopIteration:
            self._lost(attempt, "its worker ended")
        except (ray.exceptions.RayActorError, ray.exceptions.ActorUnavailableError):
            self._lost(attempt, "its worker was lost")
        except ray.exceptions.RayError as error:
            self._again(attempt, cluster.first_line(error))
        else:
            if kind == "started":
                attempt.host, attempt.node_id = rest
                self._say("started", attempt)
            elif kind == "line":
                if state := told(rest[0]):
                    attempt.has_begun = True
                    self._say(state, attempt)
            elif kind == "fault":
                self._fault(attempt, rest[0])
            elif rest[0] == LOST:
                self._again(attempt, rest[1])
            else:
                self._end(attempt, *rest)

    def _fault(self, attempt: _Attempt, why: str) -> None:
        """The node cannot run it: another one may, and after some faults this one gets nothing more."""
        strikes = self._strikes.setdefault(attempt.node_id, [])
        strikes.append(f"{attempt.host}: {why}")
        self._say(f"cannot run there: {why}", attempt)
        if len(strikes) == STRIKES:
            self._say(f"{attempt.host} ({attempt.node_id[:6]}) is left out after {STRIKES} such failures: {why}")
        self._replace(attempt)

    def _lost(self, attempt: _Attempt, why: str) -> None:
        """Tries it elsewhere, which uses up a retry if the training had begun."""
        if attempt.has_begun or self._free_tries[attempt.job.name] == FREE_TRIES:
            self._again(attempt, why)
            return
        self._free_tries[attempt.job.name] += 1
        self._say(f"had not begun, and is tried elsewhere: {why}", attempt)
        self._replace(attempt)

    def _again(self, attempt: _Attempt, why: str) -> None:
        self._tries[attempt.job.name] += 1
        if (number := self._tries[attempt.job.name]) > self._retries:
            self._end(attempt, LOST, why)
            return
        self._say(f"retry {number} of {self._retries}: {why}", attempt)
        self._replace(attempt)

    def _replace(self, attempt: _Attempt) -> None:
        self._close(attempt)
        self._open.append(self._start(attempt.job))

    def _close(self, attempt: _Attempt) -> None:
        self._open.remove(attempt)
        attempt.actor = attempt.stream = None  # Ray ends the actor, and its cores are free

    def _end(self, attempt: _Attempt, status: int, reason: str) -> None:
        self._close(attempt)
        self._outcomes[attempt.job.name] = Outcome(attempt.job, attempt.host, status, reason)
        self._say(f"failed: {reason}" if status else "done", attempt)

    def _look_at_nodes(self) -> None:
        """Tries elsewhere what ran on machines that do not answer. Gives up when no machine is left.

        Raises:
            FleetError: all nodes were left out, or none with the resources was there for `NO_NODE_S` seconds.
        """
        now_s = self._looked_s = time.monotonic()
        nodes = cluster.nodes()
        alive = {node.node_id for node in nodes}
        for attempt in [attempt for attempt in self._open if attempt.node_id and attempt.node_id not in alive]:
            self._lost(attempt, "its machine does not answer")
        jobs = [attempt.job for attempt in self._open]
        fitting = [node for node in nodes if any(node.cpus >= job.cpus and node.gpus >= job.gpus for job in jobs)]
        usable = [node for node in fitting if len(self._strikes.get(node.node_id, [])) < STRIKES]
        if not jobs or usable or any(attempt.node_id for attempt in self._open):
            self._node_seen_s = now_s
        elif fitting:
            raise FleetError(
                "no machine can run them: " + "; ".join(self._strikes[node.node_id][-1] for node in fitting)
            )
        elif now_s - self._node_seen_s > NO_NODE_S:
            raise FleetError(
                f"all nodes of the Ray cluster that had the resources of a training are lost since {NO_NODE_S:.0f} s; "
                "start them again (`ray start --address HOST:6379`), then run the same command: it continues"
            )

    def _stop(self) -> None:
        """Ends all programs, and waits for that."""
        stopping = [attempt.actor.stop.remote() for attempt in self._open if attempt.node_id]
        if stopping:
            with suppress(Exception):
                cluster.library().wait(stopping, num_returns=len(stopping), timeout=STOP_S + 10)

    def _say(self, text: str, attempt: _Attempt | None = None) -> None:
        where = f" on {attempt.host}" if attempt and attempt.host else ""
        subject = f"{attempt.job.name}{where}: " if attempt else ""
        print(f"{time.monotonic() - self._began_s:6.1f} s  {subject}{one_line(text, 300)}", flush=True)
