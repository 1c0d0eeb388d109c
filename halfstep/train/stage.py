"""One training as a stage: resumes from a checkpoint, trains, writes the results, and logs them to MLflow."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from halfstep.errors import TrainingCodeError
from halfstep.inputs.snapshot import Snapshot
from halfstep.params.schema import Params
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.results.training import METRICS, MODEL, PREDICTIONS, SCORES, WEIGHTS, TrainingMetrics, write_training
from halfstep.system import files, rerun, sealing
from halfstep.system.telling import say
from halfstep.tasks import user_code
from halfstep.tasks.images.dataset import open_prepared
from halfstep.tasks.trial import Trial
from halfstep.tracking import models, run_logging
from halfstep.tracking.active_run import ActiveRun
from halfstep.tracking.tracker import Tracker
from halfstep.train import checkpoints, saving
from halfstep.train.callbacks import Epoch, epoch_line, length_line
from halfstep.train.checkpoint_files import Checkpoint
from halfstep.train.interruption import Interruption
from halfstep.train.not_trained import leave_out
from halfstep.train.resume import Session
from halfstep.train.training import TrainedTask, train


def run_stage(settings: Params, variant: str, seed: int, inputs: Snapshot | None = None) -> None:
    """Trains, writes `data/train/<variant>-<seed>/`, and logs to MLflow. A numerical failure is a result, not an error.

    So is a failure of the user's own code under a candidate: the others go on. An interrupted training resumes from its
    last checkpoint, in a new MLflow run that has the earlier epochs, too. With `inputs`, nothing is written if they
    have changed.
    """
    tracker, root = Tracker(settings.tracking), Path.cwd()
    digest = files.verify_manifest(files.PREPARED)
    trial = Trial.of(settings, variant, seed, digest)
    directory, identity = files.train_dir(variant, seed), run_logging.training(variant, seed)
    key = checkpoints.checkpoint_key(settings, variant, seed, digest)
    interruption = Interruption()
    kept = nullcontext() if TaskInfo.read(TASK_INFO).restarts else checkpoints.opened(directory.name, key)
    with interruption.time_limit(), kept as store:
        start = (store.newest() if store else None) or Checkpoint()
        with tracker.run(identity, settings) as run:
            interruption.on_timeout = lambda: run.end("KILLED")
            _log_start(run, start, trial, settings, identity.name)
            session = Session(start, store.save if store else None, interruption)
            try:
                with _sealed(trial, identity.name), run.system_metrics():
                    trained = _train(trial, settings, run, session, inputs)
            except TrainingCodeError as error:
                if variant == settings.compare.baseline:
                    raise
                os.chdir(root)
                leave_out(run, settings, variant, seed, str(error), inputs)
                return
            os.chdir(root)  # a script's folder is the working folder while it trains
            if inputs:
                inputs.require_unchanged("with the former inputs, a run goes on from the last checkpoint")
            _write_results(trained, directory, run)
        if store:
            store.remove()
    _print_result(identity.name, directory, trained.ready.task.score_name)


@contextmanager
def _sealed(trial: Trial, name: str) -> Iterator[None]:
    """In the block the user's code leaves their files as they were; a line names what it wrote."""
    if trial.runs_own_code:
        user_code.seal([trial.own_folder])
    try:
        yield
    finally:
        line = sealing.said(sealing.end(), trial.own_folder)
        if line and files.judged_folder() is None:  # `halfstep judge` says it at its end
            say(name, line)


def _log_start(run: ActiveRun, start: Checkpoint, trial: Trial, settings: Params, name: str) -> None:
    if TaskInfo.read(TASK_INFO).has_classes:
        prepared = open_prepared(verified_sha256=trial.prepared_sha256)
        images, labels = prepared.train.images, prepared.train.labels
        models.log_dataset(run, images, labels, source=settings.data.source, sha256=prepared.sha256)
    if start.step:
        epochs = settings.train.epochs
        epoch = min(len(start.epochs) + 1, epochs)
        say(name, f"resumed from step {start.step}, in epoch {epoch}/{epochs}")
        run.live_epochs(row.as_dict() for row in start.epochs)


def _train(trial: Trial, settings: Params, run: ActiveRun, session: Session, inputs: Snapshot | None) -> TrainedTask:
    def log_epoch(row: Epoch) -> None:
        run.live_epochs([row.as_dict()])

    name = run_logging.training(trial.name, trial.seed).name
    listeners: list[Callable[[Epoch], None]] = [log_epoch]
    listeners.append(length_line(name, settings.train.epochs, len(settings.train.variants) * len(settings.train.seeds)))
    listeners.append(epoch_line(name, settings.train.epochs))
    if inputs:
        listeners.append(_warning_of_edits(name, inputs))
    try:
        folder = (files.WORK_DIR / "script" / files.train_dir(trial.name, trial.seed).name).absolute()
        return train(trial, listeners=tuple(listeners), session=session, folder=folder)
    except (KeyboardInterrupt, SystemExit):
        if session.interruption.requested:
            then = "resumes it" if session.save else "starts it anew"
            print(rerun.in_its_words(f"{name}: interrupted; `dvc repro` {then}"), file=sys.stderr)
        raise


def _warning_of_edits(name: str, inputs: Snapshot) -> Callable[[Epoch], None]:
    """Returns a listener that warns once, at the end of an epoch, of parameters that were edited meanwhile."""
    warned = False

    def warn(_: Epoch) -> None:
        nonlocal warned
        if not warned and (names := inputs.edited_parameters()):
            warned = True
            print(
                f"{name}: {names} changed in params.yaml; this training has the former value and will not be recorded, "
                "unless you restore it before the end",
                file=sys.stderr,
            )

    return warn


def _write_results(trained: TrainedTask, directory: Path, run: ActiveRun) -> None:
    model, keeps_predictions = trained.model, trained.ready.keeps_predictions
    name = MODEL if keeps_predictions else saving.model_file(model)
    if trained.ready.float32.paths and name == MODEL and (lost := saving.lost_on_loading(model)):
        name = WEIGHTS
        shown = f"{', '.join(lost[:3])}{' and others' if len(lost) > 3 else ''}"
        say(directory.name, f"saved as weights: plain Keras would load {shown} in 16 bits, against float32_layers")
    digest = write_training(
        directory,
        trained.metrics(),
        [row.as_dict() for row in trained.epochs],
        lambda path: saving.save(model, path),
        trained.outputs,
        model=name,
        outputs_file=PREDICTIONS if keeps_predictions else SCORES,
    )
    if not trained.failure:
        in_mlflow_format = name == MODEL and keeps_predictions
        models.log_model(run, model) if in_mlflow_format else run.artifact(directory / name, "model")
    run_logging.log_training(run, directory, digest)


def _print_result(name: str, directory: Path, score_name: str | None) -> None:
    metrics = TrainingMetrics.read(directory / METRICS)
    if metrics.failed:
        command = f"`dvc repro -f -s train@{directory.name}`"
        say(name, f"failed: {metrics.reason}; the comparison leaves it out; {command} tries again")
    else:
        say(name, f"test {score_name} {metrics.test_score:.4f}, {metrics.train_time_s:.1f} s")
