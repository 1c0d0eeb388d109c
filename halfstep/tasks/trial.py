"""What is trained: a task under a variant with a seed, for all processes. Does not import TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from halfstep.inputs.own_model import OWN_MODEL
from halfstep.params.schema import ModelParams, Params, TaskParams, TrainParams, Variant
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.system import files

if TYPE_CHECKING:
    from typing import Self

SCRIPT_LOGS = files.WORK_DIR / "script"  # what scripts print
FITS = "fits"  # in the folder of the prepared data: what a script trains before the call of `fit` that is judged


@dataclass(frozen=True)
class CallSite:
    """Where a script calls the `fit` that is judged, and what was before.

    Attributes:
        line: of the script, from 1.
        number: of the call, from 1.
        later_lines: of the script, where `fit` is called after that line.
        is_in_loop: whether the line is in a loop, so that the script trains several times.
        seconds: from the start of the script until the call.
        step: what is called once for each step, if not `fit`.
        notes: what the script set, and whether it is kept or the variant or the seed decides, in words.
    """

    line: int
    number: int
    later_lines: tuple[int, ...]
    is_in_loop: bool
    seconds: float
    step: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """A task under a variant with a seed: what `prepare` tries, `train` trains, and a worker measures.

    Attributes:
        train: with what the variant's entry changes.
        variant: an entry of `variants`.
        seed: of the initial weights, which are the same under every policy, and of the order of the examples.
        prepared_sha256: sha256 of the manifest of the prepared data, if another process has verified the files. Large
            files are then not read again. None if nobody has.
        directory: folder of the prepared data.
        batch_key: the parameter that says how many examples a step has, for messages.
        name: of the variant, or of the arm that measures it: processes of one policy may run a script at once.
        known: what `prepare` has found, for a process in an interpreter that cannot read it.
        programs: absolute path of the folder where XLA keeps what it compiles, for this process alone; None: nowhere.
    """

    task: TaskParams
    model: ModelParams
    train: TrainParams
    variant: Variant
    seed: int
    prepared_sha256: str | None = None
    directory: Path = files.PREPARED
    batch_key: str = "train.batch_size"
    name: str = ""
    known: TaskInfo | None = None
    programs: Path | None = None

    @classmethod
    def of(
        cls,
        settings: Params,
        name: str,
        seed: int,
        prepared_sha256: str | None = None,
        directory: Path = files.PREPARED,
    ) -> Self:
        """The task as an entry of `variants` says."""
        entry = settings.variants[name]
        key = "train.batch_size" if entry.batch_size is None else f"variants.{name}.batch_size"
        task, train = entry.task_of(settings.task), entry.applied_to(settings.train)
        path = directory / TASK_INFO.name
        known = TaskInfo.read(path) if prepared_sha256 is not None and path.exists() else None
        return cls(task, settings.model, train, entry, seed, prepared_sha256, directory, key, name, known)

    @property
    def info(self) -> TaskInfo:
        """What `prepare` has found.

        Raises:
            DataError, CorruptFileError: its file is missing or damaged.
        """
        return self.known or TaskInfo.read(self.directory / TASK_INFO.name)

    def in_float32(self) -> Self:
        """The same task with a model in float32, whatever the variant's policy."""
        float32 = self.variant.model_copy(update={"policy": "float32", "float32_layers": ()})
        return replace(self, variant=float32)

    @property
    def preload(self) -> str | None:
        """The module that the server of its processes imports first; None: the worker of `profile`."""
        return None

    @property
    def subject(self) -> str:
        """Names the task in messages."""
        return f"model.name = {self.model.name}" if self.task.uses_data_and_model else self.task.subject

    def script_log(self, prefix: str = "") -> Path:
        """The file for what a script prints in this process."""
        return (SCRIPT_LOGS / f"{prefix}{self.name}-{self.seed}.txt").absolute()

    @property
    def own_folder(self) -> Path:
        """The folder of the user's code."""
        return self.task.module_folder if self.task.script is None else self.task.script_folder

    @property
    def runs_own_code(self) -> bool:
        """Whether code of the user's own runs in the training."""
        return not self.task.uses_data_and_model or OWN_MODEL.fullmatch(self.model.name) is not None
