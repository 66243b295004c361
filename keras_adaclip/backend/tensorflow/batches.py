"""Batches on their way into Keras's `fit`, on TensorFlow."""

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_adaclip.backend.tensorflow import devices

Tensor = Any


def computes_on_cpu() -> bool:
    """Override: there is no GPU."""
    return not tf.config.list_logical_devices("GPU")


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
    num_replicas = devices.num_local_replicas(strategy)
    is_shared = strategy.num_replicas_in_sync > 1
    options = tf.data.Options()
    options.autotune.enabled = False
    data = tf.data.Dataset.from_generator(
        _generator(batches, num_replicas, is_endless=is_shared), output_signature=signature
    )
    if not is_shared:
        data = data.apply(tf.data.experimental.assert_cardinality(batches.num_batches))
    data = data.prefetch(num_replicas).with_options(options)
    if is_shared:
        parts = data
        data = strategy.distribute_datasets_from_function(lambda _: parts)
    data.batches = batches
    # Each replica takes an element of its own, so an epoch has more elements than steps, and the
    # number of steps must end it.
    return {"x": data, "steps_per_epoch": batches.num_batches} if is_shared else {"x": data}


def _generator(
    batches: keras.utils.PyDataset, num_replicas: int, is_endless: bool
) -> Callable[[], Iterator[Any]]:
    """Return a generator function of the parts of all batches, for one epoch or for ever."""
    # TensorFlow keeps the generator function for ever; it must not keep the data with it.
    known = weakref.ref(batches)

    def prepare() -> Iterator[Any]:
        while (of_epoch := known()) is not None:
            for index in range(of_epoch.num_batches):
                yield from devices.divided(of_epoch[index], num_replicas)
            if not is_endless:
                return

    return prepare
