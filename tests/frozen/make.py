"""Makes the frozen studies anew, by `dvc repro` in clones of the project: about five minutes.

python -m tests.frozen.make [NAME ...]
python -m tests.frozen.make --say       only what this commit says of the studies that are there
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from halfstep.system import files
from tests.frozen import FOLDER, pack
from tests.frozen.test_frozen import compared, texts_of
from tools.benchmarks.checkout import cloned, resolved

_SHORT = {"train.epochs": 2, "profile.max_seconds": 6, "profile.processes": 3}
_TWO = {"train.variants": ["float32", "mixed_bfloat16"], **_SHORT}
STUDIES: dict[str, dict[str, Any]] = {
    "default": {},
    "own_task": {**_TWO, "task.name": "examples.regression:build", "train.epochs": 20, "compare.quality_margin": 2.0},
    "speed_only": {**_SHORT, "train.epochs": 0},
    "failed_arm": {
        **_SHORT,
        "train.variants": ["float32", "float16", "mixed_bfloat16"],
        "variants.float16": {"policy": "float16", "xla": None, "tf32": True, "onednn": True},
        "model.name": "mymodels:fragile",
    },
    "bridge": {
        **_SHORT,
        "train.variants": ["float32", "bfloat16_xla"],
        "variants.bfloat16_xla": {"policy": "mixed_bfloat16", "xla": True, "tf32": True, "onednn": True},
        "profile.inference_batch_sizes": [1, 8],
    },
    "two_seeds": {**_TWO, "train.seeds": [0, 1]},
}
MEASURED_ELSEWHERE = ("h100", "h100_resnet50", "h200")  # and only said anew
_MODEL = """
import keras


def fragile(input_shape, classes):
    pixels = keras.Input(input_shape, dtype="uint8")
    features = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(pixels))
    if keras.config.dtype_policy().compute_dtype == "float16":
        features = features * float("nan")
    logits = keras.layers.Dense(classes)(features)
    return keras.Model(pixels, keras.layers.Activation("softmax", dtype="float32")(logits))
"""
_LEFT_OUT = (
    "*.keras",
    "*.weights.h5",
    "train_images.npy",
    "validation_images.npy",
    "test_images.npy",
    "train_labels.npy",
)


def make(name: str, changes: Mapping[str, Any], commit: str) -> None:
    """Makes one study and what is said of it."""
    with cloned(commit) as checkout:
        (checkout.root / "mymodels.py").write_text(_MODEL, encoding="utf-8")
        checkout.configure({**changes, "tracking.uri": "sqlite:///mlflow.db"})
        checkout.run("dvc", "repro", "-f")
        (FOLDER / f"{name}.params.yaml").write_text(_params(checkout.root), encoding="utf-8")
        shutil.rmtree(checkout.root / "data/compare")
        _leave_out(checkout.root)
        pack(checkout.root / "data", FOLDER / f"{name}.tar.xz")
    say(name)
    print(f"{name}: {(FOLDER / f'{name}.tar.xz').stat().st_size / 1024:.0f} KiB", flush=True)


def _leave_out(root: Path) -> None:
    """Removes traces and models, and writes the manifests anew."""
    for folder in [root / "data/prepared", *root.glob("data/train/*"), *root.glob("data/profile/*")]:
        for pattern in _LEFT_OUT:
            for path in folder.glob(pattern):
                path.unlink()
        shutil.rmtree(folder / "trace", ignore_errors=True)
        if (folder / files.MANIFEST).is_file():
            files.write_manifest(folder)


def say(name: str) -> None:
    """Writes what this commit says of a frozen study: the document, the terminal, the page and the Markdown."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        comparison = compared(name, Path(folder))
        (FOLDER / f"{name}.txt").write_text(texts_of(comparison), encoding="utf-8")
    comparison.write(FOLDER / f"{name}.json")


def _params(root: Path) -> str:
    """The parameters that `compare` reads."""
    tree = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    train = {name: tree["train"][name] for name in ("variants", "seeds")}
    sizes = {"inference_batch_sizes": tree["profile"]["inference_batch_sizes"]}
    return yaml.safe_dump({"train": train, "profile": sizes, "compare": tree["compare"]}, sort_keys=False)


def main() -> None:
    """Makes the studies that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.frozen.make", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(STUDIES))
    parser.add_argument("--commit", default="HEAD", help="whose code makes them")
    parser.add_argument("--say", action="store_true", help="measure nothing; write what is said of them anew")
    arguments = parser.parse_args()
    if arguments.say:
        for name in arguments.names or (*STUDIES, *MEASURED_ELSEWHERE):
            say(name)
        return
    commit = resolved(arguments.commit)
    for name in arguments.names or STUDIES:
        make(name, STUDIES[name], commit)


if __name__ == "__main__":
    main()
