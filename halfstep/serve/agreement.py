"""How far the predictions of a format are from those of Keras. Imports TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import TaskError
from halfstep.profile.worker import compiled_prediction
from halfstep.serve import bench
from halfstep.serve.worker import Runtime
from halfstep.tasks.ready import ReadyTask
from halfstep.tensorflow_import import keras


class Tester:
    """Compares predictions with those of Keras: on the test data, or where nothing was trained on some inputs."""

    def __init__(self, task: ReadyTask, inputs: Sequence[Any] | None) -> None:
        self._task, self._inputs = task, inputs
        self._expected: list[list[NDArray[Any]]] = []
        self._structure: Any = None
        predict = compiled_prediction(task.model)

        def kept(x: Any) -> Any:
            self._structure = predict(x)
            leaves = keras.tree.flatten(self._structure)
            self._expected.append([np.asarray(keras.ops.convert_to_numpy(leaf)) for leaf in leaves])
            return self._structure

        if inputs is None:
            task.outputs(kept, allow_not_finite=True)
        else:
            kept(keras.tree.pack_sequence_as(task.inputs(1), inputs))

    @property
    def first_outputs(self) -> list[NDArray[Any]]:
        """What Keras predicts for the first batch, flat."""
        return self._expected[0]

    def test(self, runtime: Runtime, tolerance: float | None) -> tuple[NDArray[Any] | None, dict[str, float | int]]:
        """What is stored of the test, None without one; and `difference`, `agreeing` and `tested` of `results.serving`.

        Args:
            runtime: with a file.
            tolerance: largest difference from an output of Keras, as a share of the largest output; None: any.

        Raises:
            TaskError: the outputs are not those of the model.
        """
        expected, seen = iter(self._expected), list[tuple[NDArray[Any], NDArray[Any]]]()
        calls: dict[tuple[Any, ...], bench.Call] = {}

        def predicted(x: Any) -> Any:
            inputs, known = [np.asarray(leaf) for leaf in keras.tree.flatten(x)], next(expected)
            shapes = tuple(array.shape for array in inputs)
            if shapes not in calls:
                calls[shapes] = runtime.predictor(inputs)
            outputs = bench.float32(calls[shapes](inputs))
            found, wanted = [array.shape for array in outputs], [array.shape for array in known]
            if found != wanted:
                raise TaskError(f"it gives outputs of the shapes {found} in place of {wanted}")
            seen.extend(zip(outputs, known, strict=True))
            return keras.tree.pack_sequence_as(self._structure, outputs)

        stored = None
        if self._inputs is None:
            stored = self._task.outputs(predicted, allow_not_finite=True)
        else:
            predicted(self._inputs)
        return stored, compared(seen, tolerance, has_classes=self._has_classes)

    @property
    def _has_classes(self) -> bool:
        """Whether the model has one output with a number for each class."""
        return len(self.first_outputs) == 1 and self.first_outputs[0].ndim == 2 and self.first_outputs[0].shape[1] > 1


def compared(
    seen: Sequence[tuple[NDArray[Any], NDArray[Any]]], tolerance: float | None, *, has_classes: bool
) -> dict[str, float | int]:
    """How far outputs are from those of Keras, and how many examples have the same most likely class.

    Raises:
        TaskError: they differ by more than the format allows, or are not finite where those of Keras are.
    """
    difference = largest = 0.0
    for mine, wanted in seen:
        is_known = np.isfinite(wanted)
        if not np.isfinite(mine[is_known]).all():
            raise TaskError("wrong: it gives numbers that are not finite, where those of Keras are")
        gap = np.abs(mine[is_known].astype(np.float64) - wanted[is_known])
        difference = max(difference, float(gap.max(initial=0.0)))
        largest = max(largest, float(np.abs(wanted[is_known]).max(initial=0.0)))
    if tolerance is not None and difference > tolerance * largest:
        raise TaskError(
            f"wrong: outputs differ from those of Keras by up to {difference:.2g}, which reach {largest:.2g}"
        )
    if not has_classes:
        return {"difference": difference}
    agreeing = sum(int((mine.argmax(1) == wanted.argmax(1)).sum()) for mine, wanted in seen)
    return {"difference": difference, "agreeing": agreeing, "tested": sum(len(mine) for mine, _ in seen)}
