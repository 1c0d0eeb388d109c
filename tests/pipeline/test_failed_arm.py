"""A training whose loss is not finite is a result: `profile` skips the variant, and `compare` reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.tracked_runs import by_name

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

MODEL = '''
import keras


def fragile(input_shape, classes):
    """A network whose output is NaN in 16 bits."""
    pixels = keras.Input(input_shape, dtype="uint8")
    features = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(pixels))
    if keras.config.dtype_policy().compute_dtype != "float32":
        features = features * float("nan")
    logits = keras.layers.Dense(classes)(features)
    return keras.Model(pixels, keras.layers.Activation("softmax", dtype="float32")(logits))
'''


def test_failed_training_is_reported_and_not_measured(copied: Checkout) -> None:
    (copied.root / "mymodels.py").write_text(MODEL, encoding="utf-8")
    copied.configure({"model.name": "mymodels:fragile", "train.epochs": 1})
    output = copied.check_output("dvc", "repro")
    assert "dvc repro -f -s train@mixed_bfloat16-0" in output

    metrics = copied.json("data/train/mixed_bfloat16-0/metrics.json")
    assert metrics["status"] == "failed"
    assert "nan" in metrics["reason"]
    assert "test_accuracy" not in metrics
    assert copied.json("data/train/float32-0/metrics.json")["status"] == "finished"
    assert {name.partition("/")[0] for name in copied.files("data/profile")} == {"float32", "_control"}

    candidate = copied.json("data/compare/comparison.json")["candidates"]["mixed_bfloat16"]
    assert [reason["code"] for reason in candidate["reasons"]] == ["arm_failed"]
    assert candidate["verdict"] != "adopt"

    statuses = {name: run.info.status for name, run in by_name(copied.runs()).items()}
    assert statuses.pop("train mixed_bfloat16 seed 0") == "FAILED"
    assert set(statuses) == {"prepare", "train float32 seed 0", "float32", "compare"}
    assert set(statuses.values()) == {"FINISHED"}
