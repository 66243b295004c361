"""Private training over several devices on TensorFlow: `tf.distribute`.

Each replica clips and sums its own units, and the sums of all replicas are added. After that every
replica does the same: the noise is a function of a key and a counter that all share, so there is
one noise, and each replica updates its copy of one ledger.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_adaclip.backend import keras_private

Tensor = Any

# Jobs of a cluster that train, in the order of their replicas.
_WORKING = ("chief", "worker")
_SUPPORTED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


def unsupported_distribution(model: keras.Model) -> str | None:
    """Override: a model remembers the strategy in whose scope it was made."""
    own, current = model.distribute_strategy, tf.distribute.get_strategy()
    if tf.distribute.has_strategy() and current is not own:
        return (
            "`fit` runs in the scope of another `tf.distribute` strategy than the model was made "
            f"in. Received: {type(current).__name__}, and the model's {type(own).__name__}"
        )
    if own.num_replicas_in_sync == 1 and not _has_workers(own):
        return None
    if not isinstance(own, _SUPPORTED):
        return (
            "Private training runs under `tf.distribute.MirroredStrategy` and "
            f"`MultiWorkerMirroredStrategy`. Received: {type(own).__name__}"
        )
    # Variables that no step assigns may be on any device.
    assigned = [
        *model.trainable_variables,
        *keras_private.seed_generator_states(model),
        *model.optimizer.variables,
    ]
    elsewhere = [
        variable.path
        for variable in assigned
        if not own.extended.variable_created_in_scope(variable.value)
    ]
    if elsewhere:
        return (
            "The model or its optimizer was made outside of the `tf.distribute` strategy's scope, "
            "so that its devices would not share these variables. Make and compile them within "
            f"`strategy.scope()`. Received: variables outside: {', '.join(elsewhere[:3])}"
            f"{', ...' if len(elsewhere) > 3 else ''}"
        )
    if model.optimizer.aggregation is not None:
        return (
            f"A `{type(model.optimizer).__name__}` adds up what one device has, and what several "
            "have made of it cannot be added. Train on one device, or with a `DPOptimizer`. "
            f"Received: {type(own).__name__} with {own.num_replicas_in_sync} replicas"
        )
    if model.jit_compile:
        return (
            "`jit_compile=True` does not go with several replicas, whose sums cannot be added up "
            'inside of a step that XLA compiles. Compile with `jit_compile=False` (or "auto").'
        )
    return None


def of_replicas(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Override: a single all-reduce, to which each replica adds its tensors in a place of its own.

    (`all_gather` ends the process with a segmentation fault on TensorFlow 2.21.)
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return [list(tensors)]
    number = context.num_replicas_in_sync
    place = tf.one_hot(context.replica_id_in_sync_group, number)
    placed = [tf.tensordot(place, tensor, axes=0) for tensor in tensors]
    summed = context.all_reduce(tf.distribute.ReduceOp.SUM, placed)
    return [[tensor[replica] for tensor in summed] for replica in range(number)]


def shares_of_replica(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Override: one part of as many as there are replicas."""
    context = tf.distribute.get_replica_context()
    num_replicas = 1 if context is None else context.num_replicas_in_sync
    return list(gradients) if num_replicas == 1 else [each / num_replicas for each in gradients]


def num_processes() -> int:
    """Override: the processes of the strategy in whose scope it is called."""
    strategy = tf.distribute.get_strategy()
    if not _has_workers(strategy):
        return 1
    spec = strategy.cluster_resolver.cluster_spec()
    return sum(spec.num_tasks(job) for job in spec.jobs if job in _WORKING)


def process_number() -> int:
    """Override: the order of the replicas."""
    strategy = tf.distribute.get_strategy()
    if not _has_workers(strategy):
        return 0
    resolver = strategy.cluster_resolver
    spec = resolver.cluster_spec()
    before = _WORKING[: _WORKING.index(resolver.task_type)]
    return int(resolver.task_id) + sum(spec.num_tasks(job) for job in before if job in spec.jobs)


def gathered(array: np.ndarray) -> np.ndarray:
    """Override: sends bytes, since not every collective takes every dtype."""
    array = np.asarray(array)
    if num_processes() == 1:
        return array[None]
    strategy = tf.distribute.get_strategy()
    sent = tf.constant(np.frombuffer(array.tobytes(), np.uint8)[None], "int32")
    values = strategy.experimental_distribute_values_from_function(lambda _: sent)
    received = strategy.gather(values, axis=0).numpy().astype(np.uint8)
    of_processes = received[:: num_local_replicas(strategy)]
    return np.frombuffer(of_processes.tobytes(), array.dtype).reshape(-1, *array.shape)


def num_replicas(model: keras.Model) -> int:
    """Override: the replicas of all processes."""
    return int(model.distribute_strategy.num_replicas_in_sync)


def may_join_batches(model: keras.Model, data: Any) -> bool:
    """Override: only for batches of unknown size.

    TensorFlow has two methods to divide the batches of a data set among replicas. If it knows the
    size of a batch, it takes the one that never joins batches.
    """
    if num_replicas(model) == 1 or not isinstance(data, tf.data.Dataset):
        return False
    specs = tf.nest.flatten(data.element_spec)
    shapes = [spec.shape for spec in specs if not isinstance(spec, tf.NoneTensorSpec)]
    return any(not shape.rank or shape[0] is None for shape in shapes)


def number_of_replica() -> Any:
    """Override: the number within the replica context."""
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def logs_for_keras(logs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Override: Keras 3.15 averages logs of workers over a first axis, which scalars lack."""
    if not _has_workers(tf.distribute.get_strategy()):
        return logs
    return {name: tf.reshape(value, (1,)) for name, value in logs.items()}


def num_local_replicas(strategy: tf.distribute.Strategy) -> int:
    """Return the number of replicas of this process."""
    return len(strategy.extended.worker_devices) if isinstance(strategy, _SUPPORTED) else 1


@contextlib.contextmanager
def scope_of_devices(model: keras.Model) -> Iterator[None]:
    """Override: the scope of the strategy; besides, TF32 is off."""
    strategy = model.distribute_strategy
    takes_tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        with strategy.scope() if isinstance(strategy, _SUPPORTED) else contextlib.nullcontext():
            yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(takes_tf32)


def divided(batch: dict[str, Any], num_replicas: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch, one part for each replica of this process.

    A replica for which there is no row gets a row of zeros, which is padding.

    Args:
        batch: Structures of NumPy arrays of shape `(batch_size, ...)`, `"mask"` among them.
        num_replicas: Number of parts.
    """
    if num_replicas == 1:
        yield batch
        return
    for replica in range(num_replicas):

        def hand(array: np.ndarray, replica: int = replica) -> np.ndarray:
            """Return the rows of one replica."""
            part = array[replica::num_replicas]
            return part if len(part) else np.zeros_like(array[:1])

        yield {name: keras.tree.map_structure(hand, part) for name, part in batch.items()}


def _has_workers(strategy: tf.distribute.Strategy) -> bool:
    """Return whether a strategy trains on several workers."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and bool(
        strategy.cluster_resolver.cluster_spec().jobs
    )
