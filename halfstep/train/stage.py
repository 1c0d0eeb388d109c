"""One training as a stage: resumes from a checkpoint, trains, writes the results, and logs them to MLflow."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from halfstep.errors import TrainingCodeError
from halfstep.inputs.snapshot import Snapshot
from halfstep.params.schema import Params
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.results.training import METRICS, MODEL, PREDICTIONS, SCORES, TrainingMetrics, write_training
from halfstep.system import files, rerun, sealing, xla_flags
from halfstep.system.telling import say
from halfstep.tasks.images.arrays import open_prepared
from halfstep.tasks.trial import Trial
from halfstep.tracking import models, run_logging
from halfstep.tracking.active_run import ActiveRun
from halfstep.tracking.tracker import Tracker
from halfstep.train import checkpoints
from halfstep.train.checkpoint_files import Checkpoint
from halfstep.train.elsewhere import train_elsewhere
from halfstep.train.epochs import Epoch, epoch_line, length_line
from halfstep.train.interruption import Interruption
from halfstep.train.not_trained import leave_out
from halfstep.train.request import Request, Trained


def run_stage(settings: Params, variant: str, seed: int, inputs: Snapshot | None = None) -> None:
    """Trains, writes `data/train/<variant>-<seed>/`, and logs to MLflow. A numerical failure is a result, not an error.

    So is a failure of the user's own code under a candidate: the others go on. An interrupted training resumes from its
    last checkpoint, in a new MLflow run that has the earlier epochs, too. With `inputs`, nothing is written if they
    have changed.
    """
    tracker = Tracker(settings.tracking)
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
            folders = ((files.WORK_DIR / kind / directory.name).absolute() for kind in ("script", "models"))
            request, listeners = Request(start, store, *folders), _listeners(trial, settings, run, inputs)
            try:
                with run.system_metrics():
                    trained, model = _train(trial, request, interruption, listeners)
            except TrainingCodeError as error:
                if variant == settings.compare.baseline:
                    raise
                leave_out(run, settings, variant, seed, str(error), inputs)
                return
            if inputs:
                inputs.require_unchanged("with the former inputs, a run goes on from the last checkpoint")
            _write_results(trained, request.model, directory, run, model)
        if store:
            store.remove()
    _print_result(identity.name, directory, trained.result.score_name)


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


def _listeners(
    trial: Trial, settings: Params, run: ActiveRun, inputs: Snapshot | None
) -> list[Callable[[Epoch], None]]:
    """What is called at the end of each epoch."""
    name = run_logging.training(trial.name, trial.seed).name
    trainings = len(settings.trained_variants) * len(settings.train.seeds)
    listeners = [
        lambda row: run.live_epochs([row.as_dict()]),
        length_line(name, settings.train.epochs, trainings),
        epoch_line(name, settings.train.epochs),
    ]
    return [*listeners, *([_warning_of_edits(name, inputs)] if inputs else [])]


def _train(
    trial: Trial,
    request: Request,
    interruption: Interruption,
    listeners: Sequence[Callable[[Epoch], None]],
) -> tuple[Trained, Any]:
    """Trains, a script and in another interpreter in a process of its own; None in place of its model.

    The user's files stay as they were; a line names what their code has written.
    """
    name, written = run_logging.training(trial.name, trial.seed).name, tuple[str, ...]()

    def on_epoch(row: Epoch) -> None:
        for listener in listeners:
            listener(row)

    shutil.rmtree(request.model, ignore_errors=True)
    request.model.mkdir(parents=True)
    try:
        if trial.task.script is not None or trial.variant.python is not None:
            trained = train_elsewhere(trial, request, interruption, on_epoch)
            written = trained.written
            return trained, None
        from halfstep.train import process  # imports TensorFlow

        with xla_flags.programs_in(trial.programs):
            return process.run(trial, request, interruption, on_epoch)
    except (KeyboardInterrupt, SystemExit):
        if interruption.requested:
            then = "resumes it" if request.checkpoints else "starts it anew"
            print(rerun.in_its_words(f"{name}: interrupted; `dvc repro` {then}"), file=sys.stderr)
        raise
    finally:
        line = sealing.said((*written, *sealing.end()), trial.own_folder) if trial.runs_own_code else ""
        if line and files.judged_folder() is None:  # `halfstep judge` says it at its end
            say(name, line)


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


def _write_results(trained: Trained, saved: Path, directory: Path, run: ActiveRun, model: Any) -> None:
    """Writes and logs a training; `saved` is the folder of its model, which MLflow gets in its own format if it can."""
    result = trained.result
    if lost := trained.lost:
        shown = f"{', '.join(lost[:3])}{' and others' if len(lost) > 3 else ''}"
        say(directory.name, f"saved as weights: plain Keras would load {shown} in 16 bits, against float32_layers")
    digest = write_training(
        directory,
        result.metrics(),
        [row.as_dict() for row in result.epochs],
        (saved / trained.model).replace,
        result.outputs,
        model=trained.model,
        outputs_file=PREDICTIONS if result.keeps_predictions else SCORES,
    )
    if result.failure is None:
        in_mlflow_format = model is not None and trained.model == MODEL and result.keeps_predictions
        models.log_model(run, model) if in_mlflow_format else run.artifact(directory / trained.model, "model")
    run_logging.log_training(run, directory, digest)
    shutil.rmtree(saved, ignore_errors=True)


def _print_result(name: str, directory: Path, score_name: str | None) -> None:
    metrics = TrainingMetrics.read(directory / METRICS)
    if metrics.failed:
        command = f"`dvc repro -f -s train@{directory.name}`"
        say(name, f"failed: {metrics.reason}; the comparison leaves it out; {command} tries again")
    else:
        say(name, f"test {score_name} {metrics.test_score:.4f}, {metrics.train_time_s:.1f} s")
