"""Jobs on the cluster until they end: attempts, the nodes they lose, gangs of several hosts, and their cancelling."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from stages.errors import FleetError, LostRankError
from stages.fleet import bootstrap, cluster
from stages.fleet.cluster import Handle, Job, OnEvent, Outcome
from stages.telling import ASKED

LOST = LostRankError.exit_status
GANG_END_S = 60.0  # for the other hosts, after one of a gang has ended
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
    """One try of a job: a Ray task for each of its hosts."""

    def __init__(self, job: Job, number: int) -> None:
        self.job, self.number = job, number
        self.references: list[Any] = []
        self.results: dict[int, dict[str, Any]] = {}
        self.group: Any = None
        self.reserved: Any = None
        self.addresses: list[Any] = []
        self.first_end_s: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether all its tasks have."""
        return bool(self.references) and len(self.results) == len(self.references)

    def result(self) -> dict[str, Any]:
        """The result of rank 0, unless it was lost and another rank says why."""
        failed = [result for result in self.results.values() if result["status"] not in (0, LOST)]
        return failed[0] if failed else self.results[0]


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
            for reference in attempt.references:
                with suppress(Exception):
                    ray.cancel(reference, force=True)
            _remove(attempt)

    def _step(self) -> None:
        ray = cluster.library()
        self._require_a_node()
        for attempt in self._attempts.values():
            self._start_gang(attempt)
        waiting = [reference for attempt in self._attempts.values() for reference in _unfinished(attempt)]
        if waiting:
            ray.wait(waiting, num_returns=1, timeout=cluster.POLL_S, fetch_local=False)
        else:
            time.sleep(cluster.POLL_S)
        self._deliver()
        for attempt in list(self._attempts.values()):
            _collect(attempt)
            if attempt.has_ended:
                self._end(attempt)

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
        attempt = Attempt(job, number)
        if job.hosts == 1:
            task = cluster.task(bootstrap.run, job.cpus, job.gpus, job.node_id)
            attempt.references = [task.remote(self._parcel, options_of(job, 0, {}), self._events)]
            return attempt
        from ray.util.placement_group import placement_group

        bundle = {"CPU": job.cpus} | ({"GPU": job.gpus} if job.gpus else {})
        attempt.group = placement_group([bundle] * job.hosts, strategy="STRICT_SPREAD")
        attempt.reserved = attempt.group.ready()
        return attempt

    def _start_gang(self, attempt: Attempt) -> None:
        """Starts a gang once its hosts are reserved, and have sent their addresses."""
        ray = cluster.library()
        if attempt.references or attempt.group is None:
            return
        if not attempt.addresses:
            if ray.wait([attempt.reserved], timeout=0, fetch_local=False)[0]:
                hosts = range(attempt.job.hosts)
                attempt.addresses = [_placed(attempt, bootstrap.address, rank, 0).remote() for rank in hosts]
            return
        ready, missing = ray.wait(attempt.addresses, num_returns=len(attempt.addresses), timeout=0)
        if missing:
            return
        try:
            workers = ray.get(ready)
        except ray.exceptions.RayError:  # a host was lost meanwhile: the placement group finds another
            attempt.addresses = []
            return
        for rank in range(attempt.job.hosts):
            config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            order = options_of(attempt.job, rank, {"TF_CONFIG": json.dumps(config)})
            events = self._events
            task = _placed(attempt, bootstrap.run, rank, attempt.job.gpus, attempt.job.cpus)
            attempt.references.append(task.remote(self._parcel, order, events))

    def _end(self, attempt: Attempt) -> None:
        _remove(attempt)
        job, result = attempt.job, attempt.result()
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


def _placed(attempt: Attempt, function: Any, rank: int, gpus: float, cpus: float = 0) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    where = PlacementGroupSchedulingStrategy(attempt.group, placement_group_bundle_index=rank)
    return cluster.task(function, cpus, gpus, None, where)


def _unfinished(attempt: Attempt) -> list[Any]:
    return [reference for rank, reference in enumerate(attempt.references) if rank not in attempt.results]


def _collect(attempt: Attempt) -> None:
    """Takes the results of the tasks that have ended. A gang that has lost a host ends within `GANG_END_S`."""
    ray = cluster.library()
    for rank, reference in enumerate(attempt.references):
        if rank not in attempt.results and ray.wait([reference], timeout=0, fetch_local=False)[0]:
            attempt.results[rank] = _result(reference)
            attempt.first_end_s = attempt.first_end_s or time.monotonic()
    if attempt.first_end_s is not None and time.monotonic() - attempt.first_end_s > GANG_END_S:
        for reference in _unfinished(attempt):
            ray.cancel(reference, force=True)


def _result(reference: Any) -> dict[str, Any]:
    ray = cluster.library()
    try:
        return dict(ray.get(reference))
    except ray.exceptions.RayTaskError as error:
        return {**_LOST_RESULT, "status": 1, "reason": cluster.first_line(error)}
    except ray.exceptions.TaskCancelledError:
        return {**_LOST_RESULT, "reason": "cancelled, because another host of the training was lost"}
    except ray.exceptions.NodeDiedError:
        return {**_LOST_RESULT, "reason": "its machine was lost"}
    except ray.exceptions.OutOfMemoryError:
        return {**_LOST_RESULT, "reason": "Ray ended it, because its machine ran out of memory"}
    except ray.exceptions.RayError as error:
        return {**_LOST_RESULT, "reason": f"its worker was lost ({cluster.first_line(error)})"}


def _remove(attempt: Attempt) -> None:
    from ray.util.placement_group import remove_placement_group

    if attempt.group is not None:
        with suppress(Exception):
            remove_placement_group(attempt.group)


def options_of(job: Job, rank: int, variables: Mapping[str, str]) -> dict[str, Any]:
    """The `order` of `bootstrap.run` for one host of a job."""
    ranked = ("--rank", str(rank)) if job.hosts > 1 else ()
    return {
        "name": job.name,
        "module": job.module,
        "arguments": [*job.arguments, *ranked],
        "collect": list(job.collect) if rank == 0 else [],
        "gpus": job.gpus,
        "threads": job.threads,
        "variables": {**ASKED, **job.variables, **variables},
    }
