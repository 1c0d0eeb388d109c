"""`prepare` as a whole: from parameters to the files that training and profiling read."""

from __future__ import annotations

import csv
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halfstep.errors import DataError
from halfstep.machine.fingerprint import fingerprint
from halfstep.params.schema import DataParams
from halfstep.prepare.images.pipeline import prepare
from halfstep.prepare.images.reports import conflicts_line
from halfstep.system.files import ENVIRONMENT_FILE, verify_manifest, write_json

SPLITS = ("train", "validation", "test")
FILES = {
    "task.json",
    *(f"{split}_{kind}.npy" for split in SPLITS for kind in ("images", "labels")),
    "info.json",
    "class_counts.csv",
    "rejected.csv",
    "class_conflicts.csv",
    "manifest.json",
}


@pytest.fixture(autouse=True)
def _in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("DVC_ROOT", raising=False)


def folder(root: Path, **others: object) -> DataParams:
    return DataParams.model_validate({"source": "folder", "path": str(root), "image_size": 8, **others})


def load(directory: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        split: (np.load(directory / f"{split}_images.npy"), np.load(directory / f"{split}_labels.npy"))
        for split in SPLITS
    }


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def rejected(directory: Path) -> list[list[str]]:
    with (directory / "rejected.csv").open(newline="") as file:
        return list(csv.reader(file))


def pixel_set(images: np.ndarray) -> set[bytes]:
    return {image.tobytes() for image in images}


def test_folds_and_dark_images_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Images of 12 bits in files of 16."""
    for number in range(40):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"fold{number // 2 % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 1 << 12, (8, 8), dtype=np.uint16)
        Image.fromarray(pixels).save(path)
    prepare(folder(tmp_path / "pictures"), Path("prepared"))
    folds, dark = capsys.readouterr().out.splitlines()
    assert folds.startswith("prepare: the classes are a, b, and each of them contains the folders fold0, fold1;")
    assert dark.startswith("prepare: half of the images have no value above 16 of 255, almost black;")


def test_digits_are_packed_as_documented(tmp_path: Path) -> None:
    prepared = prepare(DataParams(image_size=16), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    verify_manifest(tmp_path / "out")
    assert sum(prepared.images.values()) == 1797
    for split, (images, labels) in load(tmp_path / "out").items():
        assert images.dtype == np.uint8
        assert images.shape == (prepared.images[split], 16, 16, 3)
        assert images.flags.c_contiguous
        assert labels.dtype == np.int32
        assert labels.shape == (len(images),)
        assert images.max() == 255
    info = json.loads((tmp_path / "out" / "info.json").read_text())
    keys = ["schema_version", "source", "synthetic", "classes", "image_shape", "images", "class_counts", "rejected"]
    assert list(info) == keys
    assert (info["source"], info["synthetic"], info["image_shape"]) == ("digits", False, [16, 16, 3])
    assert info["images"]["test"] == pytest.approx(0.4 * 1797, abs=5)
    assert info["class_counts"]["test"] == prepared.class_counts["test"]
    assert rejected(tmp_path / "out") == [["path", "reason"]]


def test_class_counts_agree_with_the_labels(pictures: Path, tmp_path: Path) -> None:
    prepared = prepare(folder(pictures), tmp_path / "out")
    assert prepared.class_counts == {
        "train": {"cat": 10, "dog": 5},
        "validation": {"cat": 2, "dog": 1},
        "test": {"cat": 8, "dog": 4},
    }
    for split, (_, labels) in load(tmp_path / "out").items():
        assert np.bincount(labels).tolist() == list(prepared.class_counts[split].values())
    lines = (tmp_path / "out" / "class_counts.csv").read_text().splitlines()
    assert lines == ["class,train,validation,test", "cat,10,2,8", "dog,5,1,4"]


@pytest.mark.parametrize(
    "data",
    [
        {"source": "digits", "image_size": 12, "color": "grey"},
        {"source": "synthetic", "synthetic_images": 120, "synthetic_classes": 3},
        {"source": "folder", "image_size": 8},
    ],
    ids=lambda data: data["source"],
)
def test_same_input_gives_the_same_bytes(data: dict[str, object], pictures: Path, tmp_path: Path) -> None:
    parameters = DataParams.model_validate({"path": str(pictures), **data})
    prepare(parameters, tmp_path / "one")
    prepare(parameters, tmp_path / "two")
    prepare(parameters.model_copy(update={"split_seed": 1}), tmp_path / "other")
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert digests(tmp_path / "one")["test_images.npy"] != digests(tmp_path / "other")["test_images.npy"]


def test_result_does_not_depend_on_the_number_of_processes(
    tmp_path: Path, draw: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "many"
    for number in range(150):
        draw(root / ("cat" if number % 2 else "dog") / f"{number}.png", number)
    (root / "cat" / "broken.png").write_bytes(b"x")
    for workers in (1, 2):
        monkeypatch.setattr("halfstep.prepare.images.sources.available_workers", lambda workers=workers: workers)
        prepare(folder(root, max_bad_fraction=0.1), tmp_path / f"by{workers}")
    assert digests(tmp_path / "by1") == digests(tmp_path / "by2")


def test_identical_images_are_never_in_two_splits(pictures: Path, tmp_path: Path, draw: Callable[..., Path]) -> None:
    for number in range(10):
        draw(pictures / "cat" / f"copy{number}.png", number)  # under another name
        draw(pictures / "dog" / f"mislabelled{number}.bmp", number)  # as another class, in another format
    prepare(folder(pictures), tmp_path / "out")
    splits = load(tmp_path / "out")
    sets = [pixel_set(images) for images, _ in splits.values()]
    assert not sets[0] & sets[1]
    assert not sets[0] & sets[2]
    assert not sets[1] & sets[2]
    assert sum(len(images) for images, _ in splits.values()) == 50


def conflicts(directory: Path) -> list[list[str]]:
    with (directory / "class_conflicts.csv").open(newline="") as file:
        return list(csv.reader(file))


def test_images_that_occur_in_several_classes_are_listed(
    pictures: Path, tmp_path: Path, draw: Callable[..., Path]
) -> None:
    draw(pictures / "cat" / "copy.png", 3)  # in the same class: no conflict
    draw(pictures / "cat" / "x.bmp", 102)
    draw(pictures / "dog" / "x.bmp", 3)  # in another format
    draw(pictures / "dog" / "y.png", 3)
    prepare(folder(pictures), tmp_path / "out")
    assert conflicts(tmp_path / "out") == [
        ["image", "path", "class"],
        ["0", "cat/03.png", "cat"],
        ["0", "cat/copy.png", "cat"],
        ["0", "dog/x.bmp", "dog"],
        ["0", "dog/y.png", "dog"],
        ["1", "cat/x.bmp", "cat"],
        ["1", "dog/02.png", "dog"],
    ]
    assert conflicts_line(tmp_path / "out") == (
        "2 image(s) occur in more than one class, for example cat/03.png in 'cat' and dog/x.bmp in 'dog'; they are "
        f"used as they are: check their classes ({tmp_path / 'out' / 'class_conflicts.csv'} lists all of them)"
    )
    assert rejected(tmp_path / "out") == [["path", "reason"]]


def test_given_splits_are_used_and_duplicates_dropped_from_training(tmp_path: Path, draw: Callable[..., Path]) -> None:
    root = tmp_path / "split"
    for label, name in enumerate(("cat", "dog")):
        for number in range(10):
            draw(root / "train" / name / f"{number}.png", 100 * label + number)
        for number in range(4):
            draw(root / "test" / name / f"{number}.png", 1000 + 100 * label + number)
    draw(root / "train" / "cat" / "leak.png", 1002)
    prepared = prepare(folder(root), tmp_path / "out")
    assert prepared.images == {"train": 18, "validation": 2, "test": 8}
    assert rejected(tmp_path / "out")[1:] == [["train/cat/leak.png", "duplicate of test/cat/2.png"]]
    splits = load(tmp_path / "out")
    assert not pixel_set(splits["test"][0]) & pixel_set(np.concatenate([splits["train"][0], splits["validation"][0]]))


def spoil(pictures: Path) -> None:
    (pictures / "cat" / "00.png").write_bytes(b"")
    (pictures / "cat" / "01.png").write_text("not an image")
    Image.new("1", (300, 300)).save(pictures / "dog" / "00.png")
    (pictures / "dog" / "away.png").symlink_to(pictures.parent)


def test_tolerated_bad_files_are_listed(pictures: Path, tmp_path: Path) -> None:
    spoil(pictures)
    prepared = prepare(folder(pictures, max_bad_fraction=4 / 31, max_pixels=80_000), tmp_path / "out")
    assert sum(prepared.images.values()) == 27
    assert rejected(tmp_path / "out") == [
        ["path", "reason"],
        ["cat/00.png", "empty file"],
        ["cat/01.png", "not an image of a known format (JPEG, PNG, BMP, GIF, WEBP, TIFF)"],
        ["dog/00.png", "300 x 300 pixels, more than data.max_pixels = 80000 allows"],
        ["dog/away.png", "a link that leads out of the folder"],
    ]
    assert json.loads((tmp_path / "out" / "info.json").read_text())["rejected"] == 4


def test_too_many_bad_files_are_refused_and_listed(pictures: Path, tmp_path: Path) -> None:
    spoil(pictures)
    with pytest.raises(DataError) as caught:
        prepare(folder(pictures, max_bad_fraction=0.1, max_pixels=80_000), tmp_path / "out")
    message = str(caught.value)
    list_path = tmp_path / "project" / ".halfstep" / "rejected.csv"
    assert message.startswith(
        "data.path: 4 of 31 files cannot be used, more than data.max_bad_fraction = 0.1 allows: cat/00.png (empty file)"
    )
    assert "and 1 more" in message
    assert "set data.max_bad_fraction to 0.13 or more" in message
    assert str(list_path) in message
    assert "\n" not in message
    assert [row[0] for row in rejected(list_path.parent)] == [
        "path", "cat/00.png", "cat/01.png", "dog/00.png", "dog/away.png"
    ]  # fmt: skip
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("step", ["write_labels", "write_reports", "write_manifest"])
def test_interrupted_run_leaves_no_part_of_its_outputs(
    step: str, error: type[BaseException], pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise error

    prepare(folder(pictures), tmp_path / "out")
    monkeypatch.setattr(f"halfstep.prepare.images.pipeline.{step}", interrupt)
    with pytest.raises(error):
        prepare(folder(pictures), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_run_that_is_interrupted_while_it_reads_keeps_the_old_outputs(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    prepare(folder(pictures), tmp_path / "out")
    before = digests(tmp_path / "out")
    monkeypatch.setattr("halfstep.prepare.images.pipeline.split", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(folder(pictures), tmp_path / "out")
    assert digests(tmp_path / "out") == before


def test_images_that_do_not_fit_on_the_disk_are_refused_at_the_start(tmp_path: Path) -> None:
    huge = DataParams(source="synthetic", synthetic_images=10**9, image_size=1024)
    with pytest.raises(DataError, match=r"GiB are needed and .* GiB are free"):
        prepare(huge, tmp_path / "out")


def test_stage_does_not_import_tensorflow(pictures: Path, tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    Path("params.yaml").write_text(f"data: {{source: folder, path: {pictures}, image_size: 8}}\n")
    write_json(ENVIRONMENT_FILE, fingerprint())
    (pictures / "dog" / "00.png").write_bytes((pictures / "cat" / "00.png").read_bytes())
    code = (
        f"import sys, runpy; sys.path.insert(0, {str(root)!r}); sys.argv = ['prepare']\n"
        "try: runpy.run_module('stages.prepare', run_name='__main__')\n"
        "except SystemExit as end: assert not {'tensorflow', 'keras', 'torch'} & set(sys.modules); raise\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, *_ = done.stdout.splitlines()
    assert second.startswith("prepare: 1 image(s) occur in more than one class, for example cat/00.png in 'cat' and ")
    assert first == "folder: 15 train, 3 validation, 12 test images of 2 classes, 0 rejected"
    assert {path.name for path in Path("data/prepared").iterdir()} == FILES
