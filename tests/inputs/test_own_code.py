"""What each stage depends on of halfstep's own code."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from halfstep.inputs import closure
from halfstep.inputs.own_code import STARTS, WITHOUT_EFFECT, code_digest, code_files, keys
from tests import warm

WITHOUT_STAGES = (
    *("machine/fingerprint.py", "params/schema.py", "__init__.py", "__main__.py", "system/dvc_cache.py", "cli.py"),
    *(
        "errors.py",
        "system/files.py",
        "system/fork_server.py",
        "system/interpreters.py",
        "system/imports.py",
        "system/locking.py",
    ),
    *(
        "system/supervision.py",
        "system/telling.py",
        "words/console.py",
        "system/child.py",
        "system/commands.py",
        "inputs/own_code.py",
        "init.py",
    ),
    *(
        "judging.py",
        "calling.py",
        "workspace.py",
        "environment/preflight.py",
        "tracking/tracker.py",
        "advise/__init__.py",
    ),
    *(
        "advise/remedies.py",
        "fleet/tree.py",
        "prepare/stage.py",
        "train/stage.py",
        "compare/stage.py",
    ),
)
# The stages that run again after an edit of the file. Each package is here: one without a stage changes no result.
EDITS = {
    "prepare/images/splitting.py": {"prepare"},
    "prepare/inspection.py": {"prepare"},
    "train/fitting.py": {"train"},
    "train/numerics.py": {"train"},
    "profile/arms.py": {"profile", "serve"},
    "profile/worker.py": {"profile", "serve"},
    "serve/exporting.py": {"serve"},
    "serve/exports.py": {"serve"},
    "serve/worker.py": {"serve"},
    "words/formats.py": {"serve", "compare"},
    "results/serving.py": {"serve", "compare"},
    "compare/verdict.py": {"compare"},
    "compare/serving.py": {"compare"},
    "compare/explain/why.py": {"compare"},
    "compare/report/charts.py": {"compare"},
    "compare/report/templates/style.css": {"compare"},
    "tasks/scoring.py": {"prepare", "train", "profile", "serve"},
    "tasks/images/models/parts.py": {"train", "profile", "serve"},
    "operations/op_types.py": {"profile", "serve", "compare"},
    "results/profile.py": {"profile", "serve", "compare"},
    "results/comparison.py": {"compare"},
    "results/occasions.py": {"compare"},
    "stats/resampling.py": {"prepare", "train", "profile", "serve", "compare"},
    "stats/speedup.py": {"profile", "serve", "compare"},
    "stats/quality.py": {"compare"},
    "machine/gpus/driver.py": {"profile", "serve"},
    "params/derived.py": {"train", "profile", "serve"},
    "params/margin.py": {"compare"},
    "params/measures.py": {"profile", "serve", "compare"},
    "words/outcomes.py": {"profile", "serve", "compare"},
    "words/policies.py": {"prepare", "train", "profile", "serve", "compare"},
    "tasks/precision.py": {"prepare", "train", "profile", "serve"},
    "tensorflow_import.py": {"prepare", "train", "profile", "serve"},
    "words/escaping.py": {"prepare"},
    "words/text.py": {"compare"},
    **{module: set[str]() for module in WITHOUT_STAGES},
}
# What only modules of `WITHOUT_EFFECT` import, by stage.
ESCAPING, FORMATS = "halfstep/words/escaping.py", "halfstep/words/formats.py"
LOADED_BY_THESE = {
    "prepare": (FORMATS,),
    "train": (
        ESCAPING,
        FORMATS,
        "halfstep/results/audit.py",
        "halfstep/results/profile.py",
        "halfstep/results/serving.py",
    ),
    "profile": (ESCAPING, FORMATS, "halfstep/results/serving.py"),
    "serve": (ESCAPING,),
    "compare": (ESCAPING,),
}
IMPORT = """
import importlib, json, sys
for start in sys.argv[1:]:
    importlib.import_module(f"halfstep.{start.replace('/', '.')}")
loaded = (module for name, module in sys.modules.items() if name.partition(".")[0] == "halfstep")
print(json.dumps([module.__file__ for module in loaded if module.__file__]))
"""


@pytest.fixture(scope="module")
def copied(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of `halfstep`."""
    copy = tmp_path_factory.mktemp("copied")
    shutil.copytree(root / "halfstep", copy / "halfstep", ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def before(copied: Path) -> dict[str, dict[str, str]]:
    return keys(copied)


@pytest.mark.parametrize("name", EDITS)
def test_edit_changes_the_digests_of_the_stages_that_use_it(
    copied: Path, before: dict[str, dict[str, str]], name: str
) -> None:
    path = copied / "halfstep" / name
    content = path.read_bytes()
    path.write_bytes(content + b"\n/* */" if path.suffix == ".css" else content + b"\n# a comment\n")
    after = keys(copied)
    path.write_bytes(content)
    assert {stage for stage in STARTS if before[stage] != after[stage]} == EDITS[name]


def test_the_keys_of_all_stages_are_those_of_each_alone(copied: Path, before: dict[str, dict[str, str]]) -> None:
    assert before == {stage: {"sha256": code_digest(stage, copied)} for stage in STARTS}


def test_every_package_is_edited(root: Path) -> None:
    packages = {
        path.name for path in (root / "halfstep").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert {name.partition("/")[0] for name in EDITS} == packages


@pytest.mark.parametrize("stage", STARTS)
def test_no_module_that_python_loads_is_missed(root: Path, stage: str) -> None:
    """Python's own list of what it has loaded is the judge: it sees what the source hides from a parser."""
    done = subprocess.run(
        [warm.python(), "-c", IMPORT, *STARTS[stage]], cwd=root, capture_output=True, text=True, check=True
    )
    loaded = {Path(path).relative_to(root).as_posix() for path in json.loads(done.stdout.splitlines()[-1])}
    starts = {f"halfstep/{start}.py" for start in STARTS[stage]}
    assert starts <= loaded
    relevant = {name for name in loaded if not name.startswith((*WITHOUT_EFFECT, *LOADED_BY_THESE.get(stage, ())))}
    assert relevant | starts <= set(code_files(stage))


def test_a_new_import_adds_a_file_and_its_imports(copied: Path) -> None:
    path = copied / "halfstep/train/fitting.py"
    content = path.read_bytes()
    assert "halfstep/compare/verdict.py" not in code_files("train", copied)
    path.write_bytes(content + b"\nfrom halfstep.compare import verdict\n")
    assert {"halfstep/compare/verdict.py", "halfstep/compare/__init__.py"} <= set(code_files("train", copied))
    path.write_bytes(content)
    assert "halfstep/compare/verdict.py" not in code_files("train", copied)


def test_everything_without_effect_exists(root: Path) -> None:
    assert [name for name in WITHOUT_EFFECT if not (root / name).exists()] == []


def test_what_is_remembered_changes_nothing(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fresh = code_files("compare", copied)
    memory = tmp_path / closure.MEMORY
    remembered = json.loads(memory.read_text())
    assert len(remembered) > len(fresh) / 2  # modules without imports of the same content count once
    monkeypatch.setattr(closure, "parse_source", None)  # nothing is parsed again
    assert code_files("compare", copied) == fresh
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    name = next(name for name, imports in remembered.items() if name != "sha256" and imports)
    for damaged in ("", "[1]", "{", json.dumps(remembered | {name: []}), json.dumps({name: 3})):
        memory.write_text(damaged)
        assert code_files("compare", copied) == fresh
        assert json.loads(memory.read_text()) == remembered
