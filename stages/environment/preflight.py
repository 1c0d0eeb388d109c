"""Checks that the folders, models and tracking stores that `params.yaml` names exist, before any file is changed."""

from __future__ import annotations

import ast
import importlib.util
import os
import resource
import symtable
import warnings
from collections.abc import Iterator
from pathlib import Path

from stages import fingerprint
from stages.environment.server_preflight import server_problem
from stages.errors import HalfstepError, one_line
from stages.files import resolve_data_path
from stages.own_model import OWN_MODEL, module_file, parse_source
from stages.params import DataParams, Params, TrackingParams, TrainParams
from stages.params.rules import did_you_mean
from stages.tracking import store

BUILT_IN_MODELS = ("cnn", "resnet20", "resnet50")
APPLICATIONS = "keras.applications."
MIN_ADDRESS_SPACE_BYTES = 7 * 2**29  # measured: 2.4 GiB are too little for one training of a small network
_LONGEST_VALUE = 300  # characters of a value in a message: what to do comes after it


def input_problems(params: Params) -> list[str]:
    """One line for each input, model, device or tracking store that cannot be used. Uses no network."""
    return [
        *_data_path(params.data),
        *_model(params.model.name),
        *_gpu(params.train),
        *_tracking(params.tracking, store.problem_with(store.resolve_uri(params.tracking))),
    ]


def server_problems(params: Params) -> list[str]:
    """One line if the tracking server does not respond. Takes at most some seconds."""
    return list(_tracking(params.tracking, server_problem(params.tracking)))


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
    root, shown = resolve_data_path(data.path), one_line(data.path, _LONGEST_VALUE)
    if not os.path.exists(root):  # noqa: PTH110  Path.exists raises an error for a long name
        yield f"data.path is '{shown}', which does not exist; create it with a folder of images for each class"
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
    elif len(name) > _LONGEST_VALUE:
        yield f"model.name has {len(name)} characters; it must be shorter than {_LONGEST_VALUE}"
    elif match := OWN_MODEL.fullmatch(name):
        yield from _user_model(name, match["module"], match["function"])
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


def _user_model(name: str, module: str, function: str) -> Iterator[str]:
    path = module_file(module, Path.cwd())
    if path is None:
        yield f"model.name is '{name}'; there is no module '{module}' next to params.yaml or among installed packages"
        return
    try:
        tree = parse_source(path.read_bytes())
        names = _top_level_names(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: too many nested brackets
        yield f"model.name is '{name}'; {path.name} is not valid Python: {error}"
        return
    if function not in names and not _defines_unseen_names(tree):
        yield f"model.name is '{name}'; {path.name} does not define '{function}'" + did_you_mean(function, names)
    elif problem := _wrong_definition(tree, function):
        yield f"model.name is '{name}'; {path.name} defines {problem}; it must be def {function}(input_shape, classes)"


def _top_level_names(tree: ast.Module) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, about the user's code
        table = symtable.symtable(ast.unparse(tree), "module", "exec")
    return [symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()]


def _defines_unseen_names(tree: ast.Module) -> bool:
    """Whether a module has names that its text does not contain."""
    star = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))
    return star or any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)


def _wrong_definition(tree: ast.Module, name: str) -> str | None:
    """The definition of a function that cannot be called with two arguments; None if it can, or if this is unknown."""
    defined = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    found = [node for node in defined if node.name == name]
    if not found or found[-1].decorator_list:  # a decorator may change the arguments
        return None
    if isinstance(found[-1], ast.AsyncFunctionDef):
        return f"async def {name}"
    arguments = found[-1].args
    return None if _takes_two(arguments) else f"{name}({ast.unparse(arguments)[:100]})"


def _takes_two(arguments: ast.arguments) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args)
    enough = positional >= 2 or arguments.vararg is not None
    return enough and positional - len(arguments.defaults) <= 2 and None not in arguments.kw_defaults


def _gpu(train: TrainParams) -> Iterator[str]:
    if train.require_gpu and not fingerprint.gpus():
        yield (
            "train.require_gpu is true, and no NVIDIA driver reports a GPU; install the driver "
            "(`nvidia-smi` must list the device), or set it to false to compute on the CPU"
        )


def _tracking(tracking: TrackingParams, problem: str | None) -> Iterator[str]:
    if problem:
        uri = "null" if tracking.uri is None else repr(one_line(tracking.uri, _LONGEST_VALUE))
        yield f"tracking.uri is {uri}: {problem}"
