"""A training keeps epochs that a server does not accept, and the server gets them once, with the time of their end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
from mlflow import MlflowClient

from halfstep.machine.fingerprint import fingerprint
from halfstep.params.schema import Params
from halfstep.system import files
from halfstep.tracking import active_run, run_logging
from halfstep.tracking.active_run import ActiveRun
from halfstep.tracking.tracker import Tracker
from tests.faults.servers import FaultyServer, later, refuse

TRAINING = run_logging.training("float32", 0)


@pytest.fixture
def tracker(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    files.write_json(files.ENVIRONMENT_FILE, fingerprint())
    return Tracker(params(server).tracking)


def params(server: FaultyServer) -> Params:
    return Params.model_validate({"tracking": {"uri": server.uri}})


def fail(server: FaultyServer, trouble: Any) -> None:
    """From the next request on."""
    server.trouble, server.trouble_from = trouble, server.requests + 1


def steps(server: FaultyServer, run: ActiveRun) -> list[int]:
    return sorted(metric.step for metric in MlflowClient(server.uri).get_metric_history(run.run_id, "loss"))


@pytest.mark.parametrize("trouble", [refuse, later])
def test_epochs_are_kept_and_delivered_with_the_next_one(
    trouble: Any,
    server: FaultyServer,
    tracker: Tracker,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(active_run, "PAUSE_FACTOR", 0.0)
    with tracker.run(TRAINING, params(server)) as run:
        run.live_epochs([{"epoch": 0, "loss": 3.0}])
        fail(server, trouble)
        failed_ms = time.time() * 1000
        for epoch in (1, 2):
            run.live_epochs([{"epoch": epoch, "loss": 2.0}])
        server.trouble_from = None
        back_ms = time.time() * 1000
        assert steps(server, run) == [0]
        run.live_epochs([{"epoch": 3, "loss": 1.0}])
        assert steps(server, run) == [0, 1, 2, 3]
    history = MlflowClient(server.uri).get_metric_history(run.run_id, "loss")
    times_ms = {metric.step: metric.timestamp for metric in history}
    assert failed_ms - 1 <= times_ms[1] <= times_ms[2] <= back_ms
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("MLflow: the store does not answer (")
    assert MlflowClient(server.uri).get_run(run.run_id).info.status == "FINISHED"


def test_epoch_whose_answer_was_lost_is_stored_once(server: FaultyServer, tracker: Tracker) -> None:
    def answer_is_lost(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        list(server.app(environ, start_response))
        return refuse(environ, start_response)

    with tracker.run(TRAINING, params(server)) as run:
        fail(server, answer_is_lost)
        run.live_epochs([{"epoch": 0, "loss": 2.0, "accuracy": 0.5}])
        server.trouble_from = None
    assert steps(server, run) == [0]


def test_end_sends_what_is_kept(server: FaultyServer, tracker: Tracker) -> None:
    with tracker.run(TRAINING, params(server)) as run:
        fail(server, refuse)
        run.live_epochs([{"epoch": 0, "loss": 2.0}])
        server.trouble_from = None
        run.epochs([{"epoch": 0, "loss": 2.0}, {"epoch": 1, "loss": 1.0}])
        run.mark_complete("abc")
    assert steps(server, run) == [0, 1]
    stored_run = MlflowClient(server.uri).get_run(run.run_id)
    assert (stored_run.info.status, stored_run.data.tags["result.sha256"]) == ("FINISHED", "abc")


def test_experiment_that_another_process_makes_meanwhile(server: FaultyServer, tracker: Tracker) -> None:
    def another_is_faster(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"].endswith("experiments/create"):
            server.trouble_from = None
            MlflowClient(server.uri).create_experiment("shared")
        return server.app(environ, start_response)

    fail(server, another_is_faster)
    shared = params(server).tracking.model_copy(update={"experiment": "shared"})
    with Tracker(shared).run(TRAINING, params(server)) as run:
        pass
    assert server.trouble_from is None
    assert MlflowClient(server.uri).get_run(run.run_id).info.status == "FINISHED"


def test_server_that_is_slow_to_fail_costs_a_tenth_of_the_time(
    server: FaultyServer, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tracker.run(TRAINING, params(server)) as run:
        fail(server, refuse)
        server.delay_s = 0.2
        started_s, asked = time.monotonic(), server.requests
        for epoch in range(60):
            run.live_epochs([{"epoch": epoch, "loss": 2.0}])
            time.sleep(0.03)
        assert time.monotonic() - started_s < 3.5
        assert 1 <= server.requests - asked <= 2
        server.trouble_from, server.delay_s = None, 0.0
