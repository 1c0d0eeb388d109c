"""Fine-tuning: a network that knows the ten digits learns to tell even from odd ones, from few images.

The base is trained here, in float32, in about two seconds whenever the task is built; its images are used for nothing
else. Only the new head is trained after that, or all layers with `arguments: {frozen: false}`. In params.yaml:

    task: {name: "examples.fine_tuning:build"}
    train: {epochs: 10, batch_size: 32}
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

from halfstep.params.schema import ModelParams
from halfstep.tasks import Task
from halfstep.tasks.images.models import build as network

SHAPE = (32, 32, 3)
BASE_SEED = 0  # the same base for every seed


def base_weights(name: str, x: np.ndarray, digits: np.ndarray) -> list[np.ndarray]:
    """Weights of a network that tells the digits apart, trained in float32 under every policy."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(BASE_SEED)
    base = network(ModelParams(name=name), SHAPE, classes=10)
    base.compile(keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy")
    base.fit(x, digits, epochs=12, batch_size=32, verbose=0)
    keras.config.set_dtype_policy(policy)
    return base.get_weights()


def build(*, batch_size: int, seed: int, frozen: bool = True, name: str = "cnn", images: int = 300) -> Task:
    """The features of a network `name` with a new head for two classes."""
    digits = load_digits()
    pixels = np.kron(digits.images, np.ones((4, 4)))[..., None].repeat(3, axis=3) * (255 / 16)
    x, y, order = pixels.astype("uint8"), digits.target % 2, np.random.default_rng(0).permutation(len(pixels))
    of_base, train, validation, test = np.split(order, [500, 500 + images, 600 + images])
    weights = base_weights(name, x[of_base], digits.target[of_base])
    keras.utils.set_random_seed(seed)
    base = network(ModelParams(name=name), SHAPE, classes=10)  # under the policy of the variant
    base.set_weights(weights)
    features = keras.Model(base.input, base.layers[-3].output, name="features")
    features.trainable = not frozen
    head = keras.layers.Dense(2, name="head")(features.output)
    return Task(
        model=keras.Model(base.input, keras.layers.Activation("softmax", dtype="float32")(head)),
        compile={
            "optimizer": keras.optimizers.Adam(0.01 if frozen else 0.001),
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
        train=(x[train], y[train]),
        validation=(x[validation], y[validation]),
        test=(x[test], y[test]),
        score=lambda y_true, y_pred: y_pred.argmax(axis=1) == y_true,
        score_name="accuracy",
    )
