"""The process that times the compiled function of Keras, in the variant or with quantized weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from halfstep.profile.worker import compiled_prediction
from halfstep.serve import bench
from halfstep.serve.records import ServedTrial
from halfstep.serve.worker import FormatWorker
from halfstep.tasks import building, precision
from halfstep.tensorflow_import import keras, tf
from halfstep.words.formats import KERAS


class KerasRuntime:
    """Keras as `profile` times it: the compiled function, from arrays on the host to arrays on the host."""

    def __init__(self, model: keras.Model, structure: Any, jit_compile: bool | None = None) -> None:
        self.precision = model.dtype_policy.name
        self.device = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        self._predict, self._structure = compiled_prediction(model, jit_compile), structure

    def predictor(self, inputs: bench.Arrays) -> bench.Call:
        """What predicts inputs of these shapes."""
        predict, structure, tree, constant = self._predict, self._structure, keras.tree, tf.constant

        def call(inputs: bench.Arrays) -> list[Any]:
            given = tree.pack_sequence_as(structure, [constant(array) for array in inputs])
            return [np.asarray(leaf) for leaf in tree.flatten(predict(given))]

        return call


class KerasWorker(FormatWorker):
    """Times Keras. A latency does not depend on the values of the weights, so that they are new ones."""

    def __init__(self, trial: ServedTrial) -> None:
        precision.activate(trial.variant)
        super().__init__(trial)

    def _loaded(self) -> KerasRuntime:
        trial = self._trial
        task = building.ready(trial)
        if trial.format == KERAS:
            return KerasRuntime(task.model, task.inputs(1), task.model.jit_compile)
        quantize(task.model, trial.format)
        return KerasRuntime(task.model, task.inputs(1))


def quantize(model: keras.Model, name: str) -> None:
    """Quantizes the weights of a model in float32, of which Keras does so for dense layers and embeddings alone.

    Raises:
        ValueError: it has none of these.
    """
    model.quantize(name.removeprefix("keras_"))
    if not any(getattr(layer, "quantization_mode", None) for layer in model._flatten_layers()):
        raise ValueError("Keras quantizes Dense, EinsumDense and Embedding alone, of which the model has none")
