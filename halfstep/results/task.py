"""`data/prepared/task.json`: what is trained, and in which score its quality is judged."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from halfstep.params.schema import Params
from halfstep.results.artifact import Document, Record
from halfstep.system import files
from halfstep.system.records import Field

TASK_INFO = files.TASK_INFO
LONG_S = 600.0  # of all trainings together: a first answer about the speed should come before longer ones
IMAGES = "images"


class ScriptInfo(Record):
    """What a script's call of `fit` says.

    Attributes:
        line: of the call, in the script.
        epochs: that the script asks for.
        batch_size: examples of its first batch.
        folder: in which the script runs, where `prepare` has found that it is another than its own.
    """

    line: int
    epochs: int
    batch_size: int
    folder: str | None = None


class TaskInfo(Document):
    """Description of the task, written by `prepare`.

    Attributes:
        name: `task.name`: `images`, or `package.module:function`; of a script the name of its file.
        score_name: `accuracy` for images.
        score_kind: `score` for a value of each test example, `metric` for one number of the whole test set.
        examples: number of test examples.
        steps_per_epoch: training steps of an epoch, at the batch size that `prepare` built the task with; None for
            `images`, whose arrays fit every batch size.
        steps_by_batch: the same for other batches that entries of `variants` name.
        data_sha256: sha256 of the first batches; None for `images`, whose files have checksums.
        script: what the call of `fit` says; None for tasks without a script.
        speed_only: why nothing is trained and scored; None otherwise. `score_name` and `examples` then say nothing.
        can_infer: whether the model has outputs for inputs alone.
        restarts: whether an interrupted training starts anew, because it has callbacks of its own.
        left_out: variants under which the task cannot be trained, with the reason.
        reads: sha256 of the files in its repository that a script reads, by path from the folder of `params.yaml`. A
            change of one runs the stages again.
        first_weights: as in `metrics.json`, by seed; of a script, under the baseline.
        refusals: paths of the layers that fail in 16 bits, and compute in float32 instead, by variant.
    """

    VERSION: ClassVar[int] = 1

    name: str
    score_name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")
    score_kind: Literal["score", "metric"]
    examples: int = Field(ge=1)
    steps_per_epoch: int | None = None
    steps_by_batch: dict[int, int] = Field(default_factory=dict)
    data_sha256: str | None = None
    script: ScriptInfo | None = None
    speed_only: str | None = None
    can_infer: bool = True
    restarts: bool = False
    left_out: dict[str, str] = Field(default_factory=dict)
    refusals: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    reads: dict[str, str] | None = None
    first_weights: dict[int, str] | None = None

    def steps_at(self, batch_size: int) -> int | None:
        """Training steps of an epoch at a batch size."""
        return self.steps_by_batch.get(batch_size, self.steps_per_epoch)

    @property
    def has_classes(self) -> bool:
        """Whether the names of the classes, the labels and the probabilities are known, as of images."""
        return self.name == IMAGES

    @property
    def examples_word(self) -> str:
        """What the examples are called."""
        return "images" if self.has_classes else "examples"

    @property
    def summary_line(self) -> str:
        """A line that says what was prepared."""
        if self.speed_only is not None:
            return f"prepare: {self.name}: {self.steps_per_epoch:,} steps per epoch; speed only: {self.speed_only}"
        return (
            f"prepare: {self.name}: {self.steps_per_epoch:,} steps per epoch, {self.examples:,} test examples, "
            f"{self.score_kind} {self.score_name}"
        )


class StepTime(Document):
    """How long a step of the baseline took where `prepare` tried it. No stage depends on it.

    Attributes:
        seconds: about.
    """

    VERSION: ClassVar[int] = 1

    seconds: float


def step_time_file(prepared: Path, folder: Path = Path()) -> Path:
    """Its file, of the pipeline in `folder`, by its prepared data."""
    digest = files.sha256_file(prepared / files.MANIFEST)
    return folder / files.WORK_DIR / "step_times" / f"{digest[:16]}.json"


def long_trainings_s(settings: Params, folder: Path = Path()) -> float | None:
    """About the seconds of all trainings, each as fast as the baseline's; None up to `LONG_S`, and if it is not known.

    Args:
        settings: all parameters.
        folder: of the pipeline.
    """
    info, path, train = (
        TaskInfo.read(folder / TASK_INFO),
        step_time_file(folder / files.PREPARED, folder),
        settings.train,
    )
    epochs = info.script.epochs if info.script is not None and train.epochs is None else train.epochs
    if not path.is_file() or info.steps_per_epoch is None or info.speed_only or epochs is None:
        return None
    trainings = len(train.seeds) * len(set(settings.trained_variants) - info.left_out.keys())
    seconds = StepTime.read(path).seconds * info.steps_per_epoch * epochs * trainings
    return seconds if seconds > LONG_S else None


def resolved(settings: Params) -> Params:
    """The parameters with what `prepare` has found of the task.

    Raises:
        DataError: `prepare` has not run.
        CorruptFileError: its file is damaged.
    """
    info = TaskInfo.read(TASK_INFO)
    numbers: dict[str, int] = {"epochs": 0} if info.speed_only else {}
    if info.script is not None:
        epochs = info.script.epochs if settings.train.epochs is None else settings.train.epochs
        numbers = {"epochs": epochs, "batch_size": info.script.batch_size} | numbers
    task = settings.task
    if info.script is not None and info.script.folder is not None:
        task = task.model_copy(update={"folder": info.script.folder})
    train = settings.train.model_copy(update=numbers)
    sizes = settings.profile.inference_batch_sizes if info.can_infer else ()
    profile = settings.profile.model_copy(update={"inference_batch_sizes": sizes})
    variants = {name: entry.with_float32(info.refusals.get(name, ())) for name, entry in settings.variants.items()}
    return settings.model_copy(update={"task": task, "train": train, "profile": profile, "variants": variants})


def left_out(variant: str) -> str | None:
    """Why the user's task or script fails under a variant, as `prepare` has found; None if it does not."""
    return TaskInfo.read(TASK_INFO).left_out.get(variant)


def images_task(test_images: int) -> TaskInfo:
    """The task of classifying images."""
    return TaskInfo(name=IMAGES, score_name="accuracy", score_kind="score", examples=test_images)
