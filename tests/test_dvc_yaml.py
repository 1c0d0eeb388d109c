"""`dvc.yaml`, `params.yaml` and the typed parameters are consistent."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from halfstep.inputs.own_code import STARTS
from halfstep.params.loading import load
from halfstep.params.schema import Params, TrainParams, Variant

WITHOUT_EFFECT_ON_A_RESULT = {"require_gpu", "checkpoint_every"}


@pytest.fixture(scope="module")
def pipeline(root: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def stages(pipeline: dict[str, Any]) -> dict[str, Any]:
    return dict(pipeline["stages"])


def test_stages_are_those_of_the_pipeline(stages: dict[str, Any]) -> None:
    assert list(stages) == ["environment", "prepare", "train", "profile", "serve", "compare"]
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
    of_training = {f"train.{name}" for name in ("variants", "seeds", "epochs", "batch_size")}
    assert set(stages["serve"]["params"]) == own | of_training | {"serve"}
    assert "compare" in stages["compare"]["params"]
    assert "params" not in stages["environment"]  # it always runs, and reads all parameters


def test_no_result_depends_on_tracking(stages: dict[str, Any]) -> None:
    assert [name for name, stage in stages.items() if "data/keys/tracking" in stage.get("deps", ())] == ["compare"]
    assert not any("tracking" in str(stage.get("params")) for stage in stages.values())


def test_profile_depends_on_the_machine(stages: dict[str, Any]) -> None:
    assert "data/environment.json" in stages["profile"]["deps"]
    assert stages["environment"]["always_changed"] is True


def test_stages_depend_on_their_code_and_on_nothing_else_of_it(stages: dict[str, Any]) -> None:
    digests = {f"data/keys/{name}" for name in STARTS}
    code = {name: [path for path in stage.get("deps", ()) if path in digests] for name, stage in stages.items()}
    assert code == {"environment": []} | {name: [f"data/keys/{name}"] for name in STARTS}
    assert [path for stage in stages.values() for path in stage.get("deps", ()) if path.startswith("stages")] == []


def test_stages_that_run_a_task_or_a_model_depend_on_its_digest(stages: dict[str, Any]) -> None:
    def on(name: str) -> list[str]:
        return [stage for stage, entry in stages.items() if f"data/keys/{name}" in entry.get("deps", [])]

    assert on("task") == ["prepare", *on("model")] == ["prepare", "train", "profile", "serve"]


def test_it_fits_on_a_page(root: Path) -> None:
    before_the_plots = (root / "dvc.yaml").read_text(encoding="utf-8").partition("\nplots:")[0]
    assert before_the_plots.count("\n") <= 120


def test_all_templates_exist_and_are_used(root: Path, pipeline: dict[str, Any]) -> None:
    templates = {plot["template"] for entry in pipeline["plots"] for plot in entry.values()}
    assert {f"{name}.json" for name in templates} == {path.name for path in (root / ".dvc/plots").iterdir()}


def test_params_yaml_contains_the_defaults(root: Path) -> None:
    written = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    expected = Params().model_dump(mode="json")
    values = dict(leaves(written))
    of_variants = {name: value for name, value in leaves(expected) if name.startswith("variants.")}
    optional = {name for name, value in of_variants.items() if value in (None, []) or name.endswith(".trained")}
    assert values == {name: value for name, value in leaves(expected) if name in values or name not in optional}
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
