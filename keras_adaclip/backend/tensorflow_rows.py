"""Rows of batches: the part of `tensorflow.py` that prepares, takes and empties them."""

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_adaclip.backend import tensorflow_devices

Tensor = Any

# Of so few a gather with the examples last is faster, on a CPU (of 1, four times; of 4, not).
_FEW_CHANNELS = 3


def computes_on_cpu() -> bool:
    """Whether steps run on the CPU, where what matters is how memory is written."""
    return not tf.config.list_logical_devices("GPU")


def take_rows(rows: Tensor, places: Any) -> Tensor:
    """`rows[:, places]`.

    A gather copies slice after slice. Where a row holds a few numbers, the examples are put last,
    so that a slice holds one number of each.

    Args:
        rows: tensor of shape `(batch_size, num_rows, channels)`.
        places: integers of any shape, below `num_rows`.

    Returns:
        A tensor of shape `(batch_size, *places.shape, channels)`.
    """
    if rows.shape[2] is None or rows.shape[2] > _FEW_CHANNELS or not computes_on_cpu():
        return tf.gather(rows, places, axis=1)
    taken = tf.gather(tf.transpose(rows, (1, 2, 0)), places, axis=0)
    rank = len(taken.shape)
    return tf.transpose(taken, (rank - 1, *range(rank - 1)))


def zero_where_not(kept: Tensor, values: Tensor) -> Tensor:
    """`values` with zeros in the rows that are not `kept`, which may hold NaN.

    Where batches are not padded there are most often none, and on a CPU it costs nothing to know.

    Args:
        kept: bool of shape `(batch_size,)`.
        values: tensor of shape `(batch_size, ...)`.
    """

    def zeroed() -> Tensor:
        mask = tf.reshape(kept, (-1, *([1] * (len(values.shape) - 1))))
        return tf.where(mask, values, tf.zeros_like(values))

    if not computes_on_cpu():
        return zeroed()
    return tf.cond(tf.reduce_all(kept), lambda: values, zeroed)


def fit_arguments(
    batches: keras.utils.PyDataset,
    rows: dict[str, Any],
    model: keras.Model,
    num_open_axes: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """What Keras's `fit` is given for `batches`: each prepared while the step before computes.

    Keras would do as much, but with tf.data's tuner. TensorFlow 2.21 waits for that one's thread
    where an iterator ends, and at times the thread sleeps on until it would have tuned again: for
    seconds at the end of an epoch of seconds, seen where cores are busy.

    Args:
        batches: the batches of an epoch, dicts of structures of NumPy arrays (without lists, which
            tf.data takes for tensors).
        rows: a batch of any size, for types and shapes.
        model: what is trained on them; where it has replicas, batches are divided among them.
        num_open_axes: for each part, how many of the first axes differ in length from batch to
            batch; None for one.
    """

    def specified(array: Any, num_open: int) -> tf.TensorSpec:
        shape = [None if axis < num_open else size for axis, size in enumerate(array.shape)]
        return tf.TensorSpec(shape, array.dtype)

    signature = {
        name: keras.tree.map_structure(
            functools.partial(specified, num_open=(num_open_axes or {}).get(name, 1)), part
        )
        for name, part in rows.items()
    }
    strategy = model.distribute_strategy
    options = tf.data.Options()
    options.autotune.enabled = False
    if strategy.num_replicas_in_sync == 1:
        data = tf.data.Dataset.from_generator(_epoch_of(batches), output_signature=signature)
        data = data.apply(tf.data.experimental.assert_cardinality(batches.num_batches))
        data = data.prefetch(1).with_options(options)
        data.batches = batches
        return {"x": data}
    # Each replica takes one element after the other, so that an epoch has more of them than steps:
    # it ends by the number of these.
    num_replicas = tensorflow_devices.num_local_replicas(strategy)
    parts = tf.data.Dataset.from_generator(
        _parts_of_epochs(batches, num_replicas), output_signature=signature
    )
    parts = parts.prefetch(num_replicas).with_options(options)
    data = strategy.distribute_datasets_from_function(lambda _: parts)
    data.batches = batches
    return {"x": data, "steps_per_epoch": batches.num_batches}


def _epoch_of(batches: keras.utils.PyDataset) -> Callable[[], Iterator[Any]]:
    """Batch after batch."""
    # TensorFlow never forgets a generator; what it must not keep are the data.
    known = weakref.ref(batches)

    def prepare() -> Iterator[Any]:
        if (of_epoch := known()) is not None:
            for index in range(of_epoch.num_batches):
                yield of_epoch[index]

    return prepare


def _parts_of_epochs(
    batches: keras.utils.PyDataset, num_replicas: int
) -> Callable[[], Iterator[Any]]:
    """For each batch of epoch after epoch, a part for each replica."""
    known = weakref.ref(batches)

    def prepare() -> Iterator[Any]:
        while (of_epoch := known()) is not None:
            for index in range(of_epoch.num_batches):
                yield from tensorflow_devices.divided(of_epoch[index], num_replicas)

    return prepare
