"""What a worker process of `serve` runs. Does not import TensorFlow, which the parent must not do."""

from __future__ import annotations

from multiprocessing.connection import Connection

from stages.profile.records import ArmConfig


def serve_format(connection: Connection, config: ArmConfig) -> None:
    """Answers the calls of the parent, as the workers of `profile` do."""
    from stages.profile import worker
    from stages.serve.worker import FormatWorker

    worker.serve(connection, FormatWorker, config)
