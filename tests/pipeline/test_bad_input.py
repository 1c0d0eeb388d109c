"""Invalid input causes one line per error on standard error, and does not change any file."""

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
    """Parameters, and the expected standard error: one line with each of `fragments`, in this order."""

    name: str
    params: dict[str, Any]
    fragments: tuple[str, ...]
    command: str = "environment"
    status: int = 2


INVALID_PARAMETERS = [
    Mistake(
        "unknown parameter", {"train.momentum": 0.9}, ("train.momentum is unknown; allowed here: variants, seeds",)
    ),
    Mistake("misspelt parameter", {"train.epoch": 3}, ("did you mean 'epochs'?",)),
    Mistake("misspelt section", {"trian": {"epochs": 3}}, ("trian is unknown",)),
    Mistake("below the range", {"train.epochs": -1}, ("train.epochs is -1; it must be an integer of at least 0",)),
    Mistake(
        "above the range", {"data.test_fraction": 1.5}, ("data.test_fraction is 1.5; it must be a number above 0",)
    ),
    Mistake("wrong type", {"train.batch_size": "many"}, ("train.batch_size is 'many'; it must be an integer",)),
    Mistake("not a number", {"train.learning_rate": float("nan")}, ("train.learning_rate is nan",)),
    Mistake(
        "not one of the choices",
        {"data.source": "digit"},
        ("data.source is 'digit'; it must be one of digits, cifar10",),
    ),
    Mistake(
        "several errors",
        {"train.epochs": -1, "data.color": "blue", "compare.gate": "maybe", "profile.rouns": 3, "model.name": "cnm"},
        (
            "data.color is 'blue'",
            "train.epochs is -1",
            "profile.rouns is unknown",
            "compare.gate is 'maybe'",
            "model.name is 'cnm'",
        ),
    ),
    Mistake("unknown policy", {"variants.float32.policy": "float8"}, ("variants.float32.policy is 'float8'",)),
    Mistake(
        "unknown variant",
        {"train.variants": ["float32", "bfloat16"]},
        ("train.variants contains 'bfloat16'; it must be one of variants: float32, mixed_float16",),
    ),
    Mistake("reserved name", {"variants.control": {"policy": "float32"}}, ("variants.control: the name is reserved",)),
    Mistake("baseline that is not trained", {"compare.baseline": "mixed_float16"}, ("compare.baseline is 'mixed_flo",)),
    Mistake(
        "empty training set",
        {"data.test_fraction": 0.6, "data.validation_fraction": 0.5},
        ("data.test_fraction + data.validation_fraction is 1.1",),
    ),
    Mistake("unknown model", {"model.name": "resnet"}, ("model.name is 'resnet'; it must be one of cnn",)),
    Mistake(
        "unknown model of Keras",
        {"model.name": "keras.applications.ResNet5"},
        ("keras.applications has no 'ResNet5'; did you mean 'ResNet50'?",),
    ),
    Mistake("missing module", {"model.name": "nowhere:build"}, ("there is no module 'nowhere'",)),
    Mistake("missing function", {"model.name": "mymodels:rasing"}, ("did you mean 'raising'?",)),
    Mistake(
        "missing folder",
        {"data.source": "folder", "data.path": "nowhere"},
        ("data.path is 'nowhere', which does not exist; create it with a folder of images for each class",),
    ),
    Mistake("invalid store", {"tracking.uri": "nonsense"}, ("tracking.uri is 'nonsense': it must be a URI",)),
    Mistake(
        "store in a missing folder",
        {"tracking.uri": "sqlite:////nowhere/x.db"},
        ("the folder /nowhere does not exist",),
    ),
]

LATER_ERRORS = [
    Mistake(
        "server that does not respond",
        {"tracking.uri": CLOSED_PORT},
        (f"the tracking store {CLOSED_PORT} cannot be used",),
        command="prepare",
        status=1,
    ),
    Mistake(
        "batch larger than the training set",
        {"train.batch_size": 5000},
        ("train.batch_size is 5000; allowed is at most 899, the number of training images",),
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
        "output that does not match the classes",
        {"model.name": "mymodels:wrong_width"},
        ("has an output of shape (None, 11); it must be (None, 10)",),
        command="train --variant float32 --seed 0",
        status=1,
    ),
    Mistake(
        "model that raises an exception",
        {"model.name": "mymodels:raising"},
        ("model.name = mymodels:raising, on images of 16 x 16 x 3 (data.image_size = 16), cannot be built: the weigh",),
        command="train --variant float32 --seed 0",
        status=1,
    ),
    Mistake(
        "unknown variant as an argument",
        {},
        ("--variant is 'float8'; allowed are the entries of variants: float32, mixed_float16, mixed_bfloat16",),
        command="train --variant float8 --seed 0",
    ),
    Mistake("missing trace", {}, ("nowhere.xplane.pb",), command="trace nowhere.xplane.pb"),
]


@pytest.fixture(scope="module")
def shared(finished: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A finished checkout that these tests share; each test restores what it changes."""
    checkout = finished.copy(tmp_path_factory.mktemp("mistakes") / "halfstep")
    (checkout.root / "mymodels.py").write_text(MODELS, encoding="utf-8")
    return checkout


@pytest.fixture
def checkout(shared: Checkout) -> Iterator[Checkout]:
    """The shared checkout; its parameters are restored at the end."""
    with shared.restored("params.yaml"):
        yield shared


@pytest.mark.parametrize(
    "mistake",
    [
        *INVALID_PARAMETERS[:2],
        *LATER_ERRORS[:1],
        *(pytest.param(mistake, marks=pytest.mark.slow) for mistake in LATER_ERRORS[1:]),
    ],
    ids=lambda mistake: mistake.name,
)
def test_invalid_parameters(checkout: Checkout, mistake: Mistake) -> None:
    checkout.configure(mistake.params)
    expect(checkout, mistake)


@pytest.mark.parametrize("mistake", INVALID_PARAMETERS[2:], ids=lambda mistake: mistake.name)
def test_invalid_parameters_in_this_process(
    checkout: Checkout, mistake: Mistake, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Most of them without a command of their own, which would take seconds."""
    from stages.environment import main

    checkout.configure(mistake.params)
    before = checkout.snapshot()
    monkeypatch.chdir(checkout.root)
    capfd.readouterr()
    assert main() == mistake.status
    require_lines(capfd.readouterr().err, mistake)
    assert checkout.snapshot() == before


def test_dvc_repro_stops_before_any_file_is_changed(checkout: Checkout) -> None:
    before = checkout.snapshot()
    checkout.configure({"train.epochs": -1})
    done = checkout.run("dvc", "repro")
    assert done.returncode != 0
    assert "params.yaml: train.epochs is -1; it must be an integer of at least 0" in done.stderr
    assert "Traceback" not in done.stderr
    assert checkout.snapshot() == before


def test_environment_imports_neither_tensorflow_nor_mlflow(shared: Checkout) -> None:
    program = (
        "import sys; from stages.environment import main; main();"
        "print({'tensorflow', 'keras', 'mlflow'} & set(sys.modules))"
    )
    assert shared.check_output("python", "-c", program) == "set()\n"


def test_invalid_yaml(checkout: Checkout) -> None:
    (checkout.root / "params.yaml").write_text("train: [1,\nmodel: {", encoding="utf-8")
    expect(checkout, Mistake("", {}, ("params.yaml is not valid YAML",)))


def test_missing_params_yaml(checkout: Checkout) -> None:
    (checkout.root / "params.yaml").unlink()
    expect(checkout, Mistake("", {}, ("params.yaml is missing: run from the root of the project",)))


@pytest.mark.parametrize(
    ("counts", "command", "status", "fragment"),
    [
        ({}, "environment", 2, "which holds no folders; it must hold a folder of images for each class"),
        ({"cat": 12}, "prepare", 1, "at least 2 are needed"),
        ({"cat": 12, "dog": 1}, "prepare", 1, "dog"),
        pytest.param({"cat": 12, "dog": 0}, "prepare", 1, "dog", marks=pytest.mark.slow),
    ],
    ids=["no class", "one class", "class with one image", "class without images"],
)
def test_folder_without_two_usable_classes(
    checkout: Checkout,
    draw_images: Draw,
    tmp_path: Path,
    counts: dict[str, int],
    command: str,
    status: int,
    fragment: str,
) -> None:
    root = draw_images(tmp_path / "images", **counts)
    root.mkdir(exist_ok=True)
    checkout.configure({"data.source": "folder", "data.path": str(root)})
    expect(checkout, Mistake("", {}, (fragment,), command, status))


def test_file_that_is_not_an_image(checkout: Checkout, draw_images: Draw, tmp_path: Path) -> None:
    root = draw_images(tmp_path / "images", cat=12, dog=12)
    (root / "dog/00.png").write_bytes(b"not an image")
    checkout.configure({"data.source": "folder", "data.path": str(root)})
    expect(checkout, Mistake("", {}, ("dog/00.png",), "prepare", 1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read any folder")
def test_folder_without_read_permission(checkout: Checkout, draw_images: Draw, tmp_path: Path) -> None:
    root = draw_images(tmp_path / "images", cat=12, dog=12)
    root.chmod(0)
    try:
        checkout.configure({"data.source": "folder", "data.path": str(root)})
        expect(checkout, Mistake("", {}, ("which may not be read by this user",)))
    finally:
        root.chmod(0o755)


@pytest.mark.slow
def test_damaged_prepared_images(shared: Checkout) -> None:
    name = "data/prepared/train_images.npy"
    with shared.restored(name):
        content = bytearray((shared.root / name).read_bytes())
        content[-1] ^= 1
        (shared.root / name).write_bytes(content)
        mistake = Mistake("", {}, (f"{name} is damaged",), "train --variant float32 --seed 0", 1)
        expect(shared, mistake)


@pytest.mark.parametrize(
    "missing",
    [
        "data/profile",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("data/train/mixed_bfloat16-0", "data/prepared")),
    ],
)
def test_missing_results(shared: Checkout, tmp_path: Path, missing: str) -> None:
    shutil.move(shared.root / missing, tmp_path / "moved")
    try:
        expect(shared, Mistake("", {}, (missing,), "compare", 1))
    finally:
        shutil.move(tmp_path / "moved", shared.root / missing)


@pytest.mark.slow
def test_run_of_a_failed_stage_is_failed(checkout: Checkout, draw_images: Draw, tmp_path: Path) -> None:
    root = draw_images(tmp_path / "images", cat=12)
    checkout.configure({"data.source": "folder", "data.path": str(root), "tracking.experiment": "failing"})
    assert checkout.stage("prepare").returncode == 1
    assert [(run.info.run_name, run.info.status) for run in checkout.runs("failing")] == [("prepare", "FAILED")]


def expect(checkout: Checkout, mistake: Mistake) -> None:
    """Runs the stage, and checks its standard error, its exit status and that no file has changed."""
    before = checkout.snapshot()
    done = checkout.stage(*mistake.command.split())
    assert done.returncode == mistake.status, done.stdout + done.stderr
    require_lines(done.stderr, mistake)
    assert checkout.snapshot() == before


def require_lines(stderr: str, mistake: Mistake) -> None:
    """Standard error has one line with each fragment, in order, and no other."""
    lines = stderr.splitlines()
    assert len(lines) == len(mistake.fragments), stderr
    for line, fragment in zip(lines, mistake.fragments, strict=True):
        assert fragment in line
