"""What the process of a format runs. Does not import TensorFlow, which the parent must not do."""

from __future__ import annotations

from multiprocessing.connection import Connection

from halfstep.tasks.trial import Trial


def serve_format(connection: Connection, trial: Trial) -> None:
    """Answers the calls of the parent, as the workers of `profile` do."""
    from halfstep.profile import worker
    from halfstep.serve.worker import FormatWorker

    worker.serve(connection, FormatWorker, trial)
