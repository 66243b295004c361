"""Rows of batches on TensorFlow: how they are prepared, gathered and masked."""

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_adaclip.backend.tensorflow import devices

Tensor = Any

# Up to this many, a gather with the examples last is faster on a CPU: 4 times with one channel.
_FEW_CHANNELS = 3


def computes_on_cpu() -> bool:
    """Override: there is no GPU."""
    return not tf.config.list_logical_devices("GPU")


def take_rows(rows: Tensor, places: Any) -> Tensor:
    """Override: on a CPU, few channels are gathered with the examples last.

    A gather copies slice after slice. With the examples last, a slice holds one number of each
    example instead of a few numbers of one.
    """
    if rows.shape[2] is None or rows.shape[2] > _FEW_CHANNELS or not computes_on_cpu():
        return tf.gather(rows, places, axis=1)
    taken = tf.gather(tf.transpose(rows, (1, 2, 0)), places, axis=0)
    rank = len(taken.shape)
    return tf.transpose(taken, (rank - 1, *range(rank - 1)))


def masked(kept: Tensor, values: Tensor) -> Tensor:
    """Override: on a CPU, nothing is copied if all rows are kept."""

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
    """Override: prepares a batch while the step before computes.

    Keras would do so too, but with the tuner of tf.data. At the end of an iterator TensorFlow 2.21
    waits for the tuner's thread, which may sleep for seconds on a busy machine. Batches must not
    hold lists, which tf.data takes for tensors.
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
    # Each replica takes an element of its own, so an epoch has more elements than steps, and the
    # number of steps must end it.
    num_replicas = devices.num_local_replicas(strategy)
    parts = tf.data.Dataset.from_generator(
        _parts_of_epochs(batches, num_replicas), output_signature=signature
    )
    parts = parts.prefetch(num_replicas).with_options(options)
    data = strategy.distribute_datasets_from_function(lambda _: parts)
    data.batches = batches
    return {"x": data, "steps_per_epoch": batches.num_batches}


def _epoch_of(batches: keras.utils.PyDataset) -> Callable[[], Iterator[Any]]:
    """Return a generator function of the batches of one epoch."""
    # TensorFlow keeps the generator function for ever; it must not keep the data with it.
    known = weakref.ref(batches)

    def prepare() -> Iterator[Any]:
        if (of_epoch := known()) is not None:
            for index in range(of_epoch.num_batches):
                yield of_epoch[index]

    return prepare


def _parts_of_epochs(
    batches: keras.utils.PyDataset, num_replicas: int
) -> Callable[[], Iterator[Any]]:
    """Return a generator function of the parts of all batches, epoch after epoch."""
    known = weakref.ref(batches)

    def prepare() -> Iterator[Any]:
        while (of_epoch := known()) is not None:
            for index in range(of_epoch.num_batches):
                yield from devices.divided(of_epoch[index], num_replicas)

    return prepare
