from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from stages import locking
from stages.errors import HalfstepError, TrackingError
from stages.params import CompareParams, Params, TrackingParams, TrainParams, Variant
from stages.tracking import views
from stages.tracking.live import LiveRun
from stages.tracking.runs import Described, Tracker, run_params

PARAMS = Params()
TRAINING = views.training("mixed_float16", 3)
KILLED: list[object] = []


@pytest.fixture
def client(project: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{project}/mlflow.db")


@pytest.fixture
def tracker(project: Path) -> Tracker:
    return Tracker(PARAMS.tracking)


def runs(client: MlflowClient) -> list[Run]:
    experiment = client.get_experiment_by_name(PARAMS.tracking.experiment)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"]))


def test_a_run_that_ends_cleanly_is_finished(tracker: Tracker, client: MlflowClient, project: Path) -> None:
    with tracker.run(TRAINING, PARAMS) as run:
        run.metrics({"loss": 1.5, "val_loss": float("nan"), "accuracy": float("inf")}, step=2)
        (project / "table.csv").write_text("a\n1\n")
        run.artifact(project / "table.csv")
        run.complete("abc")
    (found,) = runs(client)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "train mixed_float16 seed 3"
    assert found.data.metrics == {"loss": 1.5}  # MLflow would show NaN as 0
    assert client.get_metric_history(run.run_id, "loss")[0].step == 2
    assert [entry.path for entry in client.list_artifacts(run.run_id)] == ["table.csv"]
    expected = {"stage": "train", "variant": "mixed_float16", "seed": "3", "result.sha256": "abc"}
    assert {name: found.data.tags.get(name) for name in expected} == expected
    assert {"device", "environment"} <= set(found.data.tags)


def test_artifacts_lie_beside_the_store(tracker: Tracker, client: MlflowClient, project: Path) -> None:
    with tracker.run(TRAINING, PARAMS) as run:
        pass
    assert client.get_run(run.run_id).info.artifact_uri.startswith((project / "mlruns").as_uri())


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ZeroDivisionError(), "FAILED"),
        (HalfstepError("x"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(143), "KILLED"),
    ],
)
def test_a_run_ends_as_what_ended_it(tracker: Tracker, client: MlflowClient, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)), tracker.run(TRAINING, PARAMS):
        raise error
    assert [run.info.status for run in runs(client)] == [status]


def test_a_failure_that_is_a_result_is_failed(tracker: Tracker, client: MlflowClient) -> None:
    with tracker.run(TRAINING, PARAMS) as run:
        run.fail()
    assert [run.info.status for run in runs(client)] == ["FAILED"]


def test_a_terminated_process_leaves_its_run_killed(
    root: Path, client: MlflowClient, tracker: Tracker, project: Path
) -> None:
    code = """
        import time
        from stages.errors import explained
        from stages.params import Params
        from stages.tracking import views
        from stages.tracking.runs import Tracker

        @explained
        def main():
            with Tracker(Params().tracking).run(views.preparation(), Params()):
                print("begun", flush=True)
                time.sleep(60)

        raise SystemExit(main())
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    child.send_signal(signal.SIGTERM)
    child.stdout.close()
    assert child.wait(timeout=30) == 143
    assert [run.info.status for run in runs(client)] == ["KILLED"]


def test_the_git_commit_and_the_experiment_are_tagged(
    tracker: Tracker, client: MlflowClient, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "--quiet"], check=True)
    for name in ("params.yaml", "dvc.lock"):
        (project / name).write_text("a")
    subprocess.run(["git", "add", "params.yaml", "dvc.lock"], check=True)
    subprocess.run(["git", *identity, "commit", "--quiet", "-m", "x"], check=True)
    monkeypatch.setenv("DVC_EXP_NAME", "shaky-crab")
    for text_of_lock, text_of_params in (("a", "a"), ("b", "a"), ("b", "b")):
        (project / "dvc.lock").write_text(text_of_lock)
        (project / "params.yaml").write_text(text_of_params)
        with tracker.run(TRAINING, PARAMS):
            pass
    found = runs(client)
    assert [run.data.tags["git.dirty"] for run in found] == ["false", "false", "true"]
    assert {run.data.tags["dvc.exp_name"] for run in found} == {"shaky-crab"}
    assert all(len(run.data.tags["git.commit"]) == 40 for run in found)


def test_params_have_dotted_names_and_the_runs_own_entry() -> None:
    params = Params(
        train=TrainParams(variants=("b",), learning_rate=1e-5),
        variants={"a": Variant(policy="float32"), "b": Variant(policy="mixed_bfloat16", xla=True)},
        compare=CompareParams(baseline="b"),
        tracking=TrackingParams(uri="http://user:secret@host"),
    )
    logged = run_params(params, "b")
    assert logged["train.learning_rate"] == "1e-05"
    assert logged["train.augment.flip"] == "false"
    assert (logged["variant.policy"], logged["variant.xla"], logged["variant.tf32"]) == (
        "mixed_bfloat16",
        "true",
        "true",
    )
    assert not any(name.startswith(("variants", "tracking")) for name in logged)
    assert not any("secret" in value for value in logged.values())
    assert set(run_params(params, "a")) == set(logged)
    assert {name for name in logged if logged[name] != run_params(params, "a")[name]} == {
        "variant.policy",
        "variant.xla",
    }
    assert not any(name.startswith("variant") for name in run_params(params, None))


def test_a_value_that_is_too_long_for_mlflow_is_cut() -> None:
    params = Params(train=TrainParams(seeds=tuple(range(3000))))
    assert all(len(value) <= 6000 for value in run_params(params, None).values())


def test_a_run_is_found_by_its_result(tracker: Tracker) -> None:
    ids = []
    for digest in ("one", "two", "two"):
        with tracker.run(TRAINING, PARAMS) as run:
            run.complete(digest)
            ids.append(run.run_id)
        time.sleep(0.002)
    assert tracker.find("one", TRAINING) == ids[0]
    assert tracker.find("two", TRAINING) == ids[2]  # the newest
    assert tracker.find("two", views.training("mixed_float16", 4)) is None
    assert tracker.find("three", TRAINING) is None


def test_a_run_that_has_ended_can_be_adopted(tracker: Tracker, client: MlflowClient) -> None:
    children = []
    for described in (views.preparation(), TRAINING):
        with tracker.run(described, PARAMS) as run:
            children.append(run.run_id)
    with tracker.run(views.comparison(), PARAMS) as parent:
        tracker.adopt(parent.run_id, children)
    for child in children:
        assert client.get_run(child).data.tags["mlflow.parentRunId"] == parent.run_id
        assert client.get_run(child).info.status == "FINISHED"


def test_many_metrics_go_in_several_batches(tracker: Tracker, client: MlflowClient) -> None:
    with tracker.run(TRAINING, PARAMS) as run:
        run.metrics({f"metric/{number}": number for number in range(1100)})
    assert len(runs(client)[0].data.metrics) == 1100


def test_a_store_that_fails_in_mid_run_costs_one_line(
    tracker: Tracker, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tracker.run(TRAINING, PARAMS) as run:
        with sqlite3.connect(project / "mlflow.db") as connection:
            connection.execute("drop table metrics")
        run.metrics({"loss": 1.0})
        run.metrics({"loss": 2.0})
        run.complete("abc")
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "this run cannot be logged any further" in said
    assert tracker.find("abc", TRAINING) is None


def left_running(tracker: Tracker, described: Described = TRAINING, params: Params = PARAMS) -> str:
    """A run whose process was killed outright."""
    manager = tracker.run(described, params)
    run = manager.__enter__()
    KILLED.append(manager)  # or Python would end it in good order
    run.metrics({"loss": 1.0}, step=0)
    run._lost = True  # what is killed says nothing more
    return run.run_id


def test_what_a_killed_process_left_is_closed_at_the_next_start(tracker: Tracker, client: MlflowClient) -> None:
    left = left_running(tracker)
    elsewhere = left_running(tracker, views.training("mixed_float16", 4))
    with tracker.run(TRAINING, PARAMS):
        assert client.get_run(left).info.status == "KILLED"
        assert client.get_run(elsewhere).info.status == "RUNNING"
    tracker.close_abandoned()
    assert client.get_run(elsewhere).info.status == "KILLED"
    assert sorted(run.info.status for run in runs(client)) == ["FINISHED", "KILLED", "KILLED"]


def test_a_run_of_a_process_that_lives_is_left_alone(tracker: Tracker, client: MlflowClient, project: Path) -> None:
    left = left_running(tracker)
    stream = locking.try_lock(locking.lock_file("train@mixed_float16-3", project))
    assert stream is not None
    with stream:
        tracker.close_abandoned()
        assert tracker.unfinished(TRAINING, PARAMS) is None
        assert client.get_run(left).info.status == "RUNNING"
    assert tracker.unfinished(TRAINING, PARAMS) == left
    other = Params(train=TrainParams(learning_rate=0.5))
    assert tracker.unfinished(TRAINING, other) is None


def test_a_copy_of_a_checkout_leaves_the_runs_of_the_original_alone(
    tracker: Tracker, client: MlflowClient, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = left_running(tracker)
    shutil.copytree(project / ".halfstep", project / "copy/.halfstep")
    shutil.copytree(project / "data", project / "copy/data")
    monkeypatch.chdir(project / "copy")
    tracker.close_abandoned()
    assert client.get_run(left).info.status == "RUNNING"
    monkeypatch.chdir(project)
    tracker.close_abandoned()
    assert client.get_run(left).info.status == "KILLED"


def test_a_temporary_folder_of_the_checkout_that_is_gone(
    tracker: Tracker, client: MlflowClient, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(project))
    shutil.copytree(project / "data", project / ".dvc/tmp/exps/a/data")
    monkeypatch.chdir(project / ".dvc/tmp/exps/a")
    left = left_running(tracker)
    monkeypatch.chdir(project)
    shutil.rmtree(project / ".dvc")
    tracker.close_abandoned()
    assert client.get_run(left).info.status == "KILLED"


@pytest.mark.parametrize("status", ["RUNNING", "KILLED", "FAILED"])
def test_a_run_is_gone_on_with(tracker: Tracker, client: MlflowClient, status: str) -> None:
    left = left_running(tracker)
    if status != "RUNNING":
        client.set_terminated(left, status)
    with tracker.run(TRAINING, PARAMS, run_id=left) as run:
        assert run.run_id == left
        assert run.logged_steps("loss") == {0}
        assert client.get_run(left).info.status == "RUNNING"
    assert [run.info.status for run in runs(client)] == ["FINISHED"]


def test_a_run_that_is_gone_or_whole_is_not_gone_on_with(tracker: Tracker, client: MlflowClient) -> None:
    with tracker.run(TRAINING, PARAMS) as whole:
        whole.complete("abc")
    deleted = left_running(tracker)
    client.delete_run(deleted)
    for run_id in (whole.run_id, deleted, "0" * 32):
        with tracker.run(TRAINING, PARAMS, run_id=run_id) as run:
            assert run.run_id != run_id


def test_parameters_that_a_killed_process_had_not_logged_are_added(
    tracker: Tracker, client: MlflowClient, project: Path
) -> None:
    left = left_running(tracker)
    with sqlite3.connect(project / "mlflow.db") as connection:
        connection.execute("delete from params where key like 'train.%'")
    changed = PARAMS.model_copy(update={"compare": CompareParams(min_speedup=1.5)})
    with tracker.run(TRAINING, changed, run_id=left):
        pass
    logged = client.get_run(left).data.params
    assert set(logged) == set(run_params(PARAMS, "mixed_float16"))
    assert logged["compare.min_speedup"] == "1.05"  # what it began with


class _Refusing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_error(400)

    do_GET = do_POST  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def refusing_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_server_that_refuses_in_mid_run_costs_one_line(
    refusing_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = LiveRun(MlflowClient(refusing_server), "0" * 32)
    run.metrics({"loss": 1.0})
    run.tags({"a": "b"})
    run.end("FINISHED")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_server_that_does_not_answer_is_one_line_soon(
    refusing_server: str, project: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    started_s = time.monotonic()
    for uri in (refusing_server, "http://user:secret@127.0.0.1:9"):  # no service listens on the discard port
        with pytest.raises(TrackingError) as caught:
            Tracker(TrackingParams(uri=uri))
        message = str(caught.value)
        assert "\n" not in message
        assert "cannot be used" in message
        assert "check tracking.uri and MLFLOW_TRACKING_URI" in message
        assert "secret" not in message
    assert time.monotonic() - started_s < 40
    assert (capsys.readouterr().err, caplog.text) == ("", "")


def test_a_deleted_experiment_is_not_written_to(tracker: Tracker, client: MlflowClient) -> None:
    experiment = client.get_experiment_by_name(PARAMS.tracking.experiment)
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    with pytest.raises(TrackingError, match=r"has been deleted in sqlite:.*; restore it with"):
        Tracker(PARAMS.tracking)
