"""Checks what `params.yaml` names: folders, models and tracking stores must be there before anything is touched."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from stages.environment import fingerprint
from stages.environment.reachable import problem_with_server
from stages.errors import without_password
from stages.files import resolve_data_path
from stages.params import DataParams, Params, TrackingParams, TrainParams
from stages.params.rules import did_you_mean
from stages.tracking import store

BUILT_IN_MODELS = ("cnn", "resnet20", "resnet50")
APPLICATIONS = "keras.applications."
_OWN_MODEL = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)")


def missing_things(params: Params) -> list[str]:
    """A line for everything that `params` names and that is not there; empty where all is well."""
    return [
        *_data_path(params.data),
        *_model(params.model.name),
        *_gpu(params.train),
        *_tracking(params.tracking, store.problem_with(store.resolve_uri(params.tracking))),
    ]


def silent_servers(params: Params) -> list[str]:
    """A line for a tracking server that does not answer as one. It asks over the network, for some seconds at worst."""
    return list(_tracking(params.tracking, problem_with_server(params.tracking)))


def own_model_file(name: str, root: Path | None = None) -> Path | None:
    """Source file of the user's own model, or None where `name` is not of the form `package.module:function`.

    Nothing is imported: the module may import TensorFlow, which takes seconds.
    """
    match = _OWN_MODEL.fullmatch(name)
    if not match:
        return None
    return _module_file(match["module"], root or Path.cwd())


def _data_path(data: DataParams) -> Iterator[str]:
    if data.source != "folder":
        return
    root = resolve_data_path(data.path)
    if not root.exists():
        yield f"data.path is '{data.path}', which does not exist; put a folder of images for each class below it"
    elif not root.is_dir():
        yield f"data.path is '{data.path}', which is not a folder; it must hold a folder of images for each class"
    elif not os.access(root, os.R_OK | os.X_OK):
        yield f"data.path is '{data.path}', which may not be read by this user; give it read permission (chmod -R u+rX)"
    elif not any(entry.is_dir() and not entry.name.startswith(".") for entry in root.iterdir()):
        yield f"data.path is '{data.path}', which holds no folders; it must hold a folder of images for each class"


def _model(name: str) -> Iterator[str]:
    if name in BUILT_IN_MODELS:
        return
    if name.startswith(APPLICATIONS):
        known = keras_applications()
        if (wanted := name.removeprefix(APPLICATIONS)) not in known:
            yield f"model.name is '{name}'; keras.applications has no '{wanted}'" + did_you_mean(wanted, known)
    elif match := _OWN_MODEL.fullmatch(name):
        yield from _own_model(name, match["module"], match["function"])
    else:
        allowed = f"{', '.join(BUILT_IN_MODELS)}, {APPLICATIONS}<Name>, or package.module:function"
        yield f"model.name is '{name}'; it must be one of {allowed}" + did_you_mean(name, BUILT_IN_MODELS)


def keras_applications() -> list[str]:
    """Names of the models in `keras.applications`, read from the package's source: importing it takes seconds."""
    spec = importlib.util.find_spec("keras")
    if spec is None or not spec.origin:
        return []
    source = Path(spec.origin).parent / "applications" / "__init__.py"
    imported = [node for node in ast.parse(source.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname or alias.name for node in imported for alias in node.names}
    return sorted(name for name in names if name[0].isupper())


def _own_model(name: str, module: str, function: str) -> Iterator[str]:
    path = _module_file(module, Path.cwd())
    if path is None:
        yield f"model.name is '{name}'; there is no module '{module}' beside params.yaml or among what is installed"
        return
    try:
        known = _top_level_names(path)
    except (SyntaxError, UnicodeDecodeError) as error:
        yield f"model.name is '{name}'; {path.name} is not valid Python: {error}"
        return
    if function not in known:
        yield f"model.name is '{name}'; {path.name} defines no '{function}'" + did_you_mean(function, known)


def _module_file(module: str, root: Path) -> Path | None:
    relative = Path(*module.split("."))
    for folder in (root, *map(Path, sys.path)):
        for candidate in (folder / relative.with_suffix(".py"), folder / relative / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def _top_level_names(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names += [alias.asname or alias.name for alias in node.names]
    return names


def _gpu(train: TrainParams) -> Iterator[str]:
    if train.require_gpu and not fingerprint.gpus():
        yield (
            "train.require_gpu is true, and there is no NVIDIA driver that shows a GPU; install the driver "
            "(`nvidia-smi` must list the device), or set it to false to compute on the CPU"
        )


def _tracking(tracking: TrackingParams, problem: str | None) -> Iterator[str]:
    if problem:
        given = "null" if tracking.uri is None else repr(without_password(tracking.uri))
        yield f"tracking.uri is {given}: {problem}"
