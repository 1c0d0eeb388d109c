"""What the stage and the process that trains give each other. Does not import TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from halfstep.train.checkpoint_files import Checkpoint, Checkpoints
from halfstep.train.result import TrainingResult

PROGRAM = "halfstep.train.process"  # it imports TensorFlow


@dataclass(frozen=True)
class Request:
    """How a training runs.

    Attributes:
        start: checkpoint to resume from.
        checkpoints: where further ones are stored, which the stage has locked; None if none are.
        folder: absolute path; where callbacks of a task or script write files, emptied first.
        model: absolute path of a folder for the trained model.
    """

    start: Checkpoint
    checkpoints: Checkpoints | None
    folder: Path
    model: Path


@dataclass(frozen=True)
class Trained:
    """A training that has ended, without its model.

    Attributes:
        result: the rest.
        model: name of the model's file in the folder that was asked for.
        lost: paths of the layers for which the model is saved as weights, as `saving.lost_on_loading` returns them.
        written: the user's files that their code has changed, which were put back.
    """

    result: TrainingResult
    model: str
    lost: tuple[str, ...]
    written: tuple[str, ...] = ()


@dataclass(frozen=True)
class Interrupted:
    """A training that a signal has ended."""
