"""The source files of the user's own model or task, found without importing them: they may import TensorFlow."""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stages.inputs import notebook

OWN_MODEL = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)")
MAX_PARSED_BYTES = 2**20  # larger files are generated data: parsing takes a second for each MiB

_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))

Name = tuple[str, ...]


@dataclass(frozen=True)
class _Module:
    name: Name
    path: Path

    @property
    def package(self) -> Name:
        return self.name if self.path.name == "__init__.py" else self.name[:-1]


def module_file(module: str, root: Path, *, only_root: bool = False) -> Path | None:
    """Source file of a module in `root` or, unless `only_root`, on Python's path; None if there is no such file."""
    name = tuple(module.split("."))
    folder = _folder(name, root, only_root)
    return None if folder is None else _file(folder, name)


def own_model_files(name: str, root: Path | None = None, *, only_root: bool = False) -> dict[str, Path]:
    """Source files of the user's own model or task: its module, and every module in the same folder that it imports.

    Imports in functions and under conditions count, and so do the imports of imported modules. What the code computes
    at run time, such as the argument of `importlib.import_module`, cannot be seen.

    Args:
        name: value of `model.name` or `task.name`.
        root: the folder of `params.yaml`, or that of `task.path`; None for the working folder.
        only_root: do not search the module on Python's path.

    Returns:
        Paths by their name relative to the folder of the module's top package. Empty for models and tasks of halfstep.
    """
    match = OWN_MODEL.fullmatch(name)
    module: Name = tuple(match["module"].split(".")) if match else ()
    folder = _folder(module, root or Path.cwd(), only_root) if module else None
    return {} if folder is None else _with_imports(folder, _modules(folder, module), module[0])


def script_files(script: Path, folder: Path, *others: Path) -> dict[str, Path]:
    """A script, and every module that it imports, as those of `own_model_files`.

    Args:
        script: its file.
        folder: the first folder of its path, below which the script is.
        others: where its modules may be, too. A name is relative to the folder in which the module is found.
    """
    name = script.relative_to(folder).with_suffix("").parts
    packages = list(_modules(folder, name[:-1]))
    return _with_imports(folder, [*packages, _Module(name, script)], name[0], *others)


def _with_imports(folder: Path, modules: Iterable[_Module], top: str, *others: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    visited: set[Path] = set()
    waiting = list(modules)
    while waiting:
        current = waiting.pop()
        if (resolved := current.path.resolve()) in visited:
            continue
        visited.add(resolved)
        base = next(base for base in (folder, *others) if current.path.is_relative_to(base))
        found[current.path.relative_to(base).as_posix()] = current.path
        for imported in _imports(current):
            places = (_modules(base, imported) for base in (folder, *others) if _counts(imported, top, base))
            waiting += next(filter(None, map(list, places)), [])
    return found


def source_of(path: Path) -> bytes:
    """The Python of a file; of a notebook its code cells.

    Raises:
        OSError: it cannot be read.
        SyntaxError: it is no notebook, or one in another language.
    """
    content = path.read_bytes()
    return notebook.code_of(content, path.name) if path.suffix == notebook.SUFFIX else content


def parsed(path: Path) -> ast.Module | None:
    """The syntax tree of a file of Python; None where it is not valid, or too large to be written by hand."""
    try:
        source = source_of(path)
        return None if len(source) > MAX_PARSED_BYTES else parse_source(source)
    except SyntaxError:
        return None


def parse_source(content: bytes, name: str = "<unknown>") -> ast.Module:
    """Parses Python in the encoding that it declares. Prints no warnings of the compiler.

    Args:
        content: the file.
        name: what the error calls it.

    Raises:
        SyntaxError: it is not valid Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(content, name)
        except (ValueError, RecursionError, MemoryError) as error:  # a null byte; an expression nested too deeply
            raise SyntaxError(str(error) or "it is nested too deeply") from error


def _folder(name: Name, root: Path, only_root: bool = False) -> Path | None:
    folders = (root,) if only_root else (root, *map(Path, sys.path))
    return next((folder for folder in folders if _file(folder, name)), None)


def _file(folder: Path, name: Name) -> Path | None:
    """A package hides a module of the same name, as in Python."""
    base = folder.joinpath(*name)
    candidates = (base / "__init__.py", base.with_name(f"{base.name}.py"))
    return next((path for path in candidates if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, or a folder that may not be read
        return False


def _modules(folder: Path, name: Name) -> Iterator[_Module]:
    """The module and its packages: importing `a.b` runs `a/__init__.py`, too."""
    for length in range(1, len(name) + 1):
        if path := _file(folder, name[:length]):
            yield _Module(name[:length], path)


def _imports(module: _Module) -> Iterator[Name]:
    """Names that may be modules: `from a import b` imports `a`, and perhaps `a.b`."""
    tree = parsed(module.path)
    if tree is None:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module.package)
            yield from ((*base, alias.name) for alias in node.names)
        elif isinstance(node, ast.Assign) and "__all__" in map(ast.unparse, node.targets):
            yield from ((*module.package, name) for name in _strings(node.value))  # `from package import *`


def _strings(tree: ast.expr) -> Iterator[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return (value for value in constants if isinstance(value, str) and value.isidentifier())


def _base(node: ast.ImportFrom, package: Name) -> Name:
    above = package[: max(len(package) - node.level + 1, 0)] if node.level else ()
    return (*above, *(node.module.split(".") if node.module else ()))


def _counts(name: Name, top: str, folder: Path) -> bool:
    """Whether a module can be part of the model or the task.

    DVC's stages depend on halfstep's own modules already. In a folder of installed packages only the model's own
    package counts: with the others, Keras and TensorFlow would.
    """
    installed = folder.name in ("site-packages", "dist-packages") or folder == _STANDARD_LIBRARY
    return name[0] == top or (name[0] != "stages" and not installed)
