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
