"""What the processes of the stage are given, and what they answer. Does not import TensorFlow."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from halfstep.errors import CorruptFileError, DataError
from halfstep.results.artifact import Document
from halfstep.results.serving import Export, Tensor
from halfstep.system import files
from halfstep.tasks.trial import Trial
from halfstep.words.formats import FORMATS, KERAS

if TYPE_CHECKING:
    from typing import Self

EXPORTING = "halfstep.serve.exporting"  # exports one training, and imports TensorFlow
_TIMING = "halfstep.serve.worker"  # times a file, and imports no runtime before it is asked to
INPUTS = "inputs.npz"
_EXPORTED = "exported.json"


@dataclass(frozen=True)
class Request:
    """How a training is exported.

    Attributes:
        trained: the folder of the training, absolute; None where nothing was trained.
        folder: to which the paths of `results.serving` are relative, absolute.
        formats: to export to, without Keras.
        examples: rows of the inputs that are written for the timing.
    """

    trained: Path | None
    folder: Path
    formats: tuple[str, ...]
    examples: int


class Exported(Document):
    """What was exported of one training.

    Attributes:
        exports: by format.
        parameters: number of the model's weights.
        inputs, outputs: of the model.
        has_died: whether the process ended without an answer: the next session tries again.
    """

    VERSION: ClassVar[int] = 2

    exports: tuple[Export, ...] = ()
    parameters: int = 0
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    has_died: bool = False

    def keep(self, folder: Path) -> None:
        """Writes it beside the files, for a session that goes on after a kill."""
        self.write(folder / _EXPORTED)
        files.write_manifest(folder)

    @classmethod
    def kept(cls, folder: Path) -> Self | None:
        """What an earlier session has exported to a folder; None if it was interrupted."""
        with suppress(DataError, CorruptFileError):
            files.verify_manifest(folder)
            return cls.read(folder / _EXPORTED)
        return None


@dataclass(frozen=True)
class ServedTrial(Trial):
    """What the worker of an arm needs.

    Attributes:
        format: of its file.
        file: what it predicts with, absolute; None for Keras, which builds the model.
        inputs: the file with the flat inputs, absolute.
        served_threads: of the runtime; None: its default.
        parameters: number of the model's weights.
    """

    format: str = KERAS
    file: Path | None = None
    inputs: Path = Path()
    served_threads: int | None = None
    parameters: int = 0

    @property
    def is_keras(self) -> bool:
        """Whether Keras predicts, in the variant or with quantized weights."""
        return self.format == KERAS or FORMATS[self.format].is_keras_file

    @property
    def preload(self) -> str:
        """The module that the server of its processes has imported: without TensorFlow where the runtime needs none."""
        return EXPORTING if self.is_keras or FORMATS[self.format].has_tensorflow else _TIMING
