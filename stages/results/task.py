"""`data/prepared/task.json`: what is trained, and in which score its quality is judged."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stages import files
from stages.results.artifact import Document

TASK_INFO = files.PREPARED / "task.json"
IMAGES = "images"


class TaskInfo(Document):
    """Description of the task, written by `prepare`.

    Attributes:
        name: `task.name`: `images`, or `package.module:function`.
        score_name: `accuracy` for images.
        score_kind: `score` for a value of each test example, `metric` for one number of the whole test set.
        examples: number of test examples.
        steps_per_epoch: training steps of an epoch, at the batch size that `prepare` built the task with; None for
            `images`, whose arrays fit every batch size.
        data_sha256: sha256 of the first batches; None for `images`, whose files have checksums.
    """

    VERSION: ClassVar[int] = 1

    name: str
    score_name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")
    score_kind: Literal["score", "metric"]
    examples: int = Field(ge=1)
    steps_per_epoch: int | None = None
    data_sha256: str | None = None

    @property
    def is_images(self) -> bool:
        """Whether images are classified: class names, labels and probabilities are known."""
        return self.name == IMAGES

    @property
    def examples_word(self) -> str:
        """What the examples are called."""
        return "images" if self.is_images else "examples"

    @property
    def summary_line(self) -> str:
        """A line that says what was prepared."""
        return (
            f"prepare: {self.name}: {self.steps_per_epoch:,} steps per epoch, {self.examples:,} test examples, "
            f"{self.score_kind} {self.score_name}"
        )


def images_task(test_images: int) -> TaskInfo:
    """The task of classifying images."""
    return TaskInfo(name=IMAGES, score_name="accuracy", score_kind="score", examples=test_images)
