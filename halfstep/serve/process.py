"""What the processes of `serve` run. Does not import TensorFlow, which the parent must not do."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from halfstep.profile.records import ArmConfig

EXPORTING = "halfstep.serve.exporting"  # what their server imports first


def export_training(connection: Connection, *arguments: Any) -> None:
    """Exports one training, and sends what was exported, or the message of an error."""
    from halfstep.serve import exporting

    exporting.serve(connection, *arguments)


def serve_format(connection: Connection, config: ArmConfig) -> None:
    """Answers the calls of the parent, as the workers of `profile` do."""
    from halfstep.profile import worker
    from halfstep.serve.worker import FormatWorker

    worker.serve(connection, FormatWorker, config)
