"""The sections of `params.yaml`: names, types, units, ranges and defaults.

`docs/parameters.md` is generated from the descriptions, by `halfstep params`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from halfstep.machine import fingerprint
from halfstep.params import derived
from halfstep.system.files import resolve_data_path
from halfstep.system.records import BaseModel, BeforeValidator, ConfigDict, Field, WrapValidator
from halfstep.words.formats import FORMATS, KERAS
from halfstep.words.policies import POLICIES, DTypePolicy

if TYPE_CHECKING:
    Policy = str
    FormatName = str
else:
    Policy = Literal[tuple(POLICIES)]
    FormatName = Literal[tuple(name for name, item in FORMATS.items() if item.file_of is None)]
QUANTIZED_POLICIES = ("int8", "float8", "int4", "gptq", "awq")  # how Keras's names of quantized policies begin


def _tuple_from_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Number = Annotated[float, Field(allow_inf_nan=False)]
# No name, path or URI needs control characters, separators of lines, or marks that reverse the direction of writing.
ONE_LINE = r"^[^\p{Cc}\p{Zl}\p{Zp}\x{202A}-\x{202E}\x{2066}-\x{2069}]*$"
Text = Annotated[str, Field(pattern=ONE_LINE)]
Names = Annotated[tuple[Text, ...], BeforeValidator(_tuple_from_list), Field(min_length=1)]
Paths = Annotated[tuple[Annotated[Text, Field(min_length=1)], ...], BeforeValidator(_tuple_from_list)]
Patterns = Annotated[
    tuple[Annotated[Text, Field(min_length=1, max_length=500)], ...], BeforeValidator(_tuple_from_list)
]
Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...], BeforeValidator(_tuple_from_list), Field(min_length=1)
]
# `prepare` finds out what `null` stands for; the stages after it read numbers (`results.task.resolved`).
IntOrFromScript = Annotated[int, WrapValidator(lambda value, check: value if value is None else check(value))]
Environment = dict[
    Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")],
    Annotated[Text, BeforeValidator(lambda value: str(value) if type(value) is int else value)],
]
BatchSizes = Annotated[tuple[Annotated[int, Field(ge=1, le=65536)], ...], BeforeValidator(_tuple_from_list)]


class Section(BaseModel):
    """A mapping in `params.yaml`. Rejects unknown keys and does not convert types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_OF_ROOTS = (".git", "pyproject.toml", "setup.py", "requirements.txt")  # what a repository has at its root


class TaskParams(Section):
    """What is trained. The sections `data` and `model` describe `images`; a task of your own does not use them."""

    script: str | None = Field(
        None,
        pattern=ONE_LINE,
        min_length=1,
        description="a training script, which is run unchanged up to its first call of `fit`, or `-m package.module` "
        "as on Python's command line; `null`: `name` says what is trained",
    )
    folder: str | None = Field(
        None,
        pattern=ONE_LINE,
        min_length=1,
        description="the folder in which the script runs; `null`: its own, or, where it finds a file or module in the "
        "root of its repository alone, that root; with `-m` the folder of `params.yaml`",
    )
    fit: Annotated[int, Field(ge=1, le=1000)] | Literal["last"] = Field(
        1,
        description="which call of `fit` of the script is judged, from 1, or `last`: the last one in its text; earlier "
        "ones are trained once, by `prepare`",
    )
    step: str | None = Field(
        None,
        pattern=r"^(?:[A-Za-z_][\w.]*:)?[A-Za-z_]\w*$",
        description="the training step of a script that never calls `fit`: a function that it defines, such as "
        "`train_step`, or `package.module:function`; only its speed is compared; `null`: the script calls `fit`",
    )
    name: Text = Field(
        "images",
        min_length=1,
        description="`images`, or `package.module:function`, a function of your own that returns a `Task`",
    )
    path: str | None = Field(
        None,
        pattern=ONE_LINE,
        min_length=1,
        description="folder that contains the module of your task; `null`: the folder of `params.yaml`",
    )
    arguments: dict[str, Any] | list[Any] = Field(
        {}, description="arguments of your function, by name; of a script its command line, a list"
    )
    score: str | None = Field(
        None,
        pattern=ONE_LINE,
        min_length=1,
        description="of a script: `module:function` in its folder, called with `(y_true, y_pred)` of a batch, which "
        "returns a number for each example, higher is better; or the name of a metric that it compiles, such as `auc`; "
        "`null`: accuracy of classes, else the negative loss",
    )
    python: str | None = Field(
        None,
        pattern=ONE_LINE,
        min_length=1,
        description="the Python interpreter in which your code runs, such as `../.venv/bin/python`, whose environment "
        "needs TensorFlow and Keras and nothing of halfstep; `null`: that of halfstep",
    )
    depends: Paths = Field((), description="files and folders that the results of your task also depend on")

    @property
    def uses_data_and_model(self) -> bool:
        """Whether the sections `data` and `model` describe what is trained; else a function or script does."""
        return self.script is None and self.name == "images"

    @property
    def shown(self) -> str:
        """What is trained, in results and messages: the name, or that of the script's file."""
        return self.name if self.script is None else Path(self.script).name

    @property
    def script_name(self) -> str:
        """The script in messages, without `..`: `halfstep judge` works two folders below its user."""
        return str(Path(*[part for part in Path(self.script or "").parts if part != ".."]))

    @property
    def subject(self) -> str:
        """Names the task in messages."""
        return f"task.name = {self.name}" if self.script is None else f"task.script = {self.script_name}"

    @property
    def script_module(self) -> str | None:
        """The module that the script is, with `-m`; None if it is named by its file."""
        flag, _, module = (self.script or "").partition(" ")
        return module.strip() if flag == "-m" else None

    @property
    def script_path(self) -> Path:
        """The script's file."""
        assert self.script is not None, "the task is a script"
        if self.script_module is None:
            return resolve_data_path(self.script).absolute()
        paths = [self._file_of_module(folder) for folder in self._module_folders]
        return next((path for path in paths if path.is_file()), paths[0])

    @property
    def _module_folders(self) -> tuple[Path, ...]:
        """Where the package of a script named with `-m` may be: in its folder, or in `src` there."""
        return (self.script_folder, self.script_folder / "src")

    def _file_of_module(self, folder: Path) -> Path:
        base = folder.joinpath(*(self.script_module or "").split("."))
        return base / "__main__.py" if base.is_dir() else base.with_name(f"{base.name}.py")

    @property
    def script_folder(self) -> Path:
        """The folder in which the script runs."""
        if self.folder is not None:
            return resolve_data_path(self.folder).absolute()
        return Path.cwd() if self.script_module is not None else self.script_path.parent

    @property
    def repository(self) -> Path | None:
        """The root of the repository that holds the script; None if there is none above its folder."""
        above = self.script_path.parent.parents
        return next((folder for folder in above if any((folder / name).exists() for name in _OF_ROOTS)), None)

    @property
    def import_folders(self) -> tuple[Path, ...]:
        """Where modules of the script's own may be: the first one of Python's path, and that in which it may run."""
        if self.script_module is not None:
            folders = [folder for folder in self._module_folders if folder.is_dir()] or [self.script_folder]
            return tuple(sorted(folders, key=lambda folder: not self._file_of_module(folder).is_file()))
        first, other = self.script_path.parent, self.repository if self.folder is None else self.script_folder
        return (first,) if other in (None, first) else (first, other)

    @property
    def keywords(self) -> dict[str, Any]:
        """The arguments of a function."""
        return self.arguments if isinstance(self.arguments, dict) else {}

    @property
    def command_line(self) -> list[str]:
        """The arguments of a script."""
        return [str(value) for value in self.arguments] if isinstance(self.arguments, list) else []

    @property
    def module_folder(self) -> Path:
        """The folder that `path` names; without it the folder of `params.yaml`, in which every stage runs."""
        return Path.cwd() if self.path is None else resolve_data_path(self.path)


class DataParams(Section):
    """Which images are used, and how they are resized and split."""

    source: Literal["digits", "cifar10", "folder", "synthetic"] = Field(
        "digits", description="where the images come from"
    )
    path: Text = Field("data/raw", min_length=1, description="directory that contains the class folders, for `folder`")
    image_size: int = Field(32, ge=8, le=1024, description="height and width after resizing, in pixels")
    color: Literal["rgb", "grey"] = Field("rgb", description="three channels (`rgb`) or one (`grey`)")
    test_fraction: Number = Field(0.4, gt=0, lt=1, description="fraction of the images in the test set")
    validation_fraction: Number = Field(0.1, gt=0, lt=1, description="fraction of the images in the validation set")
    split_seed: int = Field(0, ge=0, le=2**31 - 1, description="seed of the split and of the synthetic images")
    max_bad_fraction: Number = Field(0.0, ge=0, le=1, description="largest accepted fraction of unreadable images")
    max_pixels: int = Field(50_000_000, ge=1, description="an image with more pixels is rejected without decoding it")
    synthetic_images: int = Field(2048, ge=10, description="number of images, for `synthetic`")
    synthetic_classes: int = Field(10, ge=2, le=10_000, description="number of classes, for `synthetic`")


class ModelParams(Section):
    """Which network is trained."""

    name: Text = Field(
        "cnn",
        min_length=1,
        description="`cnn`, `resnet20`, `resnet50`, `keras.applications.<Name>`, or `package.module:function`",
    )


class Augment(Section):
    """Random changes of the training images, made in the input pipeline. All are off by default."""

    flip: bool = Field(False, description="mirror one image in two horizontally")
    rotate_degrees: Number = Field(0.0, ge=0, le=180, description="largest rotation in either direction, in degrees")
    shift_fraction: Number = Field(0.0, ge=0, lt=1, description="largest shift, as a fraction of the image's side")

    @property
    def enabled(self) -> bool:
        """Whether any of the changes is on."""
        return self.flip or self.rotate_degrees > 0 or self.shift_fraction > 0


class TrainParams(Section):
    """How each variant is trained. The same for all variants, so that they differ only in their own settings."""

    variants: Names = Field(
        ("float32", "mixed_float16", "mixed_bfloat16"), description="entries of `variants` to train and compare"
    )
    seeds: Seeds = Field((0,), description="each variant is trained once with each seed")
    epochs: IntOrFromScript = Field(
        8,
        ge=0,
        le=100_000,
        description="number of passes over the training images; 0: speed only, nothing is trained; `null`: as "
        "`task.script` says",
    )
    batch_size: IntOrFromScript = Field(
        32, ge=1, le=65536, description="number of images per training step; `null`: as `task.script` says"
    )
    optimizer: Literal["adam", "adamw", "sgd"] = Field("adam", description="as in Keras; `sgd` with momentum 0.9")
    learning_rate: Number = Field(0.005, gt=0, le=100, description="largest learning rate of the schedule")
    schedule: Literal["cosine", "constant"] = Field("cosine", description="learning rate after the warm-up")
    warmup_epochs: Number = Field(1.0, ge=0, description="epochs of linear rise to the largest learning rate")
    augment: Annotated[Augment, BeforeValidator(derived.augment_of)] = Field(
        Augment(), description="random changes of the training images; `false`: none"
    )
    input_threads: int = Field(2, ge=1, le=256, description="number of threads of the input pipeline")
    checkpoint_every: int = Field(1, ge=1, description="epochs between the checkpoints that a training resumes from")
    require_gpu: bool = Field(False, description="stop with an error if no GPU can be used, instead of using the CPU")


class Variant(Section):
    """What a variant differs in. halfstep compares the variants; `null`: as `train` says, or as TensorFlow chooses."""

    policy: Policy = Field(description="dtype policy of Keras")
    xla: bool | None = Field(
        None, description="compile the step and the prediction with XLA; `null`: as a plain `compile()` of Keras does"
    )
    tf32: bool = Field(True, description="allow TensorFloat-32 on GPUs that support it")
    onednn: bool | None = Field(
        None,
        description="let TensorFlow use oneDNN on CPUs where it does so by default; `null`: as `true`, but `false` for "
        "float16 on a CPU with AVX512_FP16 and without AMX, where its convolutions take 20 times as long",
    )
    batch_size: int | None = Field(
        None, ge=1, le=65536, description="number of examples per training step; `null`: `train.batch_size`"
    )
    learning_rate: Number | None = Field(
        None,
        gt=0,
        le=100,
        description="largest learning rate of the schedule; `null`: `train.learning_rate`, in proportion to the batch",
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="TensorFlow's threads, within an operation and between operations"
    )
    gpu_thread_mode: Literal["global", "gpu_shared", "gpu_private"] | None = Field(
        None, description="which threads launch the kernels of a GPU (`TF_GPU_THREAD_MODE`)"
    )
    input_threads: int | None = Field(
        None, ge=1, le=256, description="number of threads of the input pipeline; `null`: `train.input_threads`"
    )
    cache_input: bool | None = Field(
        None,
        description="keep the batches of the first pass in memory and train on them again and again, so that shuffling "
        "and augmentation repeat; `null`: false",
    )
    prefetch_to_device: bool | None = Field(
        None, description="copy batches to the GPU before they are needed; `null`: false"
    )
    float32_layers: Patterns = Field(
        (),
        description="paths of layers that stay in float32 under a mixed policy, with all layers below them; a path or "
        "a regular expression for a whole path, as `keras.dtype_policies.DTypePolicyMap` takes them",
    )
    task_path: str | None = Field(
        None,
        pattern=ONE_LINE,
        min_length=1,
        description="folder that contains the module of your task for this variant, such as a checkout of another "
        "commit; `null`: `task.path`",
    )
    env: Environment = Field(
        {},
        description="environment variables of its processes, such as `TF_NUM_INTEROP_THREADS`; what the dynamic linker "
        "reads, such as `LD_PRELOAD`, is in force in `profile` alone",
    )
    python: str | None = Field(
        None,
        pattern=ONE_LINE,
        min_length=1,
        description="another Python interpreter in which it is trained and timed, such as "
        "`../venv-2.20/bin/python`, to compare releases of TensorFlow and Keras; `null`: `task.python`",
    )
    trained: bool = Field(
        True,
        description="train it; `false`: only its speed, and the baseline's weights in its precision, are measured, and "
        "it is never adopted for training",
    )
    parent: Text | None = Field(None, description="the variant from which this one was made; changes no result")

    @property
    def timed_as(self) -> dict[str, Any]:
        """What of it can change a time, as JSON."""
        return self.model_dump(mode="json", exclude={"trained", "parent"})

    def applied_to(self, train: TrainParams) -> TrainParams:
        """How this variant is trained."""
        changes: dict[str, Any] = {}
        if train.batch_size is not None:
            rate = derived.learning_rate_of(train.learning_rate, train.batch_size, self.learning_rate, self.batch_size)
            changes = {"batch_size": self.batch_size or train.batch_size, "learning_rate": rate}
        return train.model_copy(update=changes | {"input_threads": self.input_threads or train.input_threads})

    def with_float32(self, layers: Iterable[str]) -> Variant:
        """This entry with these layers, too, in float32."""
        return self.model_copy(update={"float32_layers": tuple(dict.fromkeys((*self.float32_layers, *layers)))})

    def task_of(self, task: TaskParams) -> TaskParams:
        """What is trained under this variant."""
        return task if self.task_path is None else task.model_copy(update={"path": self.task_path})

    @property
    def uses_onednn(self) -> bool:
        """Whether TensorFlow may use oneDNN on this machine."""
        if self.onednn is not None:
            return self.onednn
        return not (self.dtype_policy.compute.name == "float16" and fingerprint.is_onednn_slow_in_float16())

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that must be set before TensorFlow is imported."""
        return self.env | derived.variables_of(onednn=self.uses_onednn, gpu_thread_mode=self.gpu_thread_mode)

    @property
    def jit_compile(self) -> bool | Literal["auto"]:
        """The argument `jit_compile` of `model.compile`. `auto` is Keras's default."""
        return derived.jit_compile_of(self.xla)

    @property
    def dtype_policy(self) -> DTypePolicy:
        """The policy, with what depends on its precision."""
        return POLICIES[self.policy]


class ProfileParams(Section):
    """How the variants are timed, in repeats: each starts a process of every variant. `null`: as the network needs."""

    target_precision: Number = Field(
        0.02, gt=0, lt=1, description="half-width of the speed-ups' confidence intervals at which the timing ends"
    )
    max_seconds: Number | None = Field(
        None, gt=0, description="maximum duration of the timing, in seconds; starting the processes does not count"
    )
    processes: int | None = Field(
        None, ge=2, le=50, description="number of repeats, each of which starts a process of every variant, at most"
    )
    rounds: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="number of timed rounds in a repeat, at most; each variant has a turn in it",
    )
    steps_per_round: int | None = Field(None, ge=1, le=10_000, description="number of training steps in a turn")
    warmup_steps: int | None = Field(
        None, ge=1, le=10_000, description="number of training steps before the first round of a process"
    )
    trace_steps: int | None = Field(None, ge=2, le=50, description="number of training steps in the trace")
    inference_batch_sizes: BatchSizes = Field((1, 32), description="batch sizes at which latency is measured")
    inference_calls_per_round: int | None = Field(
        None, ge=1, le=10_000, description="number of inference calls in a turn, at each batch size"
    )
    find_max_batch: bool = Field(
        False,
        description="find the largest batch that each variant can train with, and how many examples per second it "
        "trains; takes minutes",
    )
    memory_limit_mib: int | None = Field(
        None, ge=64, description="memory for `find_max_batch` on a CPU, in MiB; `null`: half of the free memory"
    )
    confirm: bool | None = Field(
        None,
        description="try whether layers that the traces name as the cause are one: the variant with them in float32; "
        "`null`: where that takes at most 15 s and a quarter of the stage",
    )
    occasion: Text | None = Field(
        None,
        min_length=1,
        max_length=100,
        pattern=ONE_LINE,
        description="any word; with another word the timing is measured anew, and the verdicts are on the mean of all "
        "words' timings; `null`: no word",
    )
    interleave: bool | None = Field(
        None,
        description="whether variants take turns (true) or are measured one at a time (false); `null`: turns on CPUs",
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="seed of the order of the turns")

    @property
    def order_seed(self) -> str:
        """What the order of the turns is drawn from: occasions of one seed must not share what an order favours."""
        return str(self.seed) if self.occasion is None else f"{self.seed} {self.occasion}"


class ServeParams(Section):
    """In which formats the trained models are served: how fast each predicts, and whether its score stays the same."""

    formats: Annotated[tuple[FormatName, ...], BeforeValidator(_tuple_from_list)] = Field(
        (KERAS, "litert"),
        description="formats to which the trained weights are exported in float32, and which are timed beside Keras; "
        "`[]`: none",
    )
    batch_sizes: BatchSizes | None = Field(
        None,
        description="batch sizes at which they are timed, of which the first decides; `null`: "
        "`profile.inference_batch_sizes`",
    )
    weights: Text | None = Field(None, description="variant whose weights are served; `null`: the baseline")

    @property
    def exported(self) -> tuple[str, ...]:
        """The formats without Keras itself, with which they are compared."""
        return tuple(name for name in self.formats if name != KERAS)


class CompareParams(Section):
    """What counts as faster, and as equally good. Choose these before you measure."""

    baseline: Text = Field("float32", min_length=1, description="variant that the others are compared with")
    quality_margin: Number | None = Field(
        None,
        gt=0,
        description='largest loss of the score that still counts as "the same", in its units; `null`: 0.01 for '
        "accuracy, while other scores must declare one",
    )
    class_margin: Number | None = Field(
        None,
        gt=0,
        lt=1,
        description="largest loss of recall of any class with at least 30 test examples, as a fraction, beside which "
        "a variant is adopted; `null`: losses that are shown are said, and not judged",
    )
    min_speedup: Number = Field(1.05, ge=1, le=100, description="smallest speed-up that is worth a change, as a ratio")
    gate: Literal[False, True, "not_slower", "not_slower_strict"] = Field(
        False,
        description="exit with an error: `true` unless a candidate is adopted, `not_slower` if one is shown to be "
        "slower, by more than `max_slowdown`, or worse; `not_slower_strict` unless this is excluded of all",
    )
    max_slowdown: Number = Field(
        0.03, ge=0, lt=1, description="of `not_slower`: by how much of its speed a candidate may be slower"
    )


class TrackingParams(Section):
    """Where MLflow stores the runs."""

    experiment: Text = Field(
        "mixed-precision", min_length=1, max_length=250, description="name of the MLflow experiment"
    )
    uri: str | None = Field(
        None,
        pattern=ONE_LINE,
        min_length=1,
        description="URI of the tracking store; `null`: `MLFLOW_TRACKING_URI`, else `mlflow.db` in the project root",
    )


class FleetParams(Section):
    """How `halfstep fleet` places trainings on machines. Changes no result."""

    cpus_per_training: int = Field(2, ge=1, le=1024, description="cores of a training")
    gpus_per_training: int = Field(0, ge=0, le=64, description="GPUs of a training; 0: the CPU")
    retries: int = Field(2, ge=0, le=100, description="how often a training is tried again after its machine was lost")


class Params(Section):
    """All of `params.yaml`."""

    task: TaskParams = TaskParams()
    data: DataParams = DataParams()
    model: ModelParams = ModelParams()
    train: TrainParams = TrainParams()
    variants: Annotated[dict[str, Variant], Field(min_length=1)] = Field(
        {
            "float32": Variant(policy="float32"),
            "mixed_float16": Variant(policy="mixed_float16"),
            "mixed_bfloat16": Variant(policy="mixed_bfloat16"),
        }
    )
    profile: ProfileParams = ProfileParams()
    serve: ServeParams = ServeParams()
    compare: CompareParams = CompareParams()
    tracking: TrackingParams = TrackingParams()
    fleet: FleetParams = FleetParams()

    def with_interpreters(self) -> Params:
        """Each variant with the interpreter that it runs in, which `task.python` names unless it does itself."""
        if self.task.python is None:
            return self
        update = {"python": self.task.python}
        entries = {
            name: entry if entry.python is not None else entry.model_copy(update=update)
            for name, entry in self.variants.items()
        }
        return self.model_copy(update={"variants": entries})

    @property
    def trained_variants(self) -> list[str]:
        """Those of `train.variants` that are trained."""
        return [name for name in self.train.variants if name not in self.variants or self.variants[name].trained]

    @property
    def tasks(self) -> dict[str, TaskParams]:
        """The task, and those of the variants that take its code from another folder, by the key of the folder."""
        listed = [name for name in self.train.variants if name in self.variants]
        entries = {f"variants.{name}.task_path": self.variants[name] for name in listed}
        others = {key: entry.task_of(self.task) for key, entry in entries.items() if entry.task_path is not None}
        return {"task.path": self.task} | others
