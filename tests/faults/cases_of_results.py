"""What `train`, `profile`, `compare` and the trace reader reject: missing, damaged or mismatched results."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halfstep.system import files
from tests.faults.cases import Arrange, Case

FLOAT32 = files.train_dir("float32", 1)
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


def written(path: str, content: bytes) -> Arrange:
    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)

    return arrange


def _pickled(root: Path, _: pytest.MonkeyPatch) -> None:
    np.save(root / FLOAT32 / "predictions.npy", np.array([print], dtype=object), allow_pickle=True)
    files.write_manifest(root / FLOAT32)


CASES = [
    trained("an argument is not a variant", "--variant is 'float8'; allowed are", None, "float8", status=2),
    trained("the images are missing", "data/prepared/task.json is missing: run `dvc repro`", removed(files.PREPARED)),
    Case("profile: a training is missing", "profile", (str(FLOAT32),), _COMPLETE, removed(FLOAT32), data="complete"),
    compared("a training is missing", str(FLOAT32), removed(FLOAT32)),
    compared("predictions are missing", "predictions.npy is missing", removed(FLOAT32 / "predictions.npy")),
    compared("predictions in pickle, which can run code", "predictions.npy cannot be used", _pickled),
    compared("the measurements are missing", "data/profile", removed(files.PROFILE)),
    compared("the control is missing", "data/profile/_control", removed(files.profile_dir(files.CONTROL))),
    traced("a missing graph", "x.xplane.pb --graph gone.json", "--graph gone.json", written("x.xplane.pb", b"")),
    traced("a graph that is not JSON", "x.xplane.pb --graph g.json", "--graph g.json", written("g.json", b"{")),
]
