"""The examples on which a script's models are compared: stored, halved, and identified."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from halfstep.tasks import examples
from halfstep.tasks.examples import Batch


def test_strings_of_any_alphabet_are_stored(tmp_path: Path) -> None:
    words = tf.constant(["Ünï", "漢字", "ascii"])
    batch = Batch(*examples.mapped(examples.as_array, (np.array(["é", "b", "漢"]), {"words": words})))
    examples.write(tmp_path, [batch])
    (stored,) = examples.read(tmp_path)
    assert [item.decode() for item in stored.x] == ["é", "b", "漢"]
    np.testing.assert_array_equal(stored.y["words"], words.numpy().astype(np.bytes_))


def test_digest_depends_on_values_shapes_and_order() -> None:
    numbers = np.arange(6, dtype=np.float32)
    arrays: list[np.ndarray] = [numbers, numbers[::-1], numbers.reshape(2, 3), numbers.astype(np.float64)]
    digests = [*(examples.sha256([array]) for array in arrays), examples.sha256([numbers, numbers])]
    assert len(set(digests)) == len(digests)
    assert examples.sha256([numbers.copy()]) == digests[0]
    assert examples.sha256([]) == ""


def test_halves_are_random_and_have_all_examples_once() -> None:
    batches = [Batch(np.arange(start, start + 8), np.arange(start, start + 8)) for start in (0, 8, 16)]
    validation, test = examples.halves(batches)
    rows = [np.concatenate([batch.x for batch in half]) for half in (validation, test)]
    assert [len(half) for half in rows] == [12, 12]
    assert sorted(np.concatenate(rows)) == list(range(24))
    assert list(rows[0]) != list(range(12))
