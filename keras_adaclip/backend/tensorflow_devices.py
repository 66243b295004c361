"""Private training over several devices on TensorFlow: `tf.distribute`.

Each replica clips and sums the units that it was given. The sums of all replicas are added up. From
there on all replicas do the same: the noise is a function of a key and a counter that they share,
so that there is one noise, and each assigns its copy of one ledger.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_adaclip.backend import keras_private

Tensor = Any

# The jobs of a cluster that train, in the order of their replicas.
_WORKING = ("chief", "worker")
_SUPPORTED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


def unsupported_distribution(model: keras.Model) -> str | None:
    """Says why private training cannot run the way `model` is distributed; None where it can.

    A model remembers the strategy in whose scope it was made.

    Args:
        model: a compiled private model.
    """
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
    if keras_private.strategy_of_optimizer(model.optimizer.inner_optimizer) is not own:
        return (
            "The optimizer was made outside of the `tf.distribute` strategy's scope that the model "
            "was made in. Make and compile the model and its optimizer within `strategy.scope()`."
        )
    # What no step assigns may lie anywhere.
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
            "The model or its optimizer was built outside of the `tf.distribute` strategy's scope, "
            "so that its devices would not share these variables. Build them within "
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


def num_batch_shards() -> int:
    """Into how many parts, one a device, a compiler divides the first axis of what a step reads.

    1 where each device has a step of its own, or where there is one device.
    """
    return 1


def on_all_shards(value: Tensor) -> Tensor:
    """`value`, its first axis divided among the devices as that of a batch is."""
    return value


def sums_of_replicas(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The sums of `tensors` over all replicas, those of other workers too, the same on each.

    Inside of a step. One all-reduce of all tensors is what a step sends.

    Args:
        tensors: of the same shapes on each replica.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(tensors)
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(tensors)))


def applied_as_they_are(
    optimizer: keras.optimizers.Optimizer,
) -> contextlib.AbstractContextManager[None]:
    """Within it, gradients given to a Keras optimizer are those of all replicas, not summands.

    Args:
        optimizer: one of Keras's.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return contextlib.nullcontext()
    return keras_private.without_all_reduce(optimizer)


def num_processes() -> int:
    """The processes that train together; of the strategy in whose scope this is called."""
    strategy = tf.distribute.get_strategy()
    if not _has_workers(strategy):
        return 1
    spec = strategy.cluster_resolver.cluster_spec()
    return sum(spec.num_tasks(job) for job in spec.jobs if job in _WORKING)


def process_number() -> int:
    """The number of this process among them, from 0."""
    strategy = tf.distribute.get_strategy()
    if not _has_workers(strategy):
        return 0
    resolver = strategy.cluster_resolver
    spec = resolver.cluster_spec()
    before = _WORKING[: _WORKING.index(resolver.task_type)]
    return int(resolver.task_id) + sum(spec.num_tasks(job) for job in before if job in spec.jobs)


def gathered(array: np.ndarray) -> np.ndarray:
    """An array of each process, called in all of them together: not inside of a step.

    Args:
        array: of the same shape and dtype in each process.

    Returns:
        An array of shape `(num_processes, *array.shape)`.
    """
    array = np.asarray(array)
    if num_processes() == 1:
        return array[None]
    strategy = tf.distribute.get_strategy()
    # Not every collective takes every dtype.
    sent = tf.constant(
        np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)[None], "int32"
    )
    values = strategy.experimental_distribute_values_from_function(lambda _: sent)
    received = strategy.gather(values, axis=0).numpy().astype(np.uint8)
    of_processes = received[:: num_local_replicas(strategy)]
    return np.stack([np.frombuffer(row.tobytes(), array.dtype) for row in of_processes]).reshape(
        -1, *array.shape
    )


def num_replicas(model: keras.Model) -> int:
    """How many replicas run each step, over all processes.

    Args:
        model: made in the scope of a strategy, or of none.
    """
    return int(model.distribute_strategy.num_replicas_in_sync)


def may_join_batches(model: keras.Model, data: Any) -> bool:
    """Whether dividing a data set among the replicas may put rows of two batches into one step.

    TensorFlow has two ways of dividing batches, chosen by how the data set is shared out; one of
    them fills up a smaller batch with rows of the next one, where it knows their size.

    Args:
        model: made in the scope of a strategy, or of none.
        data: a data set of any kind.
    """
    if num_replicas(model) == 1 or not isinstance(data, tf.data.Dataset):
        return False
    specs = tf.nest.flatten(data.element_spec)
    shapes = [spec.shape for spec in specs if not isinstance(spec, tf.NoneTensorSpec)]
    return any(not shape.rank or shape[0] is None for shape in shapes)


def number_of_replica() -> Any:
    """The number of the replica that runs this step, 0 where there is one."""
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def is_whole_in_each_process(variable: keras.Variable) -> bool:
    """Whether no process holds only a part of a variable.

    Args:
        variable: of a model or an optimizer.
    """
    return True


def logs_for_keras(logs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The logs of a step in the shape in which Keras takes their mean over workers.

    Keras 3.15 takes it over the first axis of each log, and fails on scalars, which logs are.

    Args:
        logs: scalars.
    """
    if not _has_workers(tf.distribute.get_strategy()):
        return logs
    return {name: tf.reshape(value, (1,)) for name, value in logs.items()}


def num_local_replicas(strategy: tf.distribute.Strategy) -> int:
    """The replicas of this process.

    Args:
        strategy: of a model.
    """
    return len(strategy.extended.worker_devices) if isinstance(strategy, _SUPPORTED) else 1


@contextlib.contextmanager
def scope_of_devices(model: keras.Model) -> Iterator[None]:
    """Within it, variables are made and assigned on every device of `model`.

    Besides, products of float32 matrices are float32, where a GPU would take TF32.

    Args:
        model: made in the scope of a strategy, or of none.
    """
    strategy = model.distribute_strategy
    takes_tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        with strategy.scope() if isinstance(strategy, _SUPPORTED) else contextlib.nullcontext():
            yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(takes_tf32)


def divided(batch: dict[str, Any], num_replicas: int) -> Iterator[dict[str, Any]]:
    """The rows of a batch dealt out to the replicas of this process, padding to who gets none.

    Args:
        batch: structures of NumPy arrays of shape `(batch_size, ...)`, `"mask"` among them.
        num_replicas: how many parts to make.
    """
    if num_replicas == 1:
        yield batch
        return
    for replica in range(num_replicas):

        def hand(array: np.ndarray, replica: int = replica) -> np.ndarray:
            dealt = array[replica::num_replicas]
            return dealt if len(dealt) else np.zeros_like(array[:1])

        yield {name: keras.tree.map_structure(hand, part) for name, part in batch.items()}


def _has_workers(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and bool(
        strategy.cluster_resolver.cluster_spec().jobs
    )
