"""The data of a task as `tf.data` datasets, which can start at any step of a training."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from halfstep.errors import TaskError
from halfstep.tasks.user_code import UNEVEN, counted
from halfstep.tensorflow_import import data_adapters, keras, tf

PREFETCHED_BATCHES = 2
ARRAY_THREADS = 2
ENDLESS = 2**40  # steps
UNKNOWN_BUFFER = 16  # batches that the pipeline of someone else may prepare in advance
_FORMS = "a tf.data.Dataset of batches, a keras.utils.PyDataset, or a tuple of arrays (x, y)"
_ALONE = "train"  # may be `x` without `y`


@dataclass(frozen=True)
class TrainingData:
    """The batches of a training.

    Attributes:
        steps_per_epoch: number of batches in an epoch.
        from_step: returns the batches from a step on, counted over all epochs; given their number or, for None, at
            least those that remain.
        buffered_batches: largest number of batches that the pipeline prepares in advance.
        threads: threads of the pipeline; None if the task's own code decides.
        first_pass: batches of the pass after which all are in memory; 0 where they are not kept.
        device: where batches are copied before they are needed; None where the training step does it.
        is_indexed: whether a batch depends only on the number of its step, and all have the same number of examples.
            Such a training can resume between two steps. A dataset gives other batches when it is read again, so that
            a training can resume only at the end of an epoch, and reads all data of its session in one pass.
    """

    steps_per_epoch: int
    from_step: Callable[[int, int | None], tf.data.Dataset]
    buffered_batches: int = UNKNOWN_BUFFER
    threads: int | None = None
    is_indexed: bool = False
    first_pass: int = 0
    device: str | None = None

    def batches(self, first_step: int, steps: int | None) -> tf.data.Dataset:
        """What `from_step` returns, on the device where `device` says so."""
        return self._placed(self.from_step(first_step, steps))

    def _placed(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        if self.device is None:
            return batches
        return batches.apply(tf.data.experimental.prefetch_to_device(self.device, PREFETCHED_BATCHES))

    def kept(self) -> TrainingData:
        """The same batches, of which those of the first pass stay in memory and come again in every epoch."""
        steps_per_epoch = self.steps_per_epoch

        def again(first_step: int, steps: int | None) -> tf.data.Dataset:
            whole = self.from_step(0, steps_per_epoch).cache().repeat()
            return from_step(whole, first_step % steps_per_epoch, steps)

        return replace(self, from_step=again, first_pass=steps_per_epoch)

    def examples_per_step(self, batch_size: int) -> int:
        """Number of examples in a step; `batch_size` unless the task's own data decide."""
        return batch_size if self.is_indexed else _examples(next(iter(self.from_step(0, 1))))

    def equal_batches(self) -> tf.data.Dataset:
        """Endless batches that all have as many examples as the first, so that every step does the same work."""
        batches = self.from_step(0, ENDLESS)
        if self.is_indexed:
            return self._placed(batches)
        first = next(iter(batches), None)
        if first is None:
            raise TaskError("Task.train gives no batches; give at least one")
        examples = _examples(first)
        return self._placed(batches.filter(lambda *batch: tf.shape(keras.tree.flatten(batch)[0])[0] == examples))

    def of_size(self, examples: int) -> tf.data.Dataset:
        """Endless batches of this size: the examples of the first batch, repeated or cut."""
        first = next(iter(self.from_step(0, 1)))
        chosen = tf.range(examples) % _examples(first)
        sized = lambda _: keras.tree.map_structure(lambda part: tf.gather(part, chosen), first)  # noqa: E731
        return tf.data.Dataset.range(ENDLESS).map(sized).prefetch(PREFETCHED_BATCHES)


class ShuffledOrder:
    """The order of the examples: in each epoch a new permutation, which depends only on `(seed, epoch)`."""

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        self._count, self._batch_size = count, batch_size
        # around the end of an epoch, batches of both epochs are loaded in parallel
        self._permutation = functools.lru_cache(maxsize=3)(
            lambda epoch: np.random.default_rng((seed, epoch)).permutation(count)
        )

    def batch(self, step: int) -> np.ndarray:
        """Indices of the examples of a step, int64 `(batch,)`."""
        epoch, position = divmod(step, self._count // self._batch_size)
        return self._permutation(epoch)[position * self._batch_size : (position + 1) * self._batch_size]


def training_data(
    data: Any,
    batch_size: int,
    seed: int,
    counted_steps: int | None = None,
    class_weight: Mapping[int, float] | None = None,
) -> TrainingData:
    """Makes the training data of a task ready.

    Args:
        data: `Task.train`.
        batch_size: examples a step, for arrays. The incomplete last batch of an epoch is dropped.
        seed: seed of the order, for arrays.
        counted_steps: steps of an epoch as `prepare` counted them, for a dataset that does not know its length.
        class_weight: `Task.class_weight`, which becomes a weight of each example, as in `fit`.

    Raises:
        TaskError: the data are empty, endless or of another type, or the weights are no numbers by class.
    """
    training = data if isinstance(data, TrainingData) else _unweighted(data, batch_size, seed, counted_steps)
    if class_weight is None:
        return training
    try:
        weighted = data_adapters.tf_dataset_adapter.make_class_weight_map_fn(dict(class_weight))
    except (TypeError, ValueError) as error:
        raise TaskError(
            f"Task.class_weight cannot be used ({error}); give a number for each class from 0 on"
        ) from error
    return replace(training, from_step=lambda first, steps: training.from_step(first, steps).map(weighted))


def _unweighted(data: Any, batch_size: int, seed: int, counted_steps: int | None) -> TrainingData:
    if isinstance(data, tf.data.Dataset):
        steps = _length(data, counted_steps)
        is_known = int(data.cardinality()) == steps
        return TrainingData(steps, functools.partial(from_step, data.repeat() if is_known else _counted(data, steps)))
    if isinstance(data, keras.utils.PyDataset):
        return TrainingData(_batches_of(data), functools.partial(from_step, py_dataset(data, epochs=None)))
    arrays = _arrays(data, "train")
    examples = _examples(arrays)
    if batch_size > examples:
        raise TaskError(f"train.batch_size is {batch_size}; allowed are at most {examples}, the examples of Task.train")
    return TrainingData(
        steps_per_epoch=examples // batch_size,
        from_step=functools.partial(_shuffled, arrays, ShuffledOrder(examples, batch_size, seed)),
        buffered_batches=PREFETCHED_BATCHES + ARRAY_THREADS,
        threads=ARRAY_THREADS,
        is_indexed=True,
    )


def ordered_data(data: Any, batch_size: int, name: str) -> tf.data.Dataset:
    """One pass over validation or test data, in their order.

    Args:
        data: `Task.validation` or `Task.test`.
        batch_size: examples a batch, for arrays; the last may be smaller.
        name: `validation` or `test`, for messages.

    Raises:
        TaskError: the data are endless or of another type.
    """
    if isinstance(data, tf.data.Dataset):
        if data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise TaskError(f"Task.{name} is endless; end it with .take(steps)")
        return data
    if isinstance(data, keras.utils.PyDataset):
        return py_dataset(data, epochs=1)
    arrays = _arrays(data, name)
    starts = tf.data.Dataset.range(0, _examples(arrays), batch_size)
    return _loaded(starts, arrays, lambda start: slice(start, start + batch_size), batch_size=None)


def _length(data: tf.data.Dataset, counted_steps: int | None) -> int:
    cardinality = int(data.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY:
        raise TaskError("Task.train is endless; end an epoch with .take(steps)")
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        cardinality = counted_steps if counted_steps is not None else sum(1 for _ in counted(data, "Task.train"))
    if cardinality == 0:
        raise TaskError("Task.train is empty; give at least one batch")
    return cardinality


def _counted(data: tf.data.Dataset, steps: int) -> tf.data.Dataset:
    """The data again and again. To read it fails where a pass has another number of batches than `steps`."""

    def checked(number: tf.Tensor, numbered: Any) -> Any:
        position, batch = numbered
        expected = tf.debugging.assert_equal(position, number % steps, f"{UNEVEN} ({steps} in the first)")
        with tf.control_dependencies([expected]):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    return tf.data.Dataset.zip((tf.data.Dataset.range(ENDLESS), data.enumerate().repeat())).map(checked)


def from_step(batches: tf.data.Dataset, first_step: int, steps: int | None) -> tf.data.Dataset:
    """The batches from a step on. Those before are computed again: only so, random operations continue as they were."""
    remaining = batches.skip(first_step) if first_step else batches
    return (remaining if steps is None else remaining.take(steps)).prefetch(PREFETCHED_BATCHES)


def _batches_of(data: keras.utils.PyDataset) -> int:
    count = data.num_batches
    if not count:
        raise TaskError(f"a PyDataset of the task has {count or 'no'} batches; its __len__ must return 1 or more")
    return int(count)


def py_dataset(data: keras.utils.PyDataset, epochs: int | None) -> tf.data.Dataset:
    """The batches of a `PyDataset` for some epochs, or without an end; its `workers` prepare them in threads."""

    def batches() -> Iterator[Any]:
        for _ in itertools.count() if epochs is None else range(epochs):
            data.on_epoch_begin()
            yield from (_standardized(batch) for batch in _in_threads(data))
            data.on_epoch_end()

    count = _batches_of(data)
    samples = [_standardized(data[0]), _standardized(data[count - 1])]
    signature = keras.tree.map_structure(_spec, *samples)
    return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(PREFETCHED_BATCHES)


def batches_in_order(data: keras.utils.PyDataset) -> Iterator[Any]:
    """The batches of one epoch, as `py_dataset` gives them, without its threads."""
    return (_standardized(data[number]) for number in range(_batches_of(data)))


def _in_threads(data: keras.utils.PyDataset) -> Iterator[Any]:
    """The batches of one epoch in their order, of which at most `max_queue_size` are prepared in advance."""
    with ThreadPoolExecutor(max_workers=max(1, data.workers)) as executor:
        waiting: deque[Any] = deque()
        for number in range(_batches_of(data)):
            waiting.append(executor.submit(data.__getitem__, number))
            if len(waiting) >= max(1, data.max_queue_size):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _standardized(batch: Any) -> Any:
    """A batch as a tuple of arrays; floating-point numbers have Keras's type, as in `fit`."""
    parts = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    return keras.tree.map_structure(_as_array, parts)


def _as_array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array


def _spec(first: np.ndarray, last: np.ndarray) -> tf.TensorSpec:
    sizes = (size if size == other else None for size, other in zip(first.shape[1:], last.shape[1:], strict=True))
    return tf.TensorSpec((None, *sizes), first.dtype)


def _arrays(data: Any, name: str) -> tuple[Any, ...]:
    """The arrays of `(x, y)`, each of which may be a dict or tuple of arrays; for training data also `(x,)`.

    Raises:
        TaskError: the data are something else, or the numbers of examples differ.
    """
    if name == _ALONE and isinstance(data, np.ndarray | dict):
        data = (data,)
    if not isinstance(data, tuple) or not (1 if name == _ALONE else 2) <= len(data) <= 3:
        raise TaskError(f"Task.{name} is {type(data).__name__}; it must be {_FORMS}")
    arrays: tuple[Any, ...] = keras.tree.map_structure(_as_array, data)
    sizes = {array.shape[:1] for array in keras.tree.flatten(arrays)}
    if len(sizes) != 1 or () in sizes:
        raise TaskError(f"Task.{name} has arrays with {sorted(sizes)} examples; all must have the same number")
    if (0,) in sizes:
        raise TaskError(f"Task.{name} is empty; give at least one example")
    return arrays


def _examples(batch: Any) -> int:
    return int(keras.tree.flatten(batch)[0].shape[0])


def _shuffled(arrays: Any, order: ShuffledOrder, first_step: int, steps: int | None) -> tf.data.Dataset:
    last_step = ENDLESS if steps is None else first_step + steps
    batch_size = len(order.batch(0))
    return _loaded(tf.data.Dataset.range(first_step, last_step), arrays, order.batch, batch_size)


def _loaded(
    numbers: tf.data.Dataset, arrays: Any, chosen: Callable[[int], Any], batch_size: int | None
) -> tf.data.Dataset:
    """A batch for each number: the examples that `chosen` returns for it."""
    leaves = keras.tree.flatten(arrays)

    def load(number: tf.Tensor) -> Any:
        tensors = tf.numpy_function(
            lambda value: [leaf[chosen(int(value))] for leaf in leaves], [number], [leaf.dtype for leaf in leaves]
        )
        shapes = [(batch_size, *leaf.shape[1:]) for leaf in leaves]
        return keras.tree.pack_sequence_as(arrays, list(map(tf.ensure_shape, tensors, shapes)))

    return numbers.map(load, num_parallel_calls=ARRAY_THREADS, deterministic=True).prefetch(PREFETCHED_BATCHES)
