"""The floors of the house: an import goes down, or stays in its own room."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

GROUND = {"params", "files", "errors", "locking", "cache"}
FIRST = {"tracking", "environment", "dataset", "models", "precision", "recipe", "quiet", "speedup", "margins"}
TOP = {"prepare", "train", "profile", "compare"}
FLOOR = {**dict.fromkeys(GROUND, 0), **dict.fromkeys(FIRST, 1), **dict.fromkeys(TOP, 2)}
# It says which store is used, and imports no MLflow: the check of the parameters on the first floor asks it.
FLOOR_OF_FILE = {"stages/tracking/store.py": 0}
SLOW = {"tensorflow", "keras"}
# The other rooms of the floor where TensorFlow is allowed must not pay for its import.
MAY_IMPORT_TENSORFLOW = {"dataset", "models", "precision", "recipe", "quiet", "train"}
FILES_THAT_MAY_IMPORT_TENSORFLOW = {"stages/profile/worker.py", "stages/profile/graph.py"}


def sources(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in (root / "stages").rglob("*.py"))


def room_of(path: Path) -> str:
    return path.parts[1].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Dotted names that are imported, split; `from stages import files` gives `("stages", "files")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((*(node.module or "").split("."), alias.name) for alias in node.names)


def at_module_level(tree: ast.Module) -> ast.Module:
    """The statements that run at import: without functions, and without what is there for the type checker."""
    kept = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    hidden: set[ast.AST] = set()
    for node in ast.walk(tree):
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, ast.FunctionDef) or for_types:
            hidden |= set(ast.walk(node))
    return ast.Module(body=[node for node in kept if node not in hidden], type_ignores=[])


def rooms_imported(tree: ast.AST) -> set[str]:
    return {name[1] for name in imported(tree) if name[0] == "stages" and len(name) > 1}


def misplaced(path: Path, text: str) -> list[str]:
    """Rooms that a file must not import."""
    room = room_of(path)
    if room == "__init__":
        return sorted(rooms_imported(ast.parse(text)))
    floor = FLOOR_OF_FILE.get(path.as_posix(), FLOOR[room])
    return [
        other
        for other in sorted(rooms_imported(ast.parse(text)) - {room})
        if FLOOR[other] > floor or (FLOOR[other] == floor == FLOOR["train"])
    ]


def test_every_room_stands_on_a_floor(root: Path) -> None:
    assert {room_of(path) for path in sources(root)} - {"__init__"} == set(FLOOR)


def test_imports_go_down(root: Path) -> None:
    found = {path.as_posix(): misplaced(path, (root / path).read_text(encoding="utf-8")) for path in sources(root)}
    assert {path: rooms for path, rooms in found.items() if rooms} == {}


@pytest.mark.parametrize(
    ("path", "line", "rooms"),
    [
        ("stages/train/training.py", "from stages.profile import worker", ["profile"]),
        ("stages/dataset.py", "from stages import train", ["train"]),
        ("stages/files.py", "import stages.tracking.runs", ["tracking"]),
        ("stages/tracking/store.py", "from stages import environment", ["environment"]),
        ("stages/train/training.py", "def f():\n    from stages.compare import report", ["compare"]),
        ("stages/train/training.py", "from stages import dataset, files", []),
    ],
)
def test_a_misplaced_import_is_seen(path: str, line: str, rooms: list[str]) -> None:
    assert misplaced(Path(path), line) == rooms


def test_ground_floor_rooms_do_not_lean_on_first_floor_rooms_in_a_circle(root: Path) -> None:
    """`errors` and `files` are below `params`; the rest of the first floor may meet, but not in a circle at import."""
    edges: dict[str, set[str]] = {}
    for path in sources(root):
        tree = at_module_level(ast.parse((root / path).read_text(encoding="utf-8")))
        edges.setdefault(path.as_posix(), set()).update(
            "/".join(name[:3]) for name in imported(tree) if name[0] == "stages"
        )
    assert not any("stages/params" in name for name in edges["stages/files.py"] | edges["stages/errors.py"])


def test_only_the_rooms_that_compute_import_tensorflow(root: Path) -> None:
    importing = set()
    for path in sources(root):
        tree = at_module_level(ast.parse((root / path).read_text(encoding="utf-8")))
        if any(name[0] in SLOW for name in imported(tree)):
            importing.add(path.as_posix())
    wrong = {
        name
        for name in importing - FILES_THAT_MAY_IMPORT_TENSORFLOW
        if room_of(Path(name)) not in MAY_IMPORT_TENSORFLOW
    }
    assert wrong == set()
    assert "stages/dataset.py" in importing


STAGES_WITHOUT_TENSORFLOW = (
    "stages.environment.__main__",
    "stages.profile.conductor",
    "stages.train.__main__",  # it reads the parameters first
    "stages.profile.__main__",
    "stages.prepare.__main__",
    "stages.compare.__main__",
)


def test_a_stage_without_need_does_not_wait_for_tensorflow(root: Path) -> None:
    check = (
        "import importlib, sys\n"
        f"for module in {STAGES_WITHOUT_TENSORFLOW}:\n"
        "    importlib.import_module(module)\n"
        "    found = sorted({'tensorflow', 'keras'} & set(sys.modules))\n"
        "    assert not found, f'{module} imports {found}'\n"
    )
    done = subprocess.run([sys.executable, "-c", check], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_checking_the_parameters_does_not_wait_for_mlflow(root: Path) -> None:
    check = "import sys, stages.environment.__main__; print('mlflow' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
