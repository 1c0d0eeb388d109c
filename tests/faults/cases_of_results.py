"""What `train`, `profile`, `compare` and the trace reader reject: missing, damaged or mismatched results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halfstep import files
from tests.faults.cases import Arrange, Case

FLOAT32 = files.train_dir("float32", 1)
LABELS = files.PREPARED / "test_labels.npy"
_COMPLETE = {
    "train": {"variants": ["float32", "mixed_float16", "mixed_bfloat16"], "seeds": [1, 2, 3]},
    "profile": {"inference_batch_sizes": [1, 32]},
}


def compared(name: str, fragment: str, arrange: Arrange, params: dict[str, Any] = _COMPLETE) -> Case:
    """A case that `compare` must reject."""
    return Case(f"compare: {name}", "compare", (fragment,), params, arrange, data="complete")


def traced(name: str, arguments: str, fragment: str, arrange: Arrange | None = None) -> Case:
    return Case(f"a trace: {name}", f"profile.trace {arguments}", (fragment,), arrange=arrange, status=2)


def trained(name: str, fragment: str, arrange: Arrange | None, arguments: str = "float32", **others: Any) -> Case:
    command = f"train --variant {arguments} --seed 0"
    return Case(f"train: {name}", command, (fragment,), arrange=arrange, data="prepared", **others)


def removed(path: Path) -> Arrange:
    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        target = root / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink()

    return arrange


def one_bit(path: Path) -> Arrange:
    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        content = bytearray((root / path).read_bytes())
        content[len(content) // 2] ^= 1
        (root / path).write_bytes(content)

    return arrange


def saved(path: Path, array: np.ndarray) -> Arrange:
    """Another array and a matching manifest, as another program might write them."""

    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        np.save(root / path, array)
        files.write_manifest((root / path).parent)

    return arrange


def written(path: str, content: bytes) -> Arrange:
    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)

    return arrange


def rewritten(path: Path, text: str) -> Arrange:
    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        (root / path).write_text(text)
        files.write_manifest((root / path).parent)

    return arrange


def _other_optimizer(root: Path, _: pytest.MonkeyPatch) -> None:
    path = root / files.profile_dir("mixed_float16") / "summary.json"
    summary = json.loads(path.read_text())
    summary["configuration"]["optimizer"] = "SGD"
    files.write_json(path, summary)
    files.write_manifest(path.parent)


def _empty_folder(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "logs").mkdir()


def _pickled(root: Path, _: pytest.MonkeyPatch) -> None:
    np.save(root / FLOAT32 / "predictions.npy", np.array([print], dtype=object), allow_pickle=True)
    files.write_manifest(root / FLOAT32)


PROFILE = files.profile_dir("float32")

CASES = [
    trained("an argument is not a variant", "--variant is 'float8'; allowed are", None, "float8", status=2),
    trained("the images are missing", "data/prepared/task.json is missing: run `dvc repro`", removed(files.PREPARED)),
    trained("a file of images is damaged", "train_images.npy is damaged", one_bit(files.PREPARED / "train_images.npy")),
    trained("the labels are missing", "train_labels.npy is missing", removed(files.PREPARED / "train_labels.npy")),
    trained(
        "the manifest is damaged", "data/prepared/manifest.json is damaged", one_bit(files.PREPARED / "manifest.json")
    ),
    trained(
        "a batch is larger than the training set",
        "train.batch_size is 5000; allowed is at most",
        None,
        params={"train": {"batch_size": 5000}},
    ),
    Case("profile: a training is missing", "profile", (str(FLOAT32),), _COMPLETE, removed(FLOAT32), data="complete"),
    Case(
        "profile: the metrics of a training are damaged",
        "profile",
        (f"{FLOAT32}/metrics.json is damaged",),
        _COMPLETE,
        one_bit(FLOAT32 / "metrics.json"),
        data="complete",
    ),
    compared("a training is missing", str(FLOAT32), removed(FLOAT32)),
    compared("predictions are missing", "predictions.npy is missing", removed(FLOAT32 / "predictions.npy")),
    compared("predictions are damaged", "predictions.npy is damaged", one_bit(FLOAT32 / "predictions.npy")),
    compared(
        "predictions are not numbers",
        "predictions.npy cannot be used (it must have 2 dimensions of finite numbers",
        saved(FLOAT32 / "predictions.npy", np.full((400, 4), np.nan, dtype=np.float32)),
    ),
    compared(
        "predictions of another test set",
        "predictions.npy has 399 rows and the test set has 1200 images",
        saved(FLOAT32 / "predictions.npy", np.full((399, 4), 0.25, dtype=np.float32)),
    ),
    compared("predictions in pickle, which can run code", "predictions.npy cannot be used", _pickled),
    compared("the history is damaged", "history.csv is damaged", one_bit(FLOAT32 / "history.csv")),
    compared("the history is empty", "history.csv cannot be used", rewritten(FLOAT32 / "history.csv", "")),
    compared("labels are damaged", "test_labels.npy is damaged", one_bit(LABELS)),
    compared("labels are missing", "test_labels.npy is missing", removed(LABELS)),
    compared("the measurements are missing", "data/profile", removed(files.PROFILE)),
    compared("the control is missing", "data/profile/_control", removed(files.profile_dir(files.CONTROL))),
    compared("timings are damaged", "rounds.csv is damaged", one_bit(PROFILE / "rounds.csv")),
    compared("a table has other columns", "rounds.csv cannot be used", rewritten(PROFILE / "rounds.csv", "a,b\n1,2\n")),
    compared(
        "a summary is empty",
        "summary.json cannot be used (variant: Field required)",
        rewritten(PROFILE / "summary.json", '{"schema_version": 6}'),
    ),
    compared(
        "a summary of release 0.1.0",
        "summary.json has schema version 1 and this release of halfstep reads 6: run `dvc repro -f -s profile`",
        rewritten(PROFILE / "summary.json", "{}"),
    ),
    compared(
        "a training of release 0.1.0",
        "metrics.json has schema version 1 and this release of halfstep reads 2: run `dvc repro -f -s train@float32-1`",
        rewritten(FLOAT32 / "metrics.json", '{"status": "finished"}'),
    ),
    compared("a summary is not an object", "it is not a JSON object", rewritten(PROFILE / "summary.json", "[]")),
    compared("an arm was measured with another optimizer", "optimizer SGD instead of", _other_optimizer),
    compared("environment.json is missing", "environment.json is missing", removed(files.ENVIRONMENT_FILE)),
    compared("environment.json is damaged", "environment.json is", one_bit(files.ENVIRONMENT_FILE)),
    traced("missing", "nowhere.xplane.pb", "nowhere.xplane.pb does not exist"),
    traced("a folder without a trace", "logs", "logs holds no trace", _empty_folder),
    traced("an empty file", "x.xplane.pb", "x.xplane.pb", written("x.xplane.pb", b"")),
    traced("text", "x.xplane.pb", "x.xplane.pb", written("x.xplane.pb", b"this is not a trace" * 20)),
    traced("a missing graph", "x.xplane.pb --graph gone.json", "--graph gone.json", written("x.xplane.pb", b"")),
    traced("a graph that is not JSON", "x.xplane.pb --graph g.json", "--graph g.json", written("g.json", b"{")),
    traced("a graph that is a list", "x.xplane.pb --graph g.json", "not a JSON object", written("g.json", b"[1]")),
]
