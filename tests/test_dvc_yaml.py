"""`dvc.yaml`, `params.yaml` and the typed parameters are consistent."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from stages.inputs.digests import code_of
from stages.params import Params, TrainParams, Variant, load
from tests.test_layers import reached

WITHOUT_EFFECT_ON_A_RESULT = {"require_gpu", "checkpoint_every"}
# Code that a stage imports and its results do not depend on, with the reason. A folder ends with a slash.
CODE_WITHOUT_EFFECT = {
    "stages/__init__.py": "what a signal does",
    "stages/cache.py": "messages on DVC's cache",
    "stages/cli.py": "how a program begins and ends",
    "stages/errors.py": "messages",
    "stages/escaping.py": "names in tables, which `prepare` and `compare` write",
    "stages/fork_server.py": "how processes are started",
    "stages/files.py": "where and how files are written, not what is in them",
    "stages/imports.py": "how fast Python imports",
    "stages/inputs/": "how the digests in data/ are computed, on which the stages depend",
    "stages/locking.py": "which process may write",
    "stages/machine/": "what the machine has, and how data/environment.json is computed; messages",
    "stages/params/": "how params.yaml is read: what else changes results, the stages list",
    "stages/supervision.py": "what is said of a crash",
    "stages/telling.py": "messages to a fleet",
    "stages/terminal.py": "how wide tables are printed",
    "stages/tracking/": "MLflow is a view of the results",
}
IMPORTED_ONLY = {  # for a type, a message or a warning, by stage
    "prepare": {
        "stages/policies.py",
        "stages/precision.py",
        "stages/results/audit.py",
        "stages/results/profile.py",
        "stages/results/training.py",
        "stages/stats/quality.py",
        "stages/stats/resampling.py",
        "stages/stats/sample_size.py",
        "stages/stats/speedup.py",
        "stages/tasks/__init__.py",
        "stages/tensorflow_import.py",
        "stages/text.py",
    },
    "train": {
        "stages/results/audit.py",
        "stages/results/profile.py",
        "stages/tasks/__init__.py",
        "stages/tasks/images/__init__.py",
        "stages/text.py",
    },
    "profile": {
        "stages/tasks/__init__.py",
        "stages/tasks/images/__init__.py",
        "stages/text.py",
    },
    "compare": set(),
}


@pytest.fixture(scope="module")
def pipeline(root: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def stages(pipeline: dict[str, Any]) -> dict[str, Any]:
    return dict(pipeline["stages"])


def test_stages_are_environment_prepare_train_profile_compare(stages: dict[str, Any]) -> None:
    assert list(stages) == ["environment", "prepare", "train", "profile", "compare"]
    assert list(stages["train"]["matrix"]) == ["variant", "seed"]


def test_every_stage_has_a_description(stages: dict[str, Any]) -> None:
    assert [name for name, stage in stages.items() if not stage.get("desc", "").strip()] == []


def test_train_depends_on_all_its_parameters_except_the_lists(stages: dict[str, Any]) -> None:
    fields = set(TrainParams.model_fields) - WITHOUT_EFFECT_ON_A_RESULT - {"variants", "seeds"}
    expected = {f"train.{name}" for name in fields} | {"task", "model.name", "variants.${item.variant}"}
    assert set(stages["train"]["params"]) == expected


def test_parameters_of_the_other_stages(stages: dict[str, Any]) -> None:
    assert stages["prepare"]["params"] == ["task", "data"]
    fields = {f"train.{name}" for name in set(TrainParams.model_fields) - WITHOUT_EFFECT_ON_A_RESULT}
    own = {"task", "model", "variants", "profile", "compare.baseline", "compare.min_speedup"}
    assert set(stages["profile"]["params"]) == own | fields
    assert "compare" in stages["compare"]["params"]
    assert "params" not in stages["environment"]  # it always runs, and reads all parameters


def test_no_stage_depends_on_tracking(stages: dict[str, Any]) -> None:
    deps = [path for stage in stages.values() for path in stage.get("deps", [])]
    assert [path for path in deps if path.startswith("stages/tracking")] == []
    assert not any("tracking" in str(stage.get("params")) for stage in stages.values())


def test_all_dependencies_on_sources_exist(root: Path, stages: dict[str, Any]) -> None:
    paths = {path for stage in stages.values() for path in stage.get("deps", []) if path.startswith("stages/")}
    assert [path for path in sorted(paths) if not (root / path).exists()] == []


@pytest.mark.parametrize(
    ("stage", "path"),
    [
        ("train", "stages/params/derived.py"),
        ("profile", "stages/params/derived.py"),
        ("compare", "stages/params/margin.py"),
        ("compare", "stages/text.py"),
    ],
)
def test_edit_that_changes_a_result_runs_its_stage_again(root: Path, stage: str, path: str) -> None:
    assert (root / path).is_file()
    assert any(path == name or path.startswith(f"{name}/") for name in code_of(stage))


@pytest.mark.parametrize("stage", IMPORTED_ONLY)
def test_code_that_a_stage_imports_is_a_dependency_or_has_no_effect(root: Path, stage: str) -> None:
    """If a module were neither, an edit of it would leave all results as they were."""
    listed = code_of(stage)
    modules = {name.replace(".", "/") for name in reached(root, f"stages.{stage}")}
    paths = {f"{name}.py" if (root / f"{name}.py").is_file() else f"{name}/__init__.py" for name in modules}
    missing = {path for path in paths if not any(path == name or path.startswith(f"{name}/") for name in listed)}
    explained = {path for path in missing if path.startswith(tuple(CODE_WITHOUT_EFFECT))}
    assert missing - explained == IMPORTED_ONLY[stage]
    assert [name for name in listed if not any(path == name or path.startswith(f"{name}/") for path in paths)] == []


@pytest.mark.parametrize(
    ("stage", "results"),
    [
        ("prepare", {"artifact", "prepared", "task"}),
        ("train", {"artifact", "prepared", "task", "training"}),
        ("profile", {"artifact", "prepared", "task", "training", "profile", "audit"}),
    ],
)
def test_stage_depends_only_on_the_formats_that_it_uses(stages: dict[str, Any], stage: str, results: set[str]) -> None:
    """A change of the profile's format must not cause a training."""
    deps = {Path(path) for path in stages[stage]["deps"] if path.startswith("stages/results")}
    assert {path.stem for path in deps} == results


def test_profile_depends_on_the_machine(stages: dict[str, Any]) -> None:
    assert "data/environment.json" in stages["profile"]["deps"]
    assert stages["environment"]["always_changed"] is True


def test_stages_that_run_a_task_depend_on_its_digest(stages: dict[str, Any]) -> None:
    assert [name for name, stage in stages.items() if "data/task.json" in stage.get("deps", [])] == [
        *("prepare", "train", "profile")
    ]
    assert {"data/task.json"} < {path for output in stages["environment"]["outs"] for path in output}


def test_all_templates_exist_and_are_used(root: Path, pipeline: dict[str, Any]) -> None:
    templates = {plot["template"] for entry in pipeline["plots"] for plot in entry.values()}
    assert {f"{name}.json" for name in templates} == {path.name for path in (root / ".dvc/plots").iterdir()}


def test_params_yaml_contains_the_defaults(root: Path) -> None:
    written = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    expected = Params().model_dump(mode="json")
    found = dict(leaves(written))
    optional = {name for name, value in leaves(expected) if name.startswith("variants.") and value in (None, [])}
    assert found == {name: value for name, value in leaves(expected) if name in found or name not in optional}
    assert list(written) == list(expected)
    assert load(root / "params.yaml") == Params()


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def test_every_parameter_is_described() -> None:
    sections = [field.annotation for field in Params.model_fields.values()]
    models = [kind for kind in sections if isinstance(kind, type) and issubclass(kind, BaseModel)] + [Variant]
    fields = [(model, name, field) for model in models for name, field in model.model_fields.items()]
    assert [f"{model.__name__}.{name}" for model, name, field in fields if not field.description] == []


def test_images_in_data_raw_can_be_added_to_dvc(root: Path) -> None:
    ignored = subprocess.run(["git", "check-ignore", "data/raw.dvc", "data/raw/a.png"], cwd=root, capture_output=True)
    assert ignored.stdout.decode().split() == ["data/raw/a.png"]
