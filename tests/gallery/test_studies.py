"""The studies are valid, and an experiment gets their parameters whatever params.yaml says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dvc.utils.hydra import apply_overrides

from halfstep.params import Params, load
from tests.gallery.conftest import KNOWN
from tests.params_file import set_parameters
from tools.gallery import studies
from tools.gallery.results import GalleryError
from tools.gallery.studies import chosen, overrides

CPU: dict[str, Any] = {"cpu": {"instruction_sets": ["avx2", "avx512_bf16"]}, "gpus": []}
WITH_FLOAT16 = {"cpu": {"instruction_sets": ["avx512_fp16"]}, "gpus": []}
T4 = {"cpu": {}, "gpus": [{"name": "T4", "compute_capability": "7.5"}]}
GTX_1080 = {"cpu": {"instruction_sets": ["avx512_fp16"]}, "gpus": [{"name": "GTX 1080", "compute_capability": "6.1"}]}


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


@pytest.mark.parametrize(("machine", "expected"), [(CPU, False), (WITH_FLOAT16, True), (T4, True), (GTX_1080, False)])
def test_float16_is_measured_where_the_machine_computes_it(
    folder: Path, machine: dict[str, Any], expected: bool
) -> None:
    variants = studies.read()["cnn"].settings(machine, "day").train.variants
    assert ("mixed_float16" in variants) is expected
    assert {"float32", "mixed_bfloat16"} <= set(variants)


def test_other_occasion_is_the_same_study_and_another_machine_is_not(folder: Path) -> None:
    cnn, lstm = (studies.read()[name] for name in ("cnn", "lstm"))
    assert cnn.sha256(CPU) == cnn.sha256(CPU) != lstm.sha256(CPU)
    assert cnn.sha256(CPU) != cnn.sha256(T4)


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


def test_what_is_as_in_the_study_is_not_overridden(folder: Path) -> None:
    cnn = studies.read()["cnn"].settings(CPU, "day")
    names = {text.partition("=")[0].lstrip("+") for text in overrides(load(), cnn)}
    assert names == {
        "train.variants",
        "variants.float32_batch_128",
        "profile.max_seconds",
        "profile.occasion",
        "serve.formats",
        "profile.seed",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("studies: {}", "studies: Input should be a valid list"),
        ("studies: [{name: Big}]", "studies[0].name: String should match pattern"),
        ("studies: [{name: a, title: A, shows: x, minutes: 0, parameters: {}}]", "studies[0].minutes: Input should be"),
        ("studies: [", "gallery/studies.yaml is not valid YAML"),
        (
            "studies: [{name: a, title: A, shows: x, minutes: 1, parameters: {}}, "
            "{name: a, title: A, shows: x, minutes: 1, parameters: {}}]",
            "a is given twice",
        ),
    ],
)
def test_invalid_file_is_one_line(folder: Path, text: str, message: str) -> None:
    (folder / studies.STUDIES).write_text(text)
    with pytest.raises(Exception, match="gallery/studies") as caught:
        studies.read()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parameter_that_is_not_allowed_is_named_with_its_study(folder: Path) -> None:
    text = (folder / studies.STUDIES).read_text().replace("data.image_size: 96", "data.image_size: 4")
    (folder / studies.STUDIES).write_text(text)
    with pytest.raises(Exception, match=r"mobilenet-96: data\.image_size is 4; it must be an integer of at least 8"):
        studies.read()["mobilenet-96"].settings(CPU, "day")


def test_missing_file_and_unknown_study_are_named(folder: Path) -> None:
    with pytest.raises(GalleryError, match="--study resnet1000: it must be one of regression, cnn"):
        chosen(studies.read(), ["resnet1000"])
    assert [study.name for study in chosen(studies.read(), ["lstm", "cnn"])] == ["lstm", "cnn"]
    (folder / studies.STUDIES).unlink()
    with pytest.raises(GalleryError, match=r"gallery/studies\.yaml cannot be read"):
        studies.read()


def test_change_of_a_setting_does_not_lower_the_precision() -> None:
    cnn = KNOWN["cnn"]
    assert [cnn.lowers_precision(name) for name in ("mixed_bfloat16", "mixed_float16", "float16")] == [True] * 3
    assert [cnn.lowers_precision(name) for name in ("float32", "float32_batch_128")] == [False] * 2
