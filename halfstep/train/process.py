"""What trains, in the process of the stage or in one of its own: there a script, or what another interpreter runs.

Imports TensorFlow.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, replace
from multiprocessing.connection import Connection
from pathlib import Path

from halfstep.errors import HalfstepError
from halfstep.system import sealing
from halfstep.tasks import user_code
from halfstep.tasks.fit_call import inside
from halfstep.tasks.trial import Trial
from halfstep.tensorflow_import import keras
from halfstep.train import saving
from halfstep.train.epochs import Epoch
from halfstep.train.interruption import Interruption
from halfstep.train.request import Interrupted, Request, Trained
from halfstep.train.result import TrainingResult
from halfstep.train.resume import Session
from halfstep.train.training import train


def serve(connection: Connection, trial: Trial, request: Request) -> None:
    """What the process runs: sends each `Epoch`, then `Trained`, `Interrupted`, or the error that ended it."""
    interruption = Interruption()

    def answer() -> None:
        with interruption.time_limit():
            try:
                trained, _ = run(trial, request, interruption, connection.send)
                connection.send(replace(trained, written=tuple(sealing.end())))
            except HalfstepError as error:
                connection.send(error)
            except (KeyboardInterrupt, SystemExit):
                connection.send(Interrupted())
            except BrokenPipeError:
                pass  # the stage has been killed

    with interruption.deferred():  # in a script, the training itself begins later
        inside(trial, answer)


def run(
    trial: Trial, request: Request, interruption: Interruption, on_epoch: Callable[[Epoch], None]
) -> tuple[Trained, keras.Model]:
    """Trains, and saves the model; errors as of `train`. The user's files stay sealed.

    Returns:
        What the stage writes, and the model.
    """
    root, store = Path.cwd(), request.checkpoints
    if trial.runs_own_code:
        user_code.seal([trial.own_folder])
    session = Session(request.start, store.save if store else None, interruption)
    try:
        trained = train(trial, listeners=(on_epoch,), session=session, folder=request.folder)
    finally:
        os.chdir(root)  # a script's folder is the working folder while it trains
        if store:
            store.flush()
    name, lost = saving.form_of(trained.ready)
    saving.save(trained.model, request.model / name)
    result = TrainingResult(**{field.name: getattr(trained, field.name) for field in fields(TrainingResult)})
    return Trained(result, name, tuple(lost)), trained.model
