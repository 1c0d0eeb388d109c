"""`dvc.yaml`, `params.yaml`, the README and the typed parameters say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from stages.params import Params, TrainParams, Variant, load

WITHOUT_EFFECT_ON_A_RESULT = {"require_gpu", "checkpoint_every"}


@pytest.fixture(scope="module")
def pipeline(root: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def stages(pipeline: dict[str, Any]) -> dict[str, Any]:
    return dict(pipeline["stages"])


def test_the_stages_are_those_of_the_contract(stages: dict[str, Any]) -> None:
    assert list(stages) == ["environment", "prepare", "train", "profile", "compare"]
    assert list(stages["train"]["matrix"]) == ["variant", "seed"]


def test_every_stage_says_what_it_does(stages: dict[str, Any]) -> None:
    assert [name for name, stage in stages.items() if not stage.get("desc", "").strip()] == []


def test_train_depends_on_each_of_its_parameters_but_the_lists(stages: dict[str, Any]) -> None:
    fields = set(TrainParams.model_fields) - WITHOUT_EFFECT_ON_A_RESULT - {"variants", "seeds"}
    expected = {f"train.{name}" for name in fields} | {"model.name", "variants.${item.variant}"}
    assert set(stages["train"]["params"]) == expected


def test_sections_that_the_other_stages_depend_on(stages: dict[str, Any]) -> None:
    assert stages["prepare"]["params"] == ["data"]
    fields = {f"train.{name}" for name in set(TrainParams.model_fields) - WITHOUT_EFFECT_ON_A_RESULT}
    assert set(stages["profile"]["params"]) == {"model", "variants", "profile", "compare.baseline"} | fields
    assert "compare" in stages["compare"]["params"]
    assert "params" not in stages["environment"]  # it always runs, and reads all of them


def test_no_stage_depends_on_how_runs_are_logged(stages: dict[str, Any]) -> None:
    named = {name: stage.get("deps", []) for name, stage in stages.items()}
    assert [name for name, paths in named.items() if any(path.startswith("stages/tracking") for path in paths)] == []
    assert not any("tracking" in str(stage.get("params")) for stage in stages.values())


def test_every_dependency_on_a_source_exists(root: Path, stages: dict[str, Any]) -> None:
    paths = {path for stage in stages.values() for path in stage.get("deps", []) if path.startswith("stages/")}
    assert [path for path in sorted(paths) if not (root / path).exists()] == []


def test_a_timing_depends_on_the_machine(stages: dict[str, Any]) -> None:
    assert "data/environment.json" in stages["profile"]["deps"]
    assert stages["environment"]["always_changed"] is True


def test_every_plot_has_its_template(root: Path, pipeline: dict[str, Any]) -> None:
    named = {plot["template"] for entry in pipeline["plots"] for plot in entry.values()}
    assert {f"{name}.json" for name in named} == {path.name for path in (root / ".dvc/plots").iterdir()}


def test_params_yaml_is_the_typed_defaults(root: Path) -> None:
    written = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    expected = Params().model_dump(mode="json")
    assert dict(leaves(written)) == dict(leaves(expected))
    assert list(written) == list(expected)
    assert load(root / "params.yaml") == Params()


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def parameter_names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        section = next((kind for kind in (field.annotation,) if isinstance(kind, type)), None)
        if name == "variants" and model is Params:
            yield from (f"variants.<name>.{key}" for key in Variant.model_fields)
        elif section is not None and issubclass(section, BaseModel):
            yield from parameter_names(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_the_readme_names_every_parameter(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w.<>]+)`", row.split("|")[1])}
    missing = [name for name in parameter_names(Params) if name not in named]
    assert missing == []


def test_every_parameter_is_described() -> None:
    sections = [field.annotation for field in Params.model_fields.values()]
    models = [kind for kind in sections if isinstance(kind, type) and issubclass(kind, BaseModel)] + [Variant]
    fields = [(model, name, field) for model in models for name, field in model.model_fields.items()]
    assert [f"{model.__name__}.{name}" for model, name, field in fields if not field.description] == []
