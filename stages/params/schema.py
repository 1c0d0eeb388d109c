"""The sections of `params.yaml`: names, types, units, ranges and defaults.

The descriptions are what the README's table of parameters says; a test holds the two against each other.
"""

from __future__ import annotations

import re
import warnings
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Policy = Literal["float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"]

# `compare.register`: the class keeps its name although the metaclass of all models has a method of that name
warnings.filterwarnings("ignore", message='Field name "register" in "CompareParams" shadows')

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def _number_from_text(value: Any) -> Any:
    # `dvc exp run -S train.learning_rate=0.00001` writes 1e-05, which YAML 1.1 reads as text
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _tuple_from_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _augment_from_bool(value: Any) -> Any:
    if value is True:
        return {"flip": True, "rotate_degrees": 10.0, "shift_fraction": 0.1}
    return {} if value is False or value is None else value


Number = Annotated[float, BeforeValidator(_number_from_text), Field(allow_inf_nan=False)]
Names = Annotated[tuple[str, ...], BeforeValidator(_tuple_from_list), Field(min_length=1)]
Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...], BeforeValidator(_tuple_from_list), Field(min_length=1)
]
BatchSizes = Annotated[tuple[Annotated[int, Field(ge=1, le=65536)], ...], BeforeValidator(_tuple_from_list)]


class Section(BaseModel):
    """A mapping of `params.yaml`: closed to unknown keys, frozen, and never coerced from another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DataParams(Section):
    """Which images, and how they are packed and split."""

    source: Literal["digits", "cifar10", "folder", "synthetic"] = Field("digits", description="where images come from")
    path: str = Field("data/raw", min_length=1, description="root of the class folders, for `folder`")
    image_size: int = Field(32, ge=8, le=1024, description="side after resizing, in pixels")
    color: Literal["rgb", "grey"] = Field("rgb", description="three channels or one")
    test_fraction: Number = Field(0.3, gt=0, lt=1, description="share of the images held out for the test")
    validation_fraction: Number = Field(0.1, gt=0, lt=1, description="share held out to watch the training")
    split_seed: int = Field(0, ge=0, le=2**31 - 1, description="seed of the split, and of synthetic images")
    max_bad_fraction: Number = Field(0.0, ge=0, le=1, description="share of unreadable images that is tolerated")
    max_pixels: int = Field(50_000_000, ge=1, description="an image with more pixels is rejected before it is decoded")
    synthetic_images: int = Field(2048, ge=10, description="number of images, for `synthetic`")
    synthetic_classes: int = Field(10, ge=2, le=10_000, description="number of classes, for `synthetic`")


class ModelParams(Section):
    """Which network is trained."""

    name: str = Field(
        "cnn",
        min_length=1,
        description="`cnn`, `resnet20`, `resnet50`, `keras.applications.<Name>`, or `package.module:function`",
    )


class Augment(Section):
    """Random changes of the training images, made outside of the model; each is off by default."""

    flip: bool = Field(False, description="mirror left and right, for one image in two")
    rotate_degrees: Number = Field(0.0, ge=0, le=180, description="largest rotation either way, in degrees")
    shift_fraction: Number = Field(0.0, ge=0, lt=1, description="largest shift, as a share of the image's side")

    @property
    def enabled(self) -> bool:
        """Whether any of the changes is asked for."""
        return self.flip or self.rotate_degrees > 0 or self.shift_fraction > 0


class TrainParams(Section):
    """How each variant is trained; the same for all of them, so that they differ in precision alone."""

    variants: Names = Field(
        ("float32", "mixed_float16", "mixed_bfloat16"), description="which entries of `variants` are run"
    )
    seeds: Seeds = Field((0,), description="one training of each variant for each seed")
    epochs: int = Field(8, ge=1, le=100_000, description="passes over the training images")
    batch_size: int = Field(32, ge=1, le=65536, description="images a step")
    optimizer: Literal["adam", "adamw", "sgd"] = Field("adam", description="as in Keras; `sgd` with momentum 0.9")
    learning_rate: Number = Field(0.005, gt=0, le=100, description="highest learning rate of the schedule")
    schedule: Literal["cosine", "constant"] = Field("cosine", description="learning rate after the warm-up")
    warmup_epochs: Number = Field(1.0, ge=0, description="epochs over which the learning rate rises to its highest")
    augment: Annotated[Augment, BeforeValidator(_augment_from_bool)] = Field(
        Augment(), description="random changes of the training images; `false` is none"
    )
    input_threads: int = Field(2, ge=1, le=256, description="fixed number of threads of the input pipeline")
    checkpoint_every: int = Field(
        1, ge=1, description="epochs after which an interrupted training can go on from there"
    )
    require_gpu: bool = Field(False, description="refuse to compute on a CPU where no GPU can be used")


class Variant(Section):
    """One way to compute: what is compared."""

    policy: Policy = Field(description="a Keras dtype policy")
    xla: bool = Field(False, description="compile the step with XLA")
    tf32: bool = Field(True, description="allow TensorFloat-32 where the GPU has it")
    onednn: bool = Field(True, description="let TensorFlow use oneDNN on a CPU, where it would by itself")

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that must be set before TensorFlow is imported."""
        return {} if self.onednn else {"TF_ENABLE_ONEDNN_OPTS": "0"}


class ProfileParams(Section):
    """The timing protocol: variants take turns, each in a process of its own."""

    processes: int = Field(8, ge=2, le=50, description="most times that each variant's process is started afresh")
    rounds: int = Field(
        200, ge=1, le=10_000, description="most timed rounds in each process; in each, every variant has a turn"
    )
    steps_per_round: int = Field(6, ge=1, le=10_000, description="training steps in one turn")
    target_precision: Number = Field(
        0.02,
        gt=0,
        lt=1,
        description="measuring ends once the interval of each speed-up is this narrow (half its width)",
    )
    max_seconds: Number = Field(
        30.0, gt=0, description="seconds of timing after which it ends all the same, start-up not counted"
    )
    warmup_steps: int = Field(8, ge=1, le=10_000, description="training steps before anything is timed")
    single_step_rounds: int = Field(
        1, ge=1, le=1000, description="rounds in each process in which steps are timed one by one, for the percentiles"
    )
    trace_steps: int = Field(8, ge=2, le=50, description="training steps in the trace")
    inference_batch_sizes: BatchSizes = Field((1, 32), description="latency is measured at each")
    inference_calls_per_round: int = Field(4, ge=1, le=10_000, description="calls in one turn, at each batch size")
    find_max_batch: bool = Field(
        False, description="look for the largest batch that still trains, for each variant: minutes"
    )
    memory_limit_mib: int | None = Field(
        None, ge=64, description="memory that `find_max_batch` may fill on a CPU, in MiB; `null`: half of what is free"
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="seed of the order of turns")


class CompareParams(Section):
    """What counts as faster, and as the same accuracy; declared before anything is measured."""

    baseline: str = Field("float32", min_length=1, description='the "before"')
    accuracy_margin: Number = Field(
        0.01, gt=0, lt=1, description='largest loss of accuracy that still counts as "the same", as a fraction'
    )
    min_speedup: Number = Field(1.05, ge=1, le=100, description="smallest speed-up worth having, as a ratio")
    gate: bool = Field(False, description="`compare` exits non-zero unless a candidate is adopted")
    register: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="name in MLflow's model registry under which the winner's model is put, as `champion`",
    )


class TrackingParams(Section):
    """Where MLflow keeps the runs."""

    experiment: str = Field(
        "mixed-precision", min_length=1, max_length=250, description="name of the MLflow experiment"
    )
    uri: str | None = Field(
        None,
        min_length=1,
        description="tracking store; `null`: `MLFLOW_TRACKING_URI`, else `mlflow.db` at the root of the checkout",
    )


class Params(Section):
    """All of `params.yaml`."""

    data: DataParams = DataParams()
    model: ModelParams = ModelParams()
    train: TrainParams = TrainParams()
    variants: Annotated[dict[str, Variant], Field(min_length=1)] = {
        "float32": Variant(policy="float32"),
        "mixed_float16": Variant(policy="mixed_float16", onednn=False),
        "mixed_bfloat16": Variant(policy="mixed_bfloat16"),
    }
    profile: ProfileParams = ProfileParams()
    compare: CompareParams = CompareParams()
    tracking: TrackingParams = TrackingParams()
