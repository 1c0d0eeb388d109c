"""A training whose numbers are lost is a result; the arm is left out, and everyone is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

MODEL = '''
import keras


def fragile(input_shape, classes):
    """A network whose numbers are lost in 16 bits."""
    pixels = keras.Input(input_shape, dtype="uint8")
    features = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(pixels))
    if keras.config.dtype_policy().compute_dtype != "float32":
        features = features * float("nan")
    logits = keras.layers.Dense(classes)(features)
    return keras.Model(pixels, keras.layers.Activation("softmax", dtype="float32")(logits))
'''


def test_an_arm_whose_training_failed(copied: Checkout) -> None:
    (copied.root / "mymodels.py").write_text(MODEL, encoding="utf-8")
    copied.configure({"model.name": "mymodels:fragile"})
    said = copied.succeed("dvc", "repro")
    assert "dvc repro -f -s train@mixed_bfloat16-0" in said

    metrics = copied.json("data/train/mixed_bfloat16-0/metrics.json")
    assert metrics["status"] == "failed"
    assert "nan" in metrics["reason"]
    assert "test_accuracy" not in metrics
    assert copied.json("data/train/float32-0/metrics.json")["status"] == "finished"
    assert {name.partition("/")[0] for name in copied.files("data/profile")} == {"float32", "_control"}

    candidate = copied.json("data/compare/comparison.json")["candidates"]["mixed_bfloat16"]
    assert [reason["code"] for reason in candidate["reasons"]] == ["arm_failed"]
    assert candidate["verdict"] != "adopt"

    statuses = {run.info.run_name: run.info.status for run in copied.runs()}
    assert statuses.pop("train mixed_bfloat16 seed 0") == "FAILED"
    assert set(statuses) == {"prepare", "train float32 seed 0", "float32", "compare"}
    assert set(statuses.values()) == {"FINISHED"}

    _the_gate_stays_shut(copied)
    _a_change_of_ones_own_model_is_a_change(copied)


def _the_gate_stays_shut(checkout: Checkout) -> None:
    checkout.configure({"compare.gate": True})
    (checkout.root / "data/compare/report.html").unlink()
    done = checkout.run("dvc", "repro")
    assert done.returncode != 0
    assert "compare.gate: a training of mixed_bfloat16 failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert (checkout.root / "data/compare/report.html").exists()
    checkout.configure({"compare.gate": False})


def _a_change_of_ones_own_model_is_a_change(checkout: Checkout) -> None:
    with (checkout.root / "mymodels.py").open("a", encoding="utf-8") as stream:
        stream.write("# a remark\n")
    assert checkout.out_of_date() >= {"train@float32-0", "train@mixed_bfloat16-0", "profile"}
