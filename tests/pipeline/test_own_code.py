"""What the user's own code does wrong without an error, through `dvc repro`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.cases_of_own_code import from_generator, own_code

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

TASK: dict[str, Any] = {
    "task.name": "own:build",
    "compare.quality_margin": 1.0,
    "train.batch_size": 8,
    "train.epochs": 30,
}
UNEVEN = from_generator(
    "global PASSES\nPASSES = globals().get('PASSES', 0) + 1\nfor _ in range(4 if PASSES < 9 else 3): yield X, Y"
)
WRONG = {
    "floatx": ({"build": "keras.config.set_floatx('float16')"}, "changed keras.config.floatx from float32 to float16"),
    "weights": (
        {"weights": "weights = keras.initializers.Constant(int.from_bytes(os.urandom(2), 'big') / 65536)"},
        "has other initial weights",
    ),
    "score": (
        {"score": "return np.frombuffer(os.urandom(len(y_true)), 'uint8').astype(float)"},
        "gives another score with the same weights",
    ),
    "exit": ({"build": "os._exit(0)"}, "ended with status 0 before its end"),
    "uneven": ({"data": UNEVEN}, "Task.train does not have the same number of batches in every epoch (4 in the first)"),
}


@pytest.mark.slow
def test_silent_mistakes_end_the_pipeline(copied: Checkout) -> None:
    copied.configure(TASK)
    for name, (parts, said) in WRONG.items():
        (copied.root / "own.py").write_text(own_code(**parts))
        done = copied.run("dvc", "repro")
        assert done.returncode != 0, name
        assert said in done.stdout + done.stderr, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_folder_keras_json_and_columns_change_nothing(copied: Checkout) -> None:
    copied.configure(TASK | {"train.epochs": 2})
    (copied.root / "own.py").write_text(own_code())
    copied.check_output("dvc", "repro")
    before = trained(copied)
    (copied.root / "own.py").write_text(own_code(build="os.chdir('/')\ny_pred = 0"))
    (copied.root / "keras").mkdir()
    (copied.root / "keras/keras.json").write_text('{"floatx": "float16", "image_data_format": "channels_first"}')
    output = copied.check_output("dvc", "repro", KERAS_HOME=str(copied.root / "keras"), COLUMNS="0")
    assert "Running stage 'train@float32-0'" in output
    assert "mixed_bfloat16" in output.rpartition("Running stage 'compare'")[2]
    assert trained(copied) == before


def trained(checkout: Checkout) -> list[float]:
    """Score and first weights of each training."""
    found = [checkout.json(f"data/train/{name}-0/metrics.json") for name in ("float32", "mixed_bfloat16")]
    return [item[key] for item in found for key in ("test_closeness", "initial_weights")]
