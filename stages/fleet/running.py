"""Jobs on the cluster until they end: attempts, the nodes that they lose, and their cancelling."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from stages.errors import FleetError
from stages.fleet import bootstrap, cluster
from stages.fleet.cluster import LOST, Handle, Job, OnEvent, Outcome
from stages.telling import ASKED

NO_NODE_S = 120.0  # for a machine with enough resources to come back
_LOST_RESULT: dict[str, Any] = {"host": "", "status": LOST, "files": {}}


def run(jobs: Sequence[Job], parcel: Handle, on_event: OnEvent, retries: int) -> list[Outcome]:
    """Runs jobs on the cluster, as many at once as its resources allow, and waits for all of them.

    Args:
        jobs: with different names.
        parcel: handle of what `parcel.build` returned.
        on_event: called in this thread with the job, what happened and a text: `started` (host), `line` (of the
            output), `retry` (why), `ended` (reason, empty if it succeeded).
        retries: how often a job is tried again that lost its node, or that ended with status 75.

    Returns:
        The outcomes in the order of `jobs`.

    Raises:
        FleetError: the cluster ended.
        KeyboardInterrupt: after Ctrl-C, when all jobs are cancelled. Their processes end by themselves within 15 s.
    """
    running = Running(jobs, parcel, on_event, retries)
    try:
        return running.until_all_ended()
    except BaseException:
        with suppress(Exception):
            running.cancel()
        raise


class Attempt:
    """One try of a job, with its Ray task."""

    def __init__(self, job: Job, number: int, reference: Any) -> None:
        self.job, self.number, self.reference = job, number, reference


class Running:
    """Jobs that were submitted to the cluster."""

    def __init__(self, jobs: Sequence[Job], parcel: Handle, on_event: OnEvent, retries: int) -> None:
        self._jobs = {job.name: job for job in jobs}
        assert len(self._jobs) == len(jobs), "the names of jobs differ"
        self._parcel, self._on_event, self._retries = parcel, on_event, retries
        self._events = _events_actor()
        self._outcomes: dict[str, Outcome] = {}
        self._node_seen_s = self._node_sought_s = time.monotonic()
        self._attempts = {job.name: self._start(job, 0) for job in jobs}

    def until_all_ended(self) -> list[Outcome]:
        """Waits for all jobs, and returns their outcomes in order."""
        ray = cluster.library()
        try:
            while self._attempts:
                self._step()
        except (ray.exceptions.RaySystemError, ConnectionError) as error:
            raise FleetError(f"the Ray cluster has ended: {cluster.first_line(error)}") from error
        return [self._outcomes[name] for name in self._jobs]

    def cancel(self) -> None:
        """Ends all jobs that run or wait."""
        ray = cluster.library()
        for attempt in self._attempts.values():
            with suppress(Exception):
                ray.cancel(attempt.reference, force=True)

    def _step(self) -> None:
        ray = cluster.library()
        self._require_a_node()
        by_reference = {attempt.reference: attempt for attempt in self._attempts.values()}
        ended, _ = ray.wait(list(by_reference), timeout=cluster.POLL_S, fetch_local=False)
        self._deliver()
        for reference in ended:
            self._end(by_reference[reference])

    def _require_a_node(self) -> None:
        """Gives up when no machine that could run any of the jobs has been there for `NO_NODE_S` seconds."""
        now_s = time.monotonic()
        if now_s - self._node_sought_s < NO_NODE_S / 10:
            return
        self._node_sought_s = now_s
        jobs, nodes = [attempt.job for attempt in self._attempts.values()], cluster.nodes()
        if any(node.cpus >= job.cpus and node.gpus >= job.gpus for job in jobs for node in nodes):
            self._node_seen_s = now_s
        elif now_s - self._node_seen_s > NO_NODE_S:
            raise FleetError(
                f"all nodes of the Ray cluster that had the resources of a training are lost since {NO_NODE_S:.0f} s; "
                "start them again (`ray start --address HOST:6379`), then run the same command: it continues"
            )

    def _deliver(self) -> None:
        for name, kind, text in cluster.library().get(self._events.take.remote()):
            if name in self._attempts:
                self._on_event(self._jobs[name], kind, text)

    def _start(self, job: Job, number: int) -> Attempt:
        task = cluster.task(bootstrap.run, job.cpus, job.gpus, job.node_id)
        return Attempt(job, number, task.remote(self._parcel, options_of(job), self._events))

    def _end(self, attempt: Attempt) -> None:
        job, result = attempt.job, _result(attempt.reference)
        if result["status"] == LOST and attempt.number < self._retries:
            self._on_event(job, "retry", f"retry {attempt.number + 1} of {self._retries}: {result['reason']}")
            self._attempts[job.name] = self._start(job, attempt.number + 1)
            return
        del self._attempts[job.name]
        self._outcomes[job.name] = Outcome(job=job, **result_fields(result))
        self._on_event(job, "ended", result["reason"])


def result_fields(result: dict[str, Any]) -> dict[str, Any]:
    """The fields of an outcome."""
    return {name: result[name] for name in ("host", "status", "reason", "files")}


def _events_actor() -> Any:
    """On the head's own machine: it must not be lost with another."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = cluster.library()
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(bootstrap.Events).remote()


def _result(reference: Any) -> dict[str, Any]:
    ray = cluster.library()
    try:
        return dict(ray.get(reference))
    except ray.exceptions.RayTaskError as error:
        return {**_LOST_RESULT, "status": 1, "reason": cluster.first_line(error)}
    except ray.exceptions.NodeDiedError:
        return {**_LOST_RESULT, "reason": "its machine was lost"}
    except ray.exceptions.OutOfMemoryError:
        return {**_LOST_RESULT, "reason": "Ray ended it, because its machine ran out of memory"}
    except ray.exceptions.RayError as error:
        return {**_LOST_RESULT, "reason": f"its worker was lost ({cluster.first_line(error)})"}


def options_of(job: Job) -> dict[str, Any]:
    """The `order` of `bootstrap.run` for a job."""
    return {
        "name": job.name,
        "module": job.module,
        "arguments": list(job.arguments),
        "collect": list(job.collect),
        "gpus": job.gpus,
        "threads": job.threads,
        "variables": {**ASKED, **job.variables},
    }
