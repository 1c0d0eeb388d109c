"""A training script as anybody writes it, without halfstep: digits of 8 by 8 pixels (scikit-learn's data set).

In params.yaml:

    task: {script: examples/plain_script.py, arguments: [--width, "64"]}
    train: {epochs: null, batch_size: null}  # and the rest as it is
"""

import argparse

import keras
from sklearn.datasets import load_digits


def main() -> None:
    """Trains a small convolutional network, and prints its accuracy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=32)
    width = parser.parse_args().width

    keras.utils.set_random_seed(1)
    images, digits = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(width, 3, activation="relu"),
            keras.layers.Conv2D(2 * width, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
            keras.layers.Activation("softmax", dtype="float32"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    stop = keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)
    best = keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True)
    history = model.fit(images, digits, epochs=20, batch_size=32, validation_split=0.4, callbacks=[stop, best])
    print(f"accuracy {max(history.history['val_accuracy']):.3f}")


if __name__ == "__main__":
    main()
