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

from halfstep.errors import HalfstepError, TrackingError
from halfstep.inputs.head_digests import HeadDigests
from halfstep.params.schema import CompareParams, Params, TaskParams, TrackingParams, TrainParams, Variant
from halfstep.system import files
from halfstep.tracking import provenance, run_logging
from halfstep.tracking.active_run import StoreState
from halfstep.tracking.run_params import run_params
from halfstep.tracking.tracker import RunIdentity, Tracker

PARAMS = Params()
TRAINING = run_logging.training("mixed_float16", 3)
KILLED: list[object] = []  # keeps the runs of killed processes from being garbage-collected, which would end them


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


def test_load_of_the_machine_is_logged_while_a_block_runs(
    tracker: Tracker, client: MlflowClient, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    with tracker.run(TRAINING, PARAMS) as run, run.system_metrics():
        time.sleep(1.0)
    (logged_run,) = runs(client)
    assert 0 <= logged_run.data.metrics["system/cpu_utilization_percentage"] <= 100


def test_run_without_an_error_is_finished(tracker: Tracker, client: MlflowClient, project: Path) -> None:
    with tracker.run(TRAINING, PARAMS) as run:
        run.epochs([{"epoch": 2, "loss": 1.5, "val_loss": float("nan"), "accuracy": float("inf")}])
        (project / "table.csv").write_text("a\n1\n")
        run.artifact(project / "table.csv")
        run.mark_complete("abc")
    (logged_run,) = runs(client)
    assert logged_run.info.status == "FINISHED"
    assert logged_run.info.run_name == "train mixed_float16 seed 3"
    assert logged_run.data.metrics == {"loss": 1.5}  # MLflow would show NaN as 0
    assert client.get_metric_history(run.run_id, "loss")[0].step == 2
    assert [entry.path for entry in client.list_artifacts(run.run_id)] == ["table.csv"]
    expected = {"stage": "train", "variant": "mixed_float16", "seed": "3", "result.sha256": "abc"}
    assert {name: logged_run.data.tags.get(name) for name in expected} == expected
    assert {"device", "environment"} <= set(logged_run.data.tags)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ZeroDivisionError(), "FAILED"),
        (HalfstepError("x"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(143), "KILLED"),
    ],
)
def test_exception_determines_the_status_of_a_run(
    tracker: Tracker, client: MlflowClient, error: BaseException, status: str
) -> None:
    with pytest.raises(type(error)), tracker.run(TRAINING, PARAMS):
        raise error
    assert [run.info.status for run in runs(client)] == [status]


def test_run_of_a_terminated_process_is_killed(
    root: Path, client: MlflowClient, tracker: Tracker, project: Path
) -> None:
    code = """
        import time
        from halfstep.cli import cli_entry
        from halfstep.params.schema import Params
        from halfstep.tracking import run_logging
        from halfstep.tracking.tracker import Tracker

        @cli_entry
        def main():
            with Tracker(Params().tracking).run(run_logging.preparation(), Params()):
                print("started", flush=True)
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
    assert child.stdout.readline() == "started\n"
    child.send_signal(signal.SIGTERM)
    child.stdout.close()
    assert child.wait(timeout=30) == 143
    assert [run.info.status for run in runs(client)] == ["KILLED"]


def test_git_commit_and_dvc_experiment_are_tags(
    tracker: Tracker, client: MlflowClient, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "--quiet"], check=True)
    for name in ("params.yaml", "dvc.lock"):
        (project / name).write_text("a")
    subprocess.run(["git", "add", "params.yaml", "dvc.lock"], check=True)
    subprocess.run(["git", *author, "commit", "--quiet", "-m", "x"], check=True)
    monkeypatch.setenv("DVC_EXP_NAME", "shaky-crab")
    for text_of_lock, text_of_params in (("a", "a"), ("b", "a"), ("b", "b")):
        (project / "dvc.lock").write_text(text_of_lock)
        (project / "params.yaml").write_text(text_of_params)
        with tracker.run(TRAINING, PARAMS):
            pass
    logged_runs = runs(client)
    assert [run.data.tags["git.dirty"] for run in logged_runs] == ["false", "false", "true"]
    assert {run.data.tags["dvc.exp_name"] for run in logged_runs} == {"shaky-crab"}
    assert all(len(run.data.tags["git.commit"]) == 40 for run in logged_runs)


def test_params_have_dotted_names_and_the_entry_of_the_variant() -> None:
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


def test_arguments_of_a_task_are_params_by_name() -> None:
    arguments = {"width": 8, "sizes": [1, 2], "deep": {"a key\x1b": {"x": None}}, "empty": {}}
    logged = run_params(Params(task=TaskParams(name="own:build", arguments=arguments)), None)
    assert {name: value for name, value in logged.items() if name.startswith("task.arguments")} == {
        "task.arguments.width": "8",
        "task.arguments.sizes": "[1, 2]",
        "task.arguments.deep": "{'a key\\x1b': {'x': None}}",
        "task.arguments.empty": "{}",
    }


def test_params_of_images_are_absent_for_another_task() -> None:
    own, images = run_params(Params(task=TaskParams(name="own:build")), None), run_params(Params(), None)
    absent = set(images) - set(own)
    assert {name for name in absent if name.partition(".")[0] in ("data", "model")} == {
        name for name in images if name.partition(".")[0] in ("data", "model")
    }
    assert {"train.optimizer", "train.learning_rate", "train.augment.flip"} <= absent
    assert {"train.epochs", "train.batch_size", "profile.max_seconds", "compare.baseline"} <= set(own)


def test_long_value_is_truncated() -> None:
    params = Params(train=TrainParams(seeds=tuple(range(3000))))
    assert all(len(value) <= 6000 for value in run_params(params, None).values())


def test_run_is_found_by_the_checksum_of_its_result(tracker: Tracker) -> None:
    ids = []
    for digest in ("one", "two", "two"):
        with tracker.run(TRAINING, PARAMS) as run:
            run.artifact(Path("data/environment.json"))
            run.mark_complete(digest)
            ids.append(run.run_id)
        time.sleep(0.002)
    assert tracker.find("one", TRAINING) == ids[0]
    assert tracker.find("two", TRAINING) == ids[2]  # the newest
    assert tracker.find("two", run_logging.training("mixed_float16", 4)) is None
    assert tracker.find("three", TRAINING) is None


def test_finished_run_can_get_a_parent(tracker: Tracker, client: MlflowClient) -> None:
    children = []
    for identity in (run_logging.preparation(), TRAINING):
        with tracker.run(identity, PARAMS) as run:
            children.append(run.run_id)
    with tracker.run(run_logging.comparison(), PARAMS) as parent:
        tracker.set_parent(parent.run_id, children)
    for child in children:
        assert client.get_run(child).data.tags["mlflow.parentRunId"] == parent.run_id
        assert client.get_run(child).info.status == "FINISHED"


def test_metrics_are_split_into_batches(tracker: Tracker, client: MlflowClient) -> None:
    with tracker.run(TRAINING, PARAMS) as run:
        run.metrics({f"metric/{number}": number for number in range(1100)})
    assert len(runs(client)[0].data.metrics) == 1100


def test_store_failure_during_a_run_prints_one_line(
    tracker: Tracker, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tracker.run(TRAINING, PARAMS) as run:
        with sqlite3.connect(project / "mlflow.db") as connection:
            connection.execute("drop table metrics")
        run.metrics({"loss": 1.0})
        run.metrics({"loss": 2.0})
        run.mark_complete("abc")
    (line,) = capsys.readouterr().err.splitlines()
    assert "MLflow: logging stopped" in line
    assert tracker.find("abc", TRAINING) is None


def left_running(tracker: Tracker, identity: RunIdentity = TRAINING, params: Params = PARAMS) -> str:
    """A run whose process was killed by SIGKILL."""
    manager = tracker.run(identity, params)
    run = manager.__enter__()
    KILLED.append(manager)
    run.live_epochs([{"epoch": 0, "loss": 1.0}])
    run._state = StoreState(has_failed=True)  # a killed process logs nothing
    return run.run_id


def test_next_start_closes_the_run_of_a_killed_process(tracker: Tracker, client: MlflowClient) -> None:
    left = left_running(tracker)
    other_seed = left_running(tracker, run_logging.training("mixed_float16", 4))
    with tracker.run(TRAINING, PARAMS):
        assert client.get_run(left).info.status == "KILLED"
        assert client.get_run(other_seed).info.status == "RUNNING"
    tracker.close_abandoned()
    assert client.get_run(other_seed).info.status == "KILLED"
    assert sorted(run.info.status for run in runs(client)) == ["FINISHED", "KILLED", "KILLED"]


def test_run_of_another_working_folder_is_closed_when_the_folder_is_gone(
    tracker: Tracker, client: MlflowClient, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of an experiment of DVC, which may still run."""
    monkeypatch.setenv("DVC_ROOT", str(project))
    shutil.copytree(project / "data", project / ".dvc/tmp/exps/a/data")
    monkeypatch.chdir(project / ".dvc/tmp/exps/a")
    left = left_running(tracker)
    monkeypatch.chdir(project)
    tracker.close_abandoned()
    assert client.get_run(left).info.status == "RUNNING"
    shutil.rmtree(project / ".dvc")
    tracker.close_abandoned()
    assert client.get_run(left).info.status == "KILLED"


def test_node_of_a_fleet_writes_for_the_checkout_of_its_head(
    tracker: Tracker, client: MlflowClient, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, colleague = provenance.checkout_id(), "of-a-colleague"
    left = {}
    for name, checkout in (("node1", head), ("node2", colleague)):
        shutil.copytree(project / "data", project / name / "data")
        digests = HeadDigests(git={}, source={}, model={}, task={}, checkout=checkout)
        files.write_json(project / name / ".halfstep/fleet.json", digests.model_dump())
        monkeypatch.chdir(project / name)
        left[name] = left_running(tracker)
    monkeypatch.chdir(project)
    tracker.close_abandoned()
    assert {name: client.get_run(run_id).info.status for name, run_id in left.items()} == {
        "node1": "KILLED",
        "node2": "RUNNING",
    }


def test_copy_of_a_checkout_does_not_close_runs_of_the_original(
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


def test_checkout_of_another_user_is_said_with_the_remedy_of_git(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # what git's own tests set
    assert provenance.git_tags() == {}
    line = "git: this checkout belongs to another user, and runs have no commit: run `git config --global --add "
    assert capsys.readouterr().out == f"{line}safe.directory {project}`\n"


class _BadRequest(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_error(400)

    do_GET = do_POST  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def error_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _BadRequest)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_server_error_at_the_start_is_reported_in_one_line(
    error_server: str, project: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    started_s = time.monotonic()
    for uri in (error_server, "http://user:secret@127.0.0.1:9"):  # no server listens on port 9
        with pytest.raises(TrackingError) as caught:
            Tracker(TrackingParams(uri=uri))
        message = str(caught.value)
        assert "\n" not in message
        assert "cannot be used" in message
        assert "check tracking.uri and MLFLOW_TRACKING_URI" in message
        assert "secret" not in message
    assert time.monotonic() - started_s < 40
    assert (capsys.readouterr().err, caplog.text) == ("", "")


def test_deleted_experiment_is_rejected(tracker: Tracker, client: MlflowClient) -> None:
    experiment = client.get_experiment_by_name(PARAMS.tracking.experiment)
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    with pytest.raises(TrackingError, match=r"has been deleted in sqlite:.*; restore it with"):
        Tracker(PARAMS.tracking)


@pytest.mark.parametrize("deleted", ["mlruns", "one run"])
def test_run_whose_artifacts_were_deleted_is_not_found(
    tracker: Tracker, client: MlflowClient, project: Path, deleted: str
) -> None:
    ids = []
    for _ in range(2):
        with tracker.run(TRAINING, PARAMS) as run:
            run.artifact(project / "data/environment.json")
            run.mark_complete("abc")
        ids.append(run.run_id)
    assert tracker.find("abc", TRAINING) == ids[1]
    one = Path(client.get_run(ids[1]).info.artifact_uri.removeprefix("file://"))
    shutil.rmtree(project / "mlruns" if deleted == "mlruns" else one)
    assert tracker.find("abc", TRAINING) == (None if deleted == "mlruns" else ids[0])


@pytest.mark.parametrize(("failure", "status"), [(None, "FINISHED"), ("the loss is nan", "FAILED")])
def test_complete_run_whose_end_was_lost_is_not_killed(
    tracker: Tracker, client: MlflowClient, failure: str | None, status: str
) -> None:
    left = left_running(tracker)
    client.set_tag(left, "result.sha256", "abc")
    if failure:
        client.set_tag(left, "failure", failure)
    tracker.close_abandoned()
    assert client.get_run(left).info.status == status
