"""What has changed since a stage started is named, and an unchanged value is no change."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from halfstep.errors import ChangedInputsError
from halfstep.inputs import digests, own_code
from halfstep.inputs.snapshot import Snapshot
from halfstep.params.loading import parse
from halfstep.system import files

PARAMS = """\
train:
  variants: [float32]
  learning_rate: 0.005
  epochs: 2
variants:
  float32: {policy: float32, xla: null, tf32: true, onednn: true}
  other: {policy: bfloat16, xla: null, tf32: true, onednn: true}
data:
  source: folder
  path: pictures
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with parameters and images, after `environment`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS)
    (tmp_path / "pictures/a").mkdir(parents=True)
    (tmp_path / "pictures/a/1.png").write_bytes(b"1")
    settings = parse(PARAMS)
    files.write_json(files.SOURCE_FILE, digests.source_digest(settings.data))
    files.write_json(files.MODEL_FILE, digests.model_digest(settings.model))
    files.write_json(files.TASK_FILE, digests.task_digest(settings.task, 64, 0))
    files.PREPARED.mkdir(parents=True)
    (files.PREPARED / "info.json").write_text("{}")
    files.write_manifest(files.PREPARED)
    return tmp_path


def edit(old: str, new: str) -> None:
    path = Path("params.yaml")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def problem(snapshot: Snapshot) -> str | None:
    try:
        snapshot.require_unchanged()
    except ChangedInputsError as error:
        return str(error)
    return None


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("0.005", "0.05", "train.learning_rate (0.005, now 0.05) changed"),
        ("  learning_rate: 0.005\n", "", "train.learning_rate (0.005, now null) changed"),
        ("policy: float32, xla: null", "policy: float32, xla: true", "variants.float32.xla (null, now true) changed"),
        (
            "float32: {policy: float32, xla: null, tf32: true, onednn: true}",
            "float32: {}",
            " and variants.float32.onednn",
        ),
        ("train:", "train: [", "params.yaml, which cannot be read any more (params.yaml is not valid YAML"),
    ],
)
def test_edited_parameter_is_named_with_both_values(old: str, new: str, named: str) -> None:
    snapshot = Snapshot("train", variant="float32", seed="0")
    edit(old, new)
    assert named in (snapshot.edited_parameters() or "") + " changed"
    assert named in str(problem(snapshot))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.005", "5.0e-3"),
        ("train:", "# for later\ntrain:"),
        ("policy: bfloat16", "policy: mixed_bfloat16"),  # of another variant
        ("path: pictures", "path: ./pictures"),  # not a parameter of the stage
        ("epochs: 2", "epochs: 2  # enough"),
    ],
)
def test_edit_that_changes_nothing_for_the_stage(old: str, new: str) -> None:
    snapshot = Snapshot("train", variant="float32", seed="0")
    edit(old, new)
    assert snapshot.edited_parameters() is None
    assert problem(snapshot) is None


@pytest.mark.usefixtures("here")
def test_missing_file_is_a_change() -> None:
    snapshot = Snapshot("train", variant="float32", seed="0")
    Path("params.yaml").unlink()
    assert "params.yaml is missing" in str(problem(snapshot))


@pytest.mark.usefixtures("here")
def test_touched_file_is_no_change() -> None:
    snapshot = Snapshot("train", variant="float32", seed="0")
    os.utime("params.yaml", (1, 1))
    os.utime(files.PREPARED / files.MANIFEST, (1, 1))
    assert snapshot.edited_parameters() is None
    assert problem(snapshot) is None


@pytest.mark.usefixtures("here")
def test_other_prepared_data_are_named() -> None:
    snapshot = Snapshot("train", variant="float32", seed="0")
    (files.PREPARED / "info.json").write_text("{ }")
    files.write_manifest(files.PREPARED)
    assert "data/prepared changed while the stage ran" in str(problem(snapshot))
    shutil.rmtree(files.PREPARED)
    assert "data/prepared changed while the stage ran" in str(problem(snapshot))


@pytest.mark.usefixtures("here")
def test_images_that_are_added_are_named_by_prepare() -> None:
    snapshot = Snapshot("prepare")
    assert problem(snapshot) is None
    Path("pictures/a/2.png").write_bytes(b"2")
    assert "the images of data.path changed while the stage ran" in str(problem(snapshot))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("stage", ["prepare", "train", "profile", "compare"])
def test_every_stage_has_a_snapshot(stage: str) -> None:
    assert problem(Snapshot(stage, variant="float32", seed="0")) is None


@pytest.mark.usefixtures("here")
def test_code_that_changes_while_the_stage_runs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = {name: tmp_path / name for name in ("one.py", "two.py")}
    for path in code.values():
        path.write_text("")
    there = lambda *_: {name: path for name, path in code.items() if path.exists()}  # noqa: E731
    monkeypatch.setattr(own_code, "code_files", there)
    snapshot = Snapshot("train", variant="float32", seed="0")
    assert problem(snapshot) is None
    code["two.py"].write_text("# edited")
    assert "two.py changed while the stage ran" in (problem(snapshot) or "")
    code["one.py"].unlink()
    assert "one.py and two.py changed while the stage ran" in (problem(snapshot) or "")


@pytest.mark.usefixtures("here")
def test_code_of_another_environment_is_refused_before_any_work() -> None:
    files.write_json(files.KEYS / "train", own_code.key(own_code.contents("train")))
    Snapshot("train", variant="float32", seed="0")
    files.write_json(files.KEYS / "train", {"sha256": "0" * 64})
    with pytest.raises(ChangedInputsError, match="its code has changed since `environment` ran; run `dvc repro`"):
        Snapshot("train", variant="float32", seed="0")
    Snapshot("profile")
