"""Fixtures for all tests: a working folder with prepared images and a tracking store."""

from __future__ import annotations

import multiprocessing.spawn
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from xdist.scheduler import LoadFileScheduling

from halfstep.machine.fingerprint import fingerprint
from halfstep.params.schema import DataParams
from halfstep.system import files
from tests import warm

ROOT = Path(__file__).parents[1]
PIPELINE = "tests/pipeline/"
# Files there that need no run of the whole pipeline, so that any process may run them.
_BY_THEMSELVES = tuple(f"{PIPELINE}test_{name}.py" for name in ("gallery", "judge", "init", "two_commits"))
# What takes longest begins first, so that both processes end at about the same time: files of few tests would be last.
_LONGEST = (PIPELINE, "tests/scripts/test_scripts.py", *_BY_THEMSELVES, "tests/gpu/test_acceptance.py")


class Scheduler(LoadFileScheduling):
    """A file each, as with `--dist=loadfile`, but the files that share a run of the whole pipeline together."""

    def _split_scope(self, nodeid: str) -> str:
        shares = nodeid.startswith(PIPELINE) and not nodeid.startswith(_BY_THEMSELVES)
        return PIPELINE if shares else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        for scope in reversed(_LONGEST):
            if scope in self.workqueue:
                self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler:
    """Says which tests run in the same process."""
    return Scheduler(config, log)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(autouse=True)
def unset_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes environment variables of the user's shell or of DVC that would change a test, and proxies."""
    of_dvc = ("DVC_ROOT", "DVC_EXP_NAME")
    of_mlflow = ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID")
    for name in (*of_dvc, *of_mlflow, "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that a test calls has none of pytest's, nor those of a program before it."""
    monkeypatch.setattr(sys, "argv", sys.argv[:1])


@pytest.fixture(autouse=True)
def decoders_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores Pillow's limit of pixels, which decoding sets for its process."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)


@pytest.fixture(autouse=True, scope="session")
def handle_sigint() -> None:
    """Handles SIGINT, which a shell ignores in background jobs. Child processes inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def warm_python() -> Iterator[None]:
    """Makes a Python with which most tests start stages; those of faults, kills and clusters take the real one."""
    folder = Path(tempfile.mkdtemp(prefix="warm-", dir="/tmp"))  # the path of a socket has at most 107 bytes
    os.environ |= {warm.PYTHON: str(warm.make(folder)), warm.OWNER: str(os.getpid())}
    before = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(warm.python())
    yield
    multiprocessing.set_executable(before)
    shutil.rmtree(folder)


@pytest.fixture
def cold_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has stages started as users start them."""
    monkeypatch.delenv(warm.PYTHON)
    warmed = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(sys.executable)
    yield
    multiprocessing.set_executable(warmed)


@pytest.fixture(autouse=True)
def restore_precision() -> Iterator[None]:
    """Restores the settings that a variant changes for the whole process."""
    yield
    if "tensorflow" in sys.modules and "keras" in sys.modules:
        import keras
        import tensorflow as tf

        keras.config.set_dtype_policy("float32")
        tf.config.experimental.enable_tensor_float_32_execution(True)


@pytest.fixture(scope="session")
def prepared_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared images: 64 images of 8 x 8 pixels in 4 classes."""
    from halfstep.prepare.images.pipeline import prepare

    directory = tmp_path_factory.mktemp("prepared")
    prepare(DataParams(source="synthetic", synthetic_images=64, synthetic_classes=4, image_size=8), directory)
    return directory


@pytest.fixture(scope="session")
def store_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty tracking store, created once because that takes seconds."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared_template: Path, store_template: Path) -> Path:
    """The working folder of a stage, with prepared images, the description of the machine and an empty store."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(prepared_template, tmp_path / files.PREPARED)
    shutil.copy(store_template, tmp_path / "mlflow.db")
    files.write_json(tmp_path / files.ENVIRONMENT_FILE, fingerprint())
    return tmp_path


@pytest.fixture
def write_params() -> Callable[..., Path]:
    """Writes `params.yaml` to the working folder, without the sections that are not given."""

    def write(**sections: Any) -> Path:
        path = Path("params.yaml")
        path.write_text(yaml.safe_dump(sections or {"tracking": {}}), encoding="utf-8")
        return path

    return write
