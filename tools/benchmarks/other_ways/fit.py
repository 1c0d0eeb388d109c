"""What a user runs: trains with `fit`, with Keras's progress bar, and notes when each step began and ended.

python -m tools.benchmarks.other_ways.fit --epochs 8 --slower-by 0.05 --out FILE
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from stages.tensorflow_import import keras
from tools.benchmarks.other_ways import digits
from tools.benchmarks.other_ways.recordings import Fit


class Stamps(keras.callbacks.Callback):
    """Notes the durations that `Fit` has."""

    def __init__(self) -> None:
        super().__init__()
        self.step_us: list[list[int]] = []
        self.gap_us: list[list[int]] = []
        self.tail_us: list[int] = []
        self._last_ns = time.perf_counter_ns()

    def _since_last_us(self) -> int:
        before_ns, self._last_ns = self._last_ns, time.perf_counter_ns()
        return (self._last_ns - before_ns) // 1000

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.step_us.append([])
        self.gap_us.append([])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.gap_us[-1].append(self._since_last_us())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step_us[-1].append(self._since_last_us())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.tail_us.append(self._since_last_us())


def fitted(epochs: int, slower_by: float = 0.0) -> Fit:
    """Trains, and returns the durations."""
    task = digits.task(slower_by=slower_by)
    model = task.model
    model.compile(**task.compile)
    stamps = Stamps()
    model.fit(
        *task.train,
        batch_size=digits.BATCH_SIZE,
        epochs=epochs,
        validation_data=task.validation,
        callbacks=[stamps],
    )
    return Fit(*(np.array(values, dtype=np.int32) for values in (stamps.step_us, stamps.gap_us, stamps.tail_us)))


def main() -> None:
    """Trains and writes the durations."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.other_ways.fit", description=__doc__)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--slower-by", type=float, default=0.0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    fitted(arguments.epochs, arguments.slower_by).write(arguments.out)


if __name__ == "__main__":
    main()
