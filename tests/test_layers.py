"""Modules of `halfstep/` import only their own package and lower layers, and few of them import slow libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

# From the lowest to the highest. Packages of one layer do not import each other.
LAYERS = (
    {"errors"},
    {"operations", "words"},
    {"system"},
    {"cli", "machine", "tensorflow_import"},
    {"params"},
    {"inputs", "stats"},
    {"results"},
    {"tracking"},
    {"tasks"},
    {"environment", "prepare", "train", "profile", "compare"},
    {"serve"},
    {"workspace"},
    {"advise", "fleet", "init", "judging"},
    {"calling"},
    {"__main__"},
)
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}
SLOW = {"tensorflow", "keras"}


def sources(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in (root / "halfstep").rglob("*.py"))


def package_of(path: Path) -> str:
    return path.parts[1].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """The imported names, split at the dots: `("halfstep", "cli")` for `from halfstep import cli`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((*(node.module or "").split("."), alias.name) for alias in node.names)


def misplaced(path: Path, text: str) -> list[str]:
    """Packages that a file imports although they are in its own layer or a higher one."""
    package = package_of(path)
    names = {name[1] for name in imported(ast.parse(text)) if name[0] == "halfstep" and len(name) > 1} - {package}
    return sorted(name for name in names if package == "__init__" or LAYER[name] >= LAYER[package])


def test_every_package_has_a_layer(root: Path) -> None:
    assert {package_of(path) for path in sources(root)} - {"__init__"} == set(LAYER)


def test_modules_import_only_lower_layers(root: Path) -> None:
    misplaced_imports = {
        path.as_posix(): misplaced(path, (root / path).read_text(encoding="utf-8")) for path in sources(root)
    }
    assert {path: names for path, names in misplaced_imports.items() if names} == {}


def graph_of(root: Path) -> dict[str, set[str]]:
    """The modules that each module imports itself, as dotted names."""
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): root / path for path in sources(root)}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        parts = list(imported(ast.parse(path.read_text(encoding="utf-8"))))
        graph[name] = {".".join(part[:end]) for part in parts for end in (len(part), len(part) - 1)} & names.keys()
    return graph


def reached(root: Path, start: str) -> set[str]:
    """Modules that a package imports, directly or through others, as dotted names."""
    graph, modules = graph_of(root), set[str]()
    waiting = [name for name in graph if name == start or name.startswith(f"{start}.")]
    while waiting:
        name = waiting.pop()
        if name not in modules:
            modules.add(name)
            waiting += graph[name]
    return modules


def test_no_modules_import_each_other(root: Path) -> None:
    """Not in a circle either, also not in functions and for types alone. A package does not count for its modules."""
    graph = {
        name: {other for other in modules if not f"{name}.".startswith(f"{other}.")}
        for name, modules in graph_of(root).items()
    }
    TopologicalSorter(graph).prepare()


def test_report_renders_and_does_not_judge(root: Path) -> None:
    """It shows what the document says: nothing in it can compute another number or sentence."""
    modules = reached(root, "halfstep.compare.report")
    judging = ("halfstep.stats", *(f"halfstep.compare.{name}" for name in ("case", "document", "explain", "rules")))
    assert [name for name in modules if name.startswith(judging)] == []
    assert "halfstep.results.comparison" in modules
    assert "halfstep.stats.speedup" in reached(root, "halfstep.compare.document")


def test_only_one_module_imports_tensorflow(root: Path) -> None:
    importing = {
        path.as_posix()
        for path in sources(root)
        if any(name[0] in SLOW for name in imported(ast.parse((root / path).read_text(encoding="utf-8"))))
    }
    assert importing == {"halfstep/tensorflow_import.py", "halfstep/serve/bench.py"}  # that is carried elsewhere


def test_only_the_fleet_imports_ray_and_only_when_it_connects(root: Path) -> None:
    """Everything else works without it."""
    trees = {path.as_posix(): ast.parse((root / path).read_text(encoding="utf-8")) for path in sources(root)}
    importing = {path for path, tree in trees.items() if any(name[0] == "ray" for name in imported(tree))}
    assert importing == {"halfstep/fleet/cluster.py", "halfstep/fleet/program.py"}
    at_once = {path for path in importing if any(name[0] == "ray" for name in imported_at_once(trees[path]))}
    assert at_once == set()


def imported_at_once(tree: ast.Module) -> Iterator[tuple[str, ...]]:
    """The names that a module imports when it is imported itself."""
    yield from imported(
        ast.Module([node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)], [])
    )


MODULES_WITHOUT_TENSORFLOW = (
    "stages.environment",
    "halfstep.profile.runner",
    "stages.train",  # it reads the parameters before it imports TensorFlow
    "stages.profile",
    "stages.prepare",
    "stages.compare",
    "halfstep.fleet.command",
    "halfstep.fleet.train",
    "halfstep.fleet.node",
)


def test_modules_do_not_import_tensorflow(root: Path) -> None:
    check = (
        "import importlib, sys\n"
        f"for module in {MODULES_WITHOUT_TENSORFLOW}:\n"
        "    importlib.import_module(module)\n"
        "    found = sorted({'tensorflow', 'keras'} & set(sys.modules))\n"
        "    assert not found, f'{module} imports {found}'\n"
    )
    done = subprocess.run([sys.executable, "-c", check], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_environment_does_not_import_mlflow_or_pandas(root: Path) -> None:
    check = "import sys, stages.environment; print('mlflow' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
