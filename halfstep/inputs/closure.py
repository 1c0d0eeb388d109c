"""The source files that a module needs: its own, and those of all that it imports, found without importing them.

Imports in functions and under conditions count. What code computes at run time, such as the argument of
`importlib.import_module`, cannot be seen.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from halfstep.errors import HalfstepError
from halfstep.inputs import notebook
from halfstep.system import files

MAX_PARSED_BYTES = 2**20  # larger files are generated data: parsing takes a second for each MiB
MEMORY = files.WORK_DIR / "imports.json"

_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_MOST_REMEMBERED = 4000

Name = tuple[str, ...]


@dataclass(frozen=True)
class Module:
    """A module or a package, and its file."""

    name: Name
    path: Path

    @property
    def package(self) -> Name:
        """What a relative import in it is relative to."""
        return self.name if self.path.name == "__init__.py" else self.name[:-1]


def needed_files(
    start: Iterable[Module],
    top: str,
    *folders: Path,
    left_out: tuple[str, ...] = (),
    imports: Imports | None = None,
) -> dict[str, Path]:
    """The files of some modules and of every module in the given folders that they import.

    Args:
        start: the modules.
        top: name of the package that counts also where packages are installed.
        folders: where modules may be. A name is relative to the folder in which the module is found.
        left_out: beginnings of names; such a file is not followed, unless it is one of `start`.
        imports: of what several calls look at while no file changes; otherwise files are read again.

    Returns:
        Paths by their name relative to their folder.
    """
    paths: dict[str, Path] = {}
    seen, visited = set[Path](), set[Path]()
    waiting = list(start)
    first = {module.path for module in waiting}
    with nullcontext(imports) if imports is not None else Imports() as known:
        while waiting:
            current = waiting.pop()
            if current.path in seen:
                continue
            seen.add(current.path)
            base = next(base for base in folders if current.path.is_relative_to(base))
            name = current.path.relative_to(base).as_posix()
            if name.startswith(left_out) and current.path not in first:
                continue
            if (resolved := current.path.resolve()) in visited:
                continue
            visited.add(resolved)
            paths[name] = current.path
            waiting += known.of(current, top, folders)
    return paths


def modules(folder: Path, name: Name) -> Iterator[Module]:
    """The module and its packages: importing `a.b` runs `a/__init__.py`, too."""
    for length in range(1, len(name) + 1):
        if path := source_file(folder, name[:length]):
            yield Module(name[:length], path)


def source_file(folder: Path, name: Name) -> Path | None:
    """File of a module in a folder. A package hides a module of the same name, as in Python."""
    base = "/".join([str(folder), *name])  # text: a start of a stage looks thousands of names up
    paths = (path for path in (f"{base}/__init__.py", f"{base}.py") if os.path.isfile(path))  # noqa: PTH113
    return next(map(Path, paths), None)


def source_of(path: Path) -> bytes:
    """The Python of a file; of a notebook its code cells.

    Raises:
        OSError: it cannot be read.
        SyntaxError: it is not a notebook, or one in another language.
    """
    content = path.read_bytes()
    return notebook.code_of(content, path.name) if path.suffix == notebook.SUFFIX else content


def parsed(path: Path) -> ast.Module | None:
    """The syntax tree of a file of Python; None where it is not valid, or too large to be written by hand."""
    try:
        return _parsed(source_of(path))
    except SyntaxError:
        return None


def _parsed(source: bytes) -> ast.Module | None:
    return None if len(source) > MAX_PARSED_BYTES else parse_source(source)


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


class Imports:
    """What modules import. While it is open, each file is read once.

    It is remembered on the disk by the digest of a file's content: to parse 300 files takes half a second, to read them
    5 ms.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[Module, str, tuple[Path, ...]], list[Module]] = {}
        self._modules: dict[tuple[Path, Name], list[Module]] = {}
        self._path = files.original_root() / MEMORY
        self._known: dict[str, list[str]] = {}
        self._new: dict[str, list[str]] = {}

    def __enter__(self) -> Imports:
        with suppress(HalfstepError):  # missing or damaged
            entries = files.read_verified_json(self._path)
            self._known = {digest: names for digest, names in entries.items() if digest != "sha256"}
        return self

    def __exit__(self, *_: object) -> None:
        if self._new:
            kept = dict([*self._known.items(), *self._new.items()][-_MOST_REMEMBERED:])
            with suppress(HalfstepError):  # a read-only disk: they are parsed again
                files.write_json(self._path, files.with_checksum(kept))

    def of(self, module: Module, top: str, folders: tuple[Path, ...]) -> list[Module]:
        """The modules in `folders` that a module imports, with their packages; arguments as of `needed_files`."""
        key = module, top, folders
        if key not in self._of:
            self._of[key] = imported = []
            for name in self._names(module):
                places = (self._found(folder, name) for folder in folders if _counts(name, top, folder))
                imported += next(filter(None, places), [])
        return self._of[key]

    def _found(self, folder: Path, name: Name) -> list[Module]:
        """As `modules`; many names share packages."""
        if not name:
            return []
        if (folder, name) not in self._modules:
            path = source_file(folder, name)
            above = self._found(folder, name[:-1])
            self._modules[folder, name] = [*above, Module(name, path)] if path else above
        return self._modules[folder, name]

    def _names(self, module: Module) -> Iterator[Name]:
        """Names that may be modules: `from a import b` imports `a`, and perhaps `a.b`."""
        try:
            source = source_of(module.path)
        except SyntaxError:
            return
        digest = hashlib.sha256(source).hexdigest()
        names = self._known.get(digest, self._new.get(digest))
        if names is None:
            names = self._new[digest] = _imports(source)
        for name in names:
            level = len(name) - len(name.lstrip("."))
            above = module.package[: max(len(module.package) - level + 1, 0)] if level else ()
            yield (*above, *filter(None, name[level:].split(".")))


@lru_cache(maxsize=_MOST_REMEMBERED)  # also where nothing can be written
def _imports(source: bytes) -> list[str]:
    """What a source imports, relative imports with their dots."""
    try:
        tree = _parsed(source)
    except SyntaxError:
        tree = None
    return list(dict.fromkeys(_imported(tree))) if tree is not None else []


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = f"{node.module}." if node.module else ""
            yield from (f"{'.' * node.level}{module}{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Assign) and any(
            isinstance(at, ast.Name) and at.id == "__all__" for at in node.targets
        ):
            yield from (f".{name}" for name in _strings(node.value))  # `from package import *`


def _strings(tree: ast.expr) -> Iterator[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return (value for value in constants if isinstance(value, str) and value.isidentifier())


def _counts(name: Name, top: str, folder: Path) -> bool:
    """Whether a module is followed.

    The stages depend on halfstep's own modules by digests of their own. In a folder of installed packages only the
    package of the start counts: with the others, Keras and TensorFlow would.
    """
    installed = folder.name in ("site-packages", "dist-packages") or folder == _STANDARD_LIBRARY
    return name[0] == top or (name[0] != "halfstep" and not installed)
