"""The studies are valid, and an experiment gets their parameters whatever params.yaml says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dvc.utils.hydra import apply_overrides

from halfstep.params.loading import load
from halfstep.params.schema import Params
from tests.params_file import set_parameters
from tools.gallery import studies
from tools.gallery.studies import overrides

CPU: dict[str, Any] = {"cpu": {"instruction_sets": ["avx2", "avx512_bf16"]}, "gpus": []}
WITH_FLOAT16 = {"cpu": {"instruction_sets": ["avx512_fp16"]}, "gpus": []}


def test_there_are_enough_studies_and_each_compares_both_precisions(folder: Path) -> None:
    studies_by_name = studies.read()
    assert len(studies_by_name) >= 12
    assert sum(study.in_readme for study in studies_by_name.values()) == 5
    for study in studies_by_name.values():
        settings = study.settings(WITH_FLOAT16, "day")
        assert {"float32", "mixed_float16", "mixed_bfloat16"} <= set(settings.train.variants), study.name
        assert settings.profile.max_seconds is not None, study.name
        assert settings.profile.occasion == "day"


def test_what_is_trained_needs_nothing_from_outside(root: Path, folder: Path) -> None:
    for study in studies.read().values():
        settings = study.settings(CPU, "day")
        assert settings.data.source in ("digits", "synthetic")
        task = settings.task
        path = task.script or (
            f"{task.name.partition(':')[0].replace('.', '/')}.py" if not task.uses_data_and_model else "params.yaml"
        )
        assert (root / path).is_file(), study.name
        is_judged = settings.data.source == "digits" or not task.uses_data_and_model
        assert (settings.train.epochs == 0) is not is_judged, study.name


@pytest.mark.parametrize(
    "edits",
    [
        {},
        {"task.name": "mine:build", "task.arguments": {"width": 64}, "compare.quality_margin": 1.0, "train.epochs": 3},
        {"variants.float32": {"policy": "float32", "onednn": False, "batch_size": 8}, "data.source": "synthetic"},
        {"train.variants": ["a", "float32"], "variants.a": {"policy": "bfloat16"}, "train.augment": {"flip": True}},
        {"profile.occasion": "monday", "profile.inference_batch_sizes": [4], "train.learning_rate": 0.1},
    ],
)
def test_experiment_gets_the_parameters_of_the_study(folder: Path, edits: dict[str, Any]) -> None:
    """Through Hydra, as DVC applies them to the user's params.yaml."""
    set_parameters(folder, edits)
    text = (folder / "params.yaml").read_text()
    for study in studies.read().values():
        (folder / "params.yaml").write_text(text)
        wanted = study.settings(CPU, "a-day")
        apply_overrides("params.yaml", list(overrides(load(), wanted)))
        params = load()
        for section in set(Params.model_fields) - {"variants", "tracking", "fleet"}:
            assert getattr(params, section) == getattr(wanted, section), (study.name, section)
        assert {name: params.variants[name] for name in wanted.train.variants} == {
            name: wanted.variants[name] for name in wanted.train.variants
        }
