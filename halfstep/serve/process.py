"""What the process of an arm runs. Does not import TensorFlow, which the parent must not do."""

from __future__ import annotations

from multiprocessing.connection import Connection

from halfstep.tasks.trial import Trial


def serve_format(connection: Connection, trial: Trial) -> None:
    """Answers the calls of the parent, as the workers of `profile` do."""
    from halfstep.serve.records import ServedTrial

    assert isinstance(trial, ServedTrial), "it was made by the stage"
    if trial.is_keras:
        from halfstep.profile import worker
        from halfstep.serve.keras_worker import KerasWorker

        worker.serve(connection, KerasWorker, trial)
        return
    from halfstep.serve.worker import serve

    serve(connection, trial)
