"""Checks that the folders, models and tracking stores that `params.yaml` names exist, before any file is changed."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from halfstep.environment.own_code_preflight import (
    LONGEST_VALUE,
    OF_THE_KERNEL,
    is_of_the_kernel,
    model_problems,
    task_problems,
)
from halfstep.errors import HalfstepError, ParameterError, one_line, without_password
from halfstep.inputs.own_model import OWN_MODEL
from halfstep.machine import gpu_failures, gpus
from halfstep.params.derived import hidden_precision
from halfstep.params.loading import examine
from halfstep.params.reading import read
from halfstep.params.rules import did_you_mean
from halfstep.params.schema import DataParams, Params, TrackingParams, TrainParams
from halfstep.system import files, interpreters
from halfstep.system.files import resolve_data_path
from halfstep.tracking import store
from halfstep.words.formats import FORMATS
from halfstep.words.text import MIB, joined

BUILT_IN_MODELS = ("cnn", "resnet20", "resnet50")
APPLICATIONS = "keras.applications."
MOST_THREADS = 4096
MIN_TEMPORARY_BYTES = 64 * MIB
MIN_ADDRESS_SPACE_BYTES = 7 * 2**29  # measured: 2.4 GiB are too little for one training of a small network


def checked_params(*, has_data: bool = True) -> Params:
    """Reads the parameters, and checks them and everything that they name, `data.path` only if it must be here.

    Raises:
        ParameterError: one line for each problem.
    """
    text = read()
    params, lines = examine(text)
    lines += [f"params.yaml: {line}" for line in _missing_for_dvc(text)] if params is not None and not lines else []
    if params is not None:
        lines += [f"params.yaml: {line}" for line in input_problems(params, has_data=has_data)]
    if lines or params is None:
        raise ParameterError(*lines)
    return params


def _missing_for_dvc(text: str) -> Iterator[str]:
    """One line for each key that dvc.yaml names and a valid params.yaml lacks: DVC would stop at the stage."""
    pipeline, values = Path("dvc.yaml"), yaml.safe_load(text)
    if not pipeline.is_file():
        return
    stages = yaml.safe_load(pipeline.read_text(encoding="utf-8")).get("stages", {}).values()
    keys = (key for stage in stages for key in stage.get("params", ()) if isinstance(key, str))
    defaults = Params().model_dump(mode="json")
    for name in dict.fromkeys(key for key in keys if "$" not in key):
        *sections, last = name.split(".")
        value, default = values, defaults
        for part in sections:
            value, default = (value or {}).get(part), default[part]
        if last not in (value or {}):
            yield f"{name} is missing, without which DVC does not run; its default is {json.dumps(default[last])}"


def input_problems(params: Params, *, has_data: bool = True) -> list[str]:
    """One line for each input, model, task, device or tracking store that cannot be used. Uses no network.

    Args:
        params: all parameters.
        has_data: whether `data.path` must be on this machine. A copy that the fleet made receives prepared images.
    """
    images = _data_path(params.data) if has_data else ()
    tasks = (line for key, task in params.tasks.items() for line in task_problems(task, key))
    inputs = [*images, *_model(params.model.name)] if params.task.uses_data_and_model else tasks
    return [
        *inputs,
        *_interpreters(params),
        *_gpu(params.train),
        *_formats(params),
        *_tracking(params.tracking, store.problem_with(store.resolve_uri(params.tracking))),
    ]


def _interpreters(params: Params) -> Iterator[str]:
    listed = {name: params.variants[name].python for name in params.train.variants if name in params.variants}
    own = {f"variants.{name}.python": python for name, python in listed.items() if python != params.task.python}
    for key, python in ({"task.python": params.task.python} | own).items():
        if python is not None and (problem := interpreters.problem_with(python)):
            yield f"{key} is '{one_line(python, LONGEST_VALUE)}', {problem}"
    if None in listed.values() and not interpreters.has_tensorflow():
        yield f"task.python is null, and {interpreters.NO_TENSORFLOW}"


def _formats(params: Params) -> Iterator[str]:
    baseline = params.variants.get(params.compare.baseline)
    if baseline is not None and baseline.python is not None:
        return  # what another interpreter lacks is said of each export
    for name in params.serve.exported:
        if missing := FORMATS[name].missing:
            packages = joined([module.replace("_", "-") for module in missing])
            yield (
                f"serve.formats contains '{name}', which needs {packages}: run `pip install \".[serve]\"`, or leave "
                "it out"
            )


def require_writable_checkout() -> None:
    """Checks that this user may write in the working directory.

    Raises:
        HalfstepError: the disk is read-only, or the permissions forbid it.
    """
    here = Path.cwd()
    if not os.access(here, os.W_OK | os.X_OK):
        raise HalfstepError(
            f"{here}: this user may not write here (a read-only disk, or the permissions of the folder); "
            "use a copy of the checkout in a folder that you own"
        )


def require_usable_process() -> None:
    """Checks the options of Python, the variables of TensorFlow, and the folders for results and temporary files.

    Raises:
        HalfstepError: one line for each that cannot be used.
    """
    if lines := [*_python_options(), *_thread_variables(), *_hidden_precision(), *_folders()]:
        raise HalfstepError(*lines)


def _python_options() -> Iterator[str]:
    if sys.flags.optimize:
        yield (
            f"PYTHONOPTIMIZE is {sys.flags.optimize}: it removes checks that halfstep and its libraries need; unset it"
        )


def _thread_variables() -> Iterator[str]:
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        value = os.environ.get(name, "")
        if value and not (value.isdecimal() and value.isascii() and int(value) <= MOST_THREADS):
            shown = one_line(value, LONGEST_VALUE)
            yield f"{name} is {shown!r}; it must be a number of threads, 0 to {MOST_THREADS}, or not be set"


def _hidden_precision() -> Iterator[str]:
    """Variables by which TensorFlow computes in fewer bits than a dtype policy says."""
    for name, value in hidden_precision(os.environ).items():
        yield (
            f"{name} is {one_line(value, LONGEST_VALUE)!r}, by which TensorFlow computes in fewer bits than the "
            "variants say, float32 among them: unset it, or set it in `env` of an entry of variants"
        )


def _folders() -> Iterator[str]:
    if files.DATA.is_symlink():
        yield (
            f"{files.DATA} is a symbolic link, through which DVC writes no results; replace it by a folder, and move "
            "the whole checkout to another disk if this one is too small"
        )
    folder = Path(tempfile.gettempdir())
    if (free := shutil.disk_usage(folder).free) < MIN_TEMPORARY_BYTES:
        yield (
            f"{folder}, the folder of temporary files, has {free / MIB:.0f} MiB free, and at least "
            f"{MIN_TEMPORARY_BYTES / MIB:.0f} MiB are needed: free some space, or set TMPDIR to another folder"
        )


def require_address_space() -> None:
    """Checks the limit of virtual memory (`ulimit -v`). With less, TensorFlow ends the process without a message.

    Raises:
        HalfstepError: it is below `MIN_ADDRESS_SPACE_BYTES`.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < MIN_ADDRESS_SPACE_BYTES:
        raise HalfstepError(
            f"the limit of virtual memory is {limit / 2**30:.1f} GiB (`ulimit -v`); TensorFlow needs at least "
            f"{MIN_ADDRESS_SPACE_BYTES / 2**30:.1f} GiB: raise it with `ulimit -v unlimited`"
        )


def _data_path(data: DataParams) -> Iterator[str]:
    if data.source != "folder":
        return
    root, shown = resolve_data_path(data.path), one_line(data.path, LONGEST_VALUE)
    if not os.path.exists(root):  # noqa: PTH110  Path.exists raises an error for a long name
        yield f"data.path is '{shown}', which does not exist; create it with a folder of images for each class"
    elif is_of_the_kernel(root):
        yield f"data.path is '{shown}', which is {OF_THE_KERNEL}; it must be a folder of images"
    elif not root.is_dir():
        yield f"data.path is '{shown}', which is not a folder; it must hold a folder of images for each class"
    elif not os.access(root, os.R_OK | os.X_OK):
        yield f"data.path is '{shown}', which may not be read by this user; grant read permission (chmod -R u+rX)"
    elif not any(entry.is_dir() and not entry.name.startswith(".") for entry in root.iterdir()):
        yield f"data.path is '{shown}', which holds no folders; it must hold a folder of images for each class"


def _model(name: str) -> Iterator[str]:
    if name in BUILT_IN_MODELS:
        return
    if name.startswith(APPLICATIONS):
        names = keras_applications()
        if (wanted := name.removeprefix(APPLICATIONS)) not in names:
            yield f"model.name is '{name}'; keras.applications has no '{wanted}'" + did_you_mean(wanted, names)
    elif len(name) > LONGEST_VALUE:
        yield f"model.name has {len(name)} characters; it must be shorter than {LONGEST_VALUE}"
    elif OWN_MODEL.fullmatch(name):
        yield from model_problems(name)
    else:
        allowed = f"{', '.join(BUILT_IN_MODELS)}, {APPLICATIONS}<Name>, or package.module:function"
        yield f"model.name is '{name}'; it must be one of {allowed}" + did_you_mean(name, BUILT_IN_MODELS)


def keras_applications() -> list[str]:
    """Names of the models in `keras.applications`, read from its source code because importing Keras takes seconds."""
    spec = importlib.util.find_spec("keras")
    if spec is None or not spec.origin:
        return []
    source = Path(spec.origin).parent / "applications" / "__init__.py"
    imported = [node for node in ast.parse(source.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname or alias.name for node in imported for alias in node.names}
    return sorted(name for name in names if name[0].isupper())


def _gpu(train: TrainParams) -> Iterator[str]:
    if not train.require_gpu:
        return
    listed, other = gpus.installed(), gpu_failures.unsupported_accelerator()
    if gpus.are_hidden(listed):
        yield f"train.require_gpu is true, and {gpu_failures.hidden_text(listed[0].name)}"
    elif not listed and other:
        yield f"train.require_gpu is true, and {other}; set it to false to compute on the CPU"
    elif not listed:
        yield (
            "train.require_gpu is true, and no NVIDIA driver reports a GPU; install the driver "
            "(`nvidia-smi` must list the device), or set it to false to compute on the CPU"
        )


def _tracking(tracking: TrackingParams, problem: str | None) -> Iterator[str]:
    if problem:
        uri = "null" if tracking.uri is None else repr(one_line(tracking.uri, LONGEST_VALUE))
        if tracking.uri is None and (given := os.environ.get("MLFLOW_TRACKING_URI")):
            uri += f", and MLFLOW_TRACKING_URI is {one_line(without_password(given), LONGEST_VALUE)!r}"
        yield f"tracking.uri is {uri}: {problem}"
