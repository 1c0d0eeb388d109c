"""What all result files have in common: versions, unknown keys, and what is read is what was written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from halfstep.errors import CorruptFileError, DataError
from halfstep.params.schema import Variant
from halfstep.results.artifact import Document, read_array, read_table, write_table
from halfstep.results.comparison import (
    COMPARISON,
    Account,
    BeforeAfter,
    Candidate,
    Change,
    Comparison,
    Control,
    Factors,
    KindChange,
    MeasuredSpeedup,
    OpChange,
    PartChange,
    Quality,
    Ratio,
    Reason,
    Score,
    Setup,
    TimeToAccuracy,
    VerdictTest,
)
from halfstep.results.prepared import PreparedInfo
from halfstep.results.profile import SUMMARY, BatchTried, GpuConditions, LargestBatch, ProfileSummary, Round
from halfstep.results.task import images_task
from halfstep.results.training import METRICS, TrainingMetrics
from halfstep.system import files
from tests.small_study import CONFIGURATION, ENVIRONMENT, PROTOCOL, summary, training_metrics

GPU = GpuConditions(
    name="Tesla T4",
    uuid="GPU-39cd9454-0976-646a-acef-01a35ad02034",
    readings=3,
    throttled=1 / 3,
    reasons={"sw_thermal_slowdown": 1 / 3},
    sm_clock_mhz=(585, 1590),
    power_w=(30.5, 70.0),
    reading_ms=0.1,
)

RATIO = Ratio(value=1.3, low=1.2, high=1.4)
QUALITY = Quality(
    name="accuracy",
    baseline=0.98,
    candidate=0.97,
    value=-0.01,
    low=-0.02,
    high=0.01,
    margin=0.01,
    seeds=1,
    n=400,
    outcome="not established",
    mcnemar_p=0.25,
)
LEAST_CANDIDATE = Candidate(verdicts={"train": "inconclusive"}, sentence="x could not be compared.", reasons=())
FULL_CANDIDATE = Candidate(
    speedup={
        "train": MeasuredSpeedup(
            value=1.6,
            low=1.5,
            high=1.7,
            confidence=0.95,
            rounds=20,
            n=4,
            typical_ratio=1.61,
            baseline_time_ms=16.0,
            candidate_time_ms=10.0,
        )
    },
    factors={"train": Factors(settings=RATIO, precision=RATIO)},
    quality=QUALITY,
    quality_same_weights=QUALITY,
    limit={"train": 1.9},
    verdicts={"train": "adopt", "inference_b1": "reject", "inference_b32": "inconclusive"},
    tests={"train": VerdictTest(p=0.001, p_adjusted=0.006)},
    sentence="Use x: …",
    next_steps=("set profile.max_seconds to about 60",),
    reasons=(
        Reason(
            code="at_limit", measure="train", text="…", evidence={"limit": 1.9, "seen": [1]}, advice="…", time_ms=0.1
        ),
    ),
    peak_memory_mib=BeforeAfter(baseline=210.0, candidate=180.5),
    max_batch_size=BeforeAfter(baseline=512, candidate=896),
    operations={
        "lost": (OpChange(layer="cnn", operation="Cast", candidate_ms=0.5, delta_ms=0.5, low_ms=0.4, high_ms=0.6),)
    },
    account={
        "train": Account(
            measured=Change(value=2.0, low=1.5, high=2.5),
            calm=PartChange(baseline_ms=13.0, candidate_ms=14.9, value=1.9, low=1.4, high=2.4),
            kinds=(
                KindChange(
                    kind="cast",
                    baseline_ms=0.0,
                    candidate_ms=1.25,
                    value=1.25,
                    low=1.0,
                    high=1.5,
                    plain_ms=1.2,
                    named=True,
                ),
            ),
            disturbance=Change(value=0.1, low=-0.5, high=0.7),
            inflation=BeforeAfter(baseline=1.1, candidate=1.2),
            repeats=4,
        )
    },
    why="x takes 2.0 ms more a step.",
)
LEAST_COMPARISON = Comparison(
    baseline="float32", environment=ENVIRONMENT, control={}, noise_floor={}, min_speedup=1.05, candidates={}
)


@dataclass(frozen=True)
class Kind:
    """A type of document, where its file is, the stage that writes it, and instances with few and with all fields."""

    document: type[Document]
    path: Path
    stage: str
    instances: tuple[Document, ...]


KINDS = (
    Kind(
        PreparedInfo,
        files.PREPARED / "info.json",
        "prepare",
        (
            PreparedInfo(
                source="folder",
                synthetic=False,
                classes=("ä", "b"),
                image_shape=(32, 32, 1),
                images={"train": 3, "test": 1},
                class_counts={"train": {"ä": 1, "b": 2}, "test": {"ä": 1}},
                rejected=1,
            ),
        ),
    ),
    Kind(
        TrainingMetrics,
        files.train_dir("mixed_float16", 3) / METRICS,
        "train@mixed_float16-3",
        (
            training_metrics(),
            training_metrics(test_accuracy=1 / 3, test_loss=1e-300, loss_scale=2.0**15),
            training_metrics(status="failed", reason="the loss is nan", epoch=2, step=17, loss_scale=1.0),
        ),
    ),
    Kind(
        ProfileSummary,
        files.profile_dir("float32") / SUMMARY,
        "profile",
        (
            summary("float32", metrics={"step_time_ms/mean": 0.1 + 0.2}),
            summary(
                "mixed_float16",
                entry=Variant(policy="mixed_float16", xla=True, tf32=False, onednn=False),
                configuration=CONFIGURATION.model_copy(update={"op_determinism": True}),
                protocol=PROTOCOL.model_copy(update={"other_load_cores": 0.1, "gpus": (GPU,), "warnings": ("hot",)}),
                warnings=("the trace is truncated",),
                largest_batch=LargestBatch(
                    batch_size=64,
                    limit_mib=100,
                    peak_mib=99.5,
                    examples_per_s=100.0,
                    tried=(BatchTried(batch_size=64, peak_mib=9.5, examples_per_s=100.0), BatchTried(batch_size=128)),
                ),
            ),
        ),
    ),
    Kind(
        Comparison,
        COMPARISON,
        "compare",
        (
            LEAST_COMPARISON,
            Comparison(
                baseline="float32",
                environment=ENVIRONMENT | {"gpus": [{"name": "A100", "driver": None}]},
                control={"train": Control(value=1.001, low=0.985, high=1.016, differs=True)},
                noise_floor={"train": 0.016},
                min_speedup=1.05,
                gate="passed",
                score=Score(name="accuracy", unit="fraction", margin=0.01),
                throttled={"train": 0.25},
                setup=Setup(
                    seeds=(0, 1),
                    inference_batch_sizes=(1, 32),
                    task=images_task(400),
                    protocol=PROTOCOL,
                    configuration=CONFIGURATION,
                    xla=("x",),
                    warnings={"x": ("…",)},
                    manifests={"data/prepared": "0" * 64},
                ),
                time_to_accuracy=TimeToAccuracy(val_accuracy=0.9, time_to_accuracy_s={"float32": 1.5}),
                baseline_reasons=(Reason(code="no_16bit_ops", measure="train", text="…", evidence={}, advice="…"),),
                candidates={"x": FULL_CANDIDATE, "y": LEAST_CANDIDATE},
            ),
        ),
    ),
)
INSTANCES = [(kind, instance) for kind in KINDS for instance in kind.instances]


def _name(kind: Kind) -> str:
    return kind.document.__name__


def _write(kind: Kind, change: Callable[[dict[str, Any]], Any]) -> None:
    """Writes the file of an instance, with a change."""
    content = kind.instances[-1].as_json()
    change(content)
    files.write_json(kind.path, content)


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("kind", "instance"), INSTANCES, ids=[_name(kind) for kind, _ in INSTANCES])
def test_document_is_read_as_it_was_written(kind: Kind, instance: Document) -> None:
    instance.write(kind.path)
    assert kind.document.read(kind.path) == instance


@pytest.mark.parametrize("kind", KINDS, ids=_name)
def test_document_of_release_0_1_0_is_rejected_with_the_command(kind: Kind) -> None:
    """Release 0.1.0 wrote no schema_version, which counts as 1."""
    _write(kind, lambda content: content.pop("schema_version"))
    with pytest.raises(CorruptFileError) as raised:
        kind.document.read(kind.path)
    assert str(raised.value) == (
        f"{kind.path} has schema version 1 and this release of halfstep reads {kind.document.VERSION}: "
        f"run `dvc repro -f -s {kind.stage}`"
    )


@pytest.mark.parametrize("kind", KINDS, ids=_name)
def test_unknown_key_is_rejected_by_name(kind: Kind) -> None:
    _write(kind, lambda content: content.update(colour="red"))
    with pytest.raises(CorruptFileError) as raised:
        kind.document.read(kind.path)
    message = str(raised.value)
    assert message.startswith(f"{kind.path} cannot be used (colour: ")
    assert f"`dvc repro -f -s {kind.stage}`" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("key", "value"),
    [("settle", ["wait"]), ("accuracy", {}), ("verdict_inference", "adopt"), ("colour", "adopt")],
)
def test_unknown_key_of_a_candidate_is_rejected(key: str, value: Any) -> None:
    kind = KINDS[-1]
    _write(kind, lambda content: content["candidates"]["x"].update({key: value}))
    with pytest.raises(CorruptFileError, match=rf"candidates\.x.*{key}|candidates\.x\.{key}"):
        kind.document.read(kind.path)


def test_file_outside_of_the_pipeline_has_no_command_that_makes_it(tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text('{"colour": "red"}')
    with pytest.raises(CorruptFileError) as raised:
        Comparison.read(tmp_path.parent / tmp_path.name / "comparison.json")
    assert "dvc repro" not in str(raised.value)


def test_kind_of_operations_that_nobody_knows_is_rejected_by_name(tmp_path: Path) -> None:
    change = {"baseline_ms": 1, "candidate_ms": 2, "delta": 1, "low": 0, "high": 2, "plain_ms": 1, "p": 0.1}
    with pytest.raises(ValidationError, match=r"kind\n  Input should be 'input', 'cast'.* or 'host'"):
        KindChange(kind="off", **change)
    KindChange(kind="host", **change)


def test_verdict_of_inference_is_one_of_three(tmp_path: Path) -> None:
    _write(KINDS[-1], lambda content: content["candidates"]["x"].update(verdict_inference_b8="maybe"))
    with pytest.raises(CorruptFileError, match=r"candidates\.x\.verdicts\.inference_b8"):
        Comparison.read(COMPARISON)


def test_each_verdict_has_a_key_of_its_own_in_the_file() -> None:
    written = FULL_CANDIDATE.model_dump()
    keys = {"verdict": "adopt", "verdict_inference_b1": "reject", "verdict_inference_b32": "inconclusive"}
    assert {key: value for key, value in written.items() if key.startswith("verdict")} == keys
    assert Candidate.model_validate(written) == FULL_CANDIDATE


@pytest.mark.parametrize("kind", KINDS, ids=_name)
def test_missing_key_is_rejected_by_name(kind: Kind) -> None:
    required = next(name for name, field in kind.document.model_fields.items() if field.is_required())
    _write(kind, lambda content: content.pop(required))
    with pytest.raises(CorruptFileError, match=rf"\({required}: Field required\)"):
        kind.document.read(kind.path)


@pytest.mark.parametrize("kind", KINDS, ids=_name)
def test_missing_file_is_named(kind: Kind) -> None:
    with pytest.raises(DataError, match=f"{kind.path} is missing"):
        kind.document.read(kind.path)


@pytest.mark.parametrize("text", ["[]", "3", '"text"'])
def test_json_that_is_not_an_object_is_rejected(text: str) -> None:
    files.write_text(COMPARISON, text)
    with pytest.raises(CorruptFileError, match="it is not a JSON object"):
        Comparison.read(COMPARISON)


def test_fields_that_do_not_apply_are_absent_from_the_file() -> None:
    path = files.train_dir("float32", 0) / METRICS
    training_metrics().write(path)
    assert "test_accuracy" not in json.loads(path.read_text())
    assert json.loads(path.read_text())["schema_version"] == TrainingMetrics.VERSION


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_not_written(value: float) -> None:
    reason = Reason(code="x", measure="train", text="…", evidence={"value": value}, advice="…")
    for document in (
        training_metrics(test_loss=value),
        summary("float32", metrics={"step_time_ms/mean": value}),
        LEAST_COMPARISON.model_copy(update={"baseline_reasons": (reason,)}),
    ):
        with pytest.raises(ValueError, match="not JSON compliant"):
            document.write(COMPARISON)


def test_documents_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        training_metrics().batch_size = 1  # type: ignore[misc]


def test_table_has_a_column_for_each_field() -> None:
    path = files.PROFILE / "float32" / "rounds.csv"
    write_table(path, Round, [Round(process=0, round=1, position=2, steps=6, round_time_ms=1 / 3, counted=False)])
    columns = ["process", "round", "position", "steps", "round_time_ms", "counted"]
    table = read_table(path, columns)
    assert list(table) == columns
    assert table.to_dict("records") == [
        {
            "process": 0,
            "round": 1,
            "position": 2,
            "steps": 6,
            "round_time_ms": pytest.approx(1 / 3, abs=1e-6),
            "counted": False,
        }
    ]


def test_column_that_only_a_gpu_has_is_written_where_a_row_has_it() -> None:
    path = files.PROFILE / "float32" / "rounds.csv"
    rows = [Round(0, number, 0, 6, 1.0, throttled=throttled) for number, throttled in enumerate((True, None, False))]
    write_table(path, Round, rows)
    assert read_table(path, ["throttled"])["throttled"].eq(True).tolist() == [True, False, False]
    write_table(path, Round, rows[1:2])
    assert "throttled" not in read_table(path, [])


def test_table_without_rows_is_rejected_unless_it_may_be_empty() -> None:
    path = files.PROFILE / "float32" / "rounds.csv"
    write_table(path, Round, [])
    assert read_table(path, ["process"], may_be_empty=True).empty
    with pytest.raises(CorruptFileError, match=r"rounds.csv cannot be used \(it has no rows\)"):
        read_table(path, ["process"])


def test_missing_columns_are_named() -> None:
    path = files.PROFILE / "float32" / "rounds.csv"
    files.write_text(path, "process,round\n0,0\n")
    with pytest.raises(CorruptFileError, match=r"columns steps, round_time_ms are missing.*dvc repro -f -s profile"):
        read_table(path, ["process", "round", "steps", "round_time_ms"], may_be_empty=True)


@pytest.mark.parametrize("array", [np.zeros((2, 2)), np.array([0.0, np.nan]), np.array([np.inf]), np.array(["1"])])
def test_array_of_other_dimensions_or_values_is_rejected(array: np.ndarray) -> None:
    path = files.PREPARED / "test_labels.npy"
    path.parent.mkdir(parents=True)
    np.save(path, array)
    with pytest.raises(CorruptFileError, match="it must have 1 dimensions of finite numbers"):
        read_array(path, dimensions=1)
