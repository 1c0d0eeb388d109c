"""Mistakes that people make: one line that says what is wrong, and nothing of what was there is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

Draw = Callable[..., Path]
CLOSED_PORT = "http://127.0.0.1:9"

MODELS = """
import keras


def wrong_width(input_shape, classes):
    pixels = keras.Input(input_shape, dtype="uint8")
    features = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(pixels))
    return keras.Model(pixels, keras.layers.Dense(classes + 1)(features))


def raising(input_shape, classes):
    raise RuntimeError("the weights are\\nnot here")
"""


@dataclass(frozen=True)
class Mistake:
    """Parameters, and what standard error must hold: a line for each of `fragments`, in their order."""

    name: str
    params: dict[str, Any]
    fragments: tuple[str, ...]
    command: str = "environment"
    status: int = 2


WRONG_PARAMETERS = [
    Mistake("unknown", {"train.momentum": 0.9}, ("train.momentum is unknown; allowed here: variants, seeds",)),
    Mistake("misspelt", {"train.epoch": 3}, ("did you mean 'epochs'?",)),
    Mistake("a misspelt section", {"trian": {"epochs": 3}}, ("trian is unknown",)),
    Mistake("below the range", {"train.epochs": 0}, ("train.epochs is 0; it must be a whole number of at least 1",)),
    Mistake(
        "above the range", {"data.test_fraction": 1.5}, ("data.test_fraction is 1.5; it must be a number above 0",)
    ),
    Mistake("of the wrong type", {"train.batch_size": "many"}, ("train.batch_size is 'many'; it must be a whole",)),
    Mistake("not a number", {"train.learning_rate": float("nan")}, ("train.learning_rate is nan",)),
    Mistake("no choice", {"data.source": "digit"}, ("data.source is 'digit'; it must be one of digits, cifar10",)),
    Mistake(
        "several at once",
        {"train.epochs": 0, "data.color": "blue", "compare.gate": "maybe", "profile.rouns": 3, "model.name": "cnm"},
        (
            "data.color is 'blue'",
            "train.epochs is 0",
            "profile.rouns is unknown",
            "compare.gate is 'maybe'",
            "model.name is 'cnm'",
        ),
    ),
    Mistake("an unknown policy", {"variants.float32.policy": "float8"}, ("variants.float32.policy is 'float8'",)),
    Mistake(
        "a variant that does not exist",
        {"train.variants": ["float32", "bfloat16"]},
        ("train.variants names 'bfloat16'; allowed are the entries of variants: float32, mixed_float16",),
    ),
    Mistake("a reserved name", {"variants.control": {"policy": "float32"}}, ("variants.control: the name is taken",)),
    Mistake("a baseline that is not run", {"compare.baseline": "mixed_float16"}, ("compare.baseline is 'mixed_flo",)),
    Mistake(
        "nothing left to train on",
        {"data.test_fraction": 0.6, "data.validation_fraction": 0.5},
        ("data.test_fraction + data.validation_fraction is 1.1",),
    ),
    Mistake("an unknown model", {"model.name": "resnet"}, ("model.name is 'resnet'; it must be one of cnn",)),
    Mistake(
        "an unknown model of Keras",
        {"model.name": "keras.applications.ResNet5"},
        ("keras.applications has no 'ResNet5'; did you mean 'ResNet50'?",),
    ),
    Mistake("no such module", {"model.name": "nowhere:build"}, ("there is no module 'nowhere'",)),
    Mistake("no such function", {"model.name": "mymodels:rasing"}, ("did you mean 'raising'?",)),
    Mistake(
        "a missing folder",
        {"data.source": "folder", "data.path": "nowhere"},
        ("data.path is 'nowhere', which does not exist; put a folder of images for each class below it",),
    ),
    Mistake("a store that is none", {"tracking.uri": "nonsense"}, ("tracking.uri is 'nonsense': it must be a URI",)),
    Mistake("a store nowhere", {"tracking.uri": "sqlite:////nowhere/x.db"}, ("the folder /nowhere does not exist",)),
]

WRONG_LATER = [
    Mistake(
        "an unreachable server",
        {"tracking.uri": CLOSED_PORT},
        (f"the tracking store {CLOSED_PORT} cannot be used",),
        command="prepare",
        status=1,
    ),
    Mistake(
        "a batch larger than the training set",
        {"train.batch_size": 5000},
        ("train.batch_size is 5000; allowed is at most 1079, the number of training images",),
        command="train --variant float32 --seed 0",
        status=1,
    ),
    Mistake(
        "images too small for the model",
        {"model.name": "keras.applications.Xception"},
        ("model.name = keras.applications.Xception, on images of 16 x 16 x 3",),
        command="train --variant float32 --seed 0",
        status=1,
    ),
    Mistake(
        "an output that does not fit the classes",
        {"model.name": "mymodels:wrong_width"},
        ("gives an output of shape (None, 11); it must be (None, 10)",),
        command="train --variant float32 --seed 0",
        status=1,
    ),
    Mistake(
        "a model that raises",
        {"model.name": "mymodels:raising"},
        ("model.name = mymodels:raising, on images of 16 x 16 x 3 (data.image_size = 16), cannot be built: the weigh",),
        command="train --variant float32 --seed 0",
        status=1,
    ),
    Mistake(
        "an argument that names no variant",
        {},
        ("--variant is 'float8'; allowed are the entries of variants: float32, mixed_float16, mixed_bfloat16",),
        command="train --variant float8 --seed 0",
    ),
    Mistake("a trace that is not there", {}, ("nowhere.xplane.pb",), command="profile.trace nowhere.xplane.pb"),
]


@pytest.fixture(scope="module")
def workplace(finished: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A finished checkout that these tests share: each puts back what it breaks."""
    checkout = finished.copy(tmp_path_factory.mktemp("mistakes") / "halfstep")
    (checkout.root / "mymodels.py").write_text(MODELS, encoding="utf-8")
    return checkout


@pytest.fixture
def broken(workplace: Checkout) -> Iterator[Checkout]:
    """The shared checkout, whose parameters are put back at the end."""
    with workplace.restored("params.yaml"):
        yield workplace


@pytest.mark.parametrize("mistake", WRONG_PARAMETERS + WRONG_LATER, ids=lambda mistake: mistake.name)
def test_a_mistake_in_the_parameters(broken: Checkout, mistake: Mistake) -> None:
    broken.configure(mistake.params)
    expect(broken, mistake)


def test_all_of_dvc_stops_before_anything_is_touched(broken: Checkout) -> None:
    before = broken.snapshot()
    broken.configure({"train.epochs": 0})
    done = broken.run("dvc", "repro")
    assert done.returncode != 0
    assert "params.yaml: train.epochs is 0; it must be a whole number of at least 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert broken.snapshot() == before


def test_the_check_imports_neither_tensorflow_nor_mlflow(workplace: Checkout) -> None:
    program = (
        "import sys; from stages.environment.__main__ import main; main();"
        "print({'tensorflow', 'keras', 'mlflow'} & set(sys.modules))"
    )
    assert workplace.succeed("python", "-c", program) == "set()\n"


def test_text_that_is_no_yaml(broken: Checkout) -> None:
    (broken.root / "params.yaml").write_text("train: [1,\nmodel: {", encoding="utf-8")
    expect(broken, Mistake("", {}, ("params.yaml is not valid YAML",)))


def test_missing_parameters(broken: Checkout) -> None:
    (broken.root / "params.yaml").unlink()
    expect(broken, Mistake("", {}, ("params.yaml is missing: run from the root of the project",)))


@pytest.mark.parametrize(
    ("counts", "command", "status", "fragment"),
    [
        ({}, "environment", 2, "which holds no folders; it must hold a folder of images for each class"),
        ({"cat": 12}, "prepare", 1, "give at least 2"),
        ({"cat": 12, "dog": 1}, "prepare", 1, "dog"),
        ({"cat": 12, "dog": 0}, "prepare", 1, "dog"),
    ],
    ids=["no class", "one class", "a class with one image", "a class without images"],
)
def test_folders_that_cannot_be_learned_from(
    broken: Checkout,
    draw_images: Draw,
    tmp_path: Path,
    counts: dict[str, int],
    command: str,
    status: int,
    fragment: str,
) -> None:
    root = draw_images(tmp_path / "pictures", **counts)
    root.mkdir(exist_ok=True)
    broken.configure({"data.source": "folder", "data.path": str(root)})
    expect(broken, Mistake("", {}, (fragment,), command, status))


def test_a_picture_that_is_none(broken: Checkout, draw_images: Draw, tmp_path: Path) -> None:
    root = draw_images(tmp_path / "pictures", cat=12, dog=12)
    (root / "dog/00.png").write_bytes(b"no picture")
    broken.configure({"data.source": "folder", "data.path": str(root)})
    expect(broken, Mistake("", {}, ("dog/00.png",), "prepare", 1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(broken: Checkout, draw_images: Draw, tmp_path: Path) -> None:
    root = draw_images(tmp_path / "pictures", cat=12, dog=12)
    root.chmod(0)
    try:
        broken.configure({"data.source": "folder", "data.path": str(root)})
        expect(broken, Mistake("", {}, ("which may not be read by this user",)))
    finally:
        root.chmod(0o755)


def test_prepared_images_that_were_damaged(workplace: Checkout) -> None:
    name = "data/prepared/train_images.npy"
    with workplace.restored(name):
        content = bytearray((workplace.root / name).read_bytes())
        content[-1] ^= 1
        (workplace.root / name).write_bytes(content)
        mistake = Mistake("", {}, (f"{name} is damaged",), "train --variant float32 --seed 0", 1)
        expect(workplace, mistake)


@pytest.mark.parametrize("missing", ["data/profile", "data/train/mixed_bfloat16-0", "data/prepared"])
def test_results_that_are_missing(workplace: Checkout, tmp_path: Path, missing: str) -> None:
    shutil.move(workplace.root / missing, tmp_path / "moved")
    try:
        expect(workplace, Mistake("", {}, (missing,), "compare", 1))
    finally:
        shutil.move(tmp_path / "moved", workplace.root / missing)


def test_a_stage_that_fails_leaves_a_failed_run(broken: Checkout, draw_images: Draw, tmp_path: Path) -> None:
    root = draw_images(tmp_path / "pictures", cat=12)
    broken.configure({"data.source": "folder", "data.path": str(root), "tracking.experiment": "failing"})
    assert broken.stage("prepare").returncode == 1
    assert [(run.info.run_name, run.info.status) for run in broken.runs("failing")] == [("prepare", "FAILED")]


def expect(checkout: Checkout, mistake: Mistake) -> None:
    """Runs the stage and holds it to its lines on standard error, its status and the files that it must not touch."""
    before = checkout.snapshot()
    done = checkout.stage(*mistake.command.split())
    lines = done.stderr.splitlines()
    assert done.returncode == mistake.status, done.stdout + done.stderr
    assert len(lines) == len(mistake.fragments), done.stderr
    for line, fragment in zip(lines, mistake.fragments, strict=True):
        assert fragment in line
    assert checkout.snapshot() == before
