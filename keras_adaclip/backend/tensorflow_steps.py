"""Steps, their batches, noise, evaluation and devices on TensorFlow.

Over several devices (`tf.distribute`) each replica clips and sums its own units, and the sums of
all replicas are added. After that every replica does the same: the noise is a function of a key and
a counter that all share, so there is one noise, and each replica updates its copy of one ledger.
"""

import contextlib
import functools
import logging
import math
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as tensorflow_ops

from keras_adaclip.backend import contract, keras_private
from keras_adaclip.backend.contract import Effects, Function, Tensor, Variables
from keras_adaclip.backend.counter_gaussian import rounded_size, standard_normal

# Jobs of a cluster that train, in the order of their replicas.
_WORKING = ("chief", "worker")
_SUPPORTED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


def needs_fixed_shapes(model: keras.Model) -> bool:
    """Override: XLA compiles once for each shape, a graph does not."""
    return bool(model.jit_compile) and not model.run_eagerly


def is_traced(value: Any) -> bool:
    """Override: a tensor of a graph."""
    return bool(tf.is_tensor(value) and tf.is_symbolic_tensor(value))


def computes_on_cpu() -> bool:
    """Override: there is no GPU."""
    return not tf.config.list_logical_devices("GPU")


def trains_faster_side_by_side(num_parameters: int) -> bool:
    """Override: a small model, whose step is mostly overhead."""
    return num_parameters <= 1 << 17


def train_step(model: keras.Model, step: Function, data: Any) -> dict[str, Tensor]:
    """Override: every operation of the step waits for the data.

    When an iterator has run out, TensorFlow would still run the operations that need no data, such
    as the count of the ledger.
    """
    tensors = [value for value in keras.tree.flatten(data) if tf.is_tensor(value)]
    registered = getattr(tensorflow_ops.gradient_registry, "_registry", {})
    known = set(registered)
    with tf.control_dependencies(tensors):
        logs = logs_for_keras(step(model, data))
    # Custom gradients, such as that of Keras's sum over replicas, would keep the graph for as long
    # as the process runs.
    for name in set(registered) - known:
        if name.startswith("CustomGradient-"):  # Not what a user registers by name.
            registered.pop(name, None)  # Another thread may have removed it.
    return logs


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
    signature = {}
    for name, part in rows.items():
        specified = functools.partial(_specified, num_open=(num_open_axes or {}).get(name, 1))
        signature[name] = keras.tree.map_structure(specified, part)
    strategy = model.distribute_strategy
    num_replicas = num_local_replicas(strategy)
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


def _specified(array: Any, num_open: int = 0) -> tf.TensorSpec:
    """Return the specification of an array or tensor whose first axes are open."""
    shape = [None if axis < num_open else size for axis, size in enumerate(array.shape)]
    return tf.TensorSpec(shape, array.dtype)


def _generator(batches: keras.utils.PyDataset, num_replicas: int, is_endless: bool) -> Function:
    """Return a generator function of the parts of all batches, for one epoch or without end."""
    # TensorFlow never releases the generator function; it must not keep the data with it.
    known = weakref.ref(batches)

    def prepare() -> Iterator[Any]:
        """Yield the parts of the batches while the batches are in use."""
        while (of_epoch := known()) is not None:
            for index in range(of_epoch.num_batches):
                yield from divided(of_epoch[index], num_replicas)
            if not is_endless:
                return

    return prepare


def gaussian(shape: Sequence[int], key: Tensor, step: Tensor, stream: int) -> Tensor:
    """Override: Threefry in counter mode; see `counter_gaussian.py`."""
    size, stream = math.prod(shape), tf.constant(stream, tf.uint32)
    # Variables are read here: a `tf.function` would remember the first mirrored variable that it
    # was called with, and the noise of another model would follow the counter of the first.
    key, step = tf.convert_to_tensor(key), tf.convert_to_tensor(step)
    draw = _fused_normal(rounded_size(size), tf.bitcast(key, tf.uint32), step, stream)
    return tf.reshape(draw if draw.shape == (size,) else draw[:size], tuple(shape))


def seed_of_step(key: Tensor, step: Tensor, stream: int) -> Tensor:
    """Override: Philox, since `stateless_fold_in` would keep 32 bits of the key."""
    key = tf.bitcast(tf.convert_to_tensor(key), tf.uint64)
    counter = tf.stack([tf.cast(stream, tf.uint64), tf.cast(step, tf.uint64)])
    philox = tf.random.Algorithm.PHILOX.value
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=(2,), key=key[None], counter=counter, alg=philox, dtype=tf.int32
    )


# Run one by one, its hundred operations would be a hundred passes over the numbers. XLA fuses them,
# also inside of a step that XLA does not compile.
_fused_normal = tf.function(standard_normal, jit_compile=True, autograph=False)


def array_of(variable: keras.Variable) -> np.ndarray:
    """Override: shares the memory of the value, which Keras would copy twice."""
    value = tf.convert_to_tensor(variable)
    return np.asarray(value if value.shape.rank else value.numpy())


def evaluate_each(function: Function, variables: Variables, arguments: Sequence[Any]) -> list[Any]:
    """Override: silences a warning without a remedy, that `vectorized_map` traces in each call."""
    logger = tf.get_logger()
    logger.addFilter(_is_wanted)
    try:
        return contract.evaluate_each(function, variables, arguments)
    finally:
        logger.removeFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    """Return whether a record is anything but that warning."""
    return "triggered tf.function retracing" not in str(record.msg)


class Evaluator(contract.Evaluator):
    """Override: a graph, or eager calls if the model runs eagerly."""

    def _prepared(self, rows: list[Tensor], further: Any) -> Function:
        """Return the function to run, and note the effects of its graph."""
        if self._is_brief:
            return lambda *given: evaluate_each(lambda _: self._function(*given), [], [()])[0]
        num_open = 0 if needs_fixed_shapes(self._model) else 1
        signature = [
            [_specified(value, num_open) for value in rows],
            keras.tree.map_structure(_specified, further),
        ]
        traced = tf.function(self._function, input_signature=signature, autograph=False)
        # Eagerly, values may decide what runs, which cannot be traced.
        with contextlib.suppress(*([Exception] if self._model.run_eagerly else [])):
            self.effects = _effects_of(traced.get_concrete_function().graph)
        return self._function if self._model.run_eagerly else traced


def _effects_of(graph: Any) -> Effects:
    """Return the side effects of a graph."""
    definition = graph.as_graph_def()
    kinds = {node.op for node in definition.node}
    kinds |= {node.op for each in definition.library.function for node in each.node_def}
    stateful = {kind for kind in kinds if not kind.startswith("Stateless")}
    # Without `stateful=False`, a function of Python may remember what it was given.
    writes = (
        r"Assign|Resource(Scatter|Apply)|LookupTableI|(Eager)?PyFunc$|QueueEnqueue|(\w*Map)?Stage$"
    )
    return Effects(
        writes=any(re.match(writes, kind) for kind in stateful),
        branches=bool(kinds & {"If", "StatelessIf", "Case", "StatelessCase"}),
    )


def free_memory() -> int:
    """Override: of the machine; TensorFlow does not say how much memory a GPU has."""
    if tf.config.list_logical_devices("GPU"):
        raise ValueError(contract.NO_MEMORY_KNOWN)
    return contract.free_memory()


# Devices and processes.


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
