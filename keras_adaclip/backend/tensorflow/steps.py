"""Steps, their batches, noise and evaluation on TensorFlow."""

import contextlib
import functools
import logging
import math
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_adaclip.backend import contract
from keras_adaclip.backend.contract import Effects, Function, Tensor, Variables
from keras_adaclip.backend.counter_gaussian import rounded_size, standard_normal
from keras_adaclip.backend.tensorflow import devices


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
    with tf.control_dependencies(tensors):
        return devices.logs_for_keras(step(model, data))


def trace(function: Function) -> None:
    """Override: runs it."""
    function()


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
        """Return the specification of an array whose first axes are open."""
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


def _generator(batches: keras.utils.PyDataset, num_replicas: int, is_endless: bool) -> Function:
    """Return a generator function of the parts of all batches, for one epoch or without end."""
    # TensorFlow never releases the generator function; it must not keep the data with it.
    known = weakref.ref(batches)

    def prepare() -> Iterator[Any]:
        """Yield the parts of the batches while the batches are in use."""
        while (of_epoch := known()) is not None:
            for index in range(of_epoch.num_batches):
                yield from devices.divided(of_epoch[index], num_replicas)
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


@contextlib.contextmanager
def _without_advice_on_tracing() -> Iterator[None]:
    """Silence a warning without a remedy: `vectorized_map` traces again in each eager call."""

    def is_wanted(record: logging.LogRecord) -> bool:
        """Return whether a record is anything but that warning."""
        return "triggered tf.function retracing" not in str(record.msg)

    logger = tf.get_logger()
    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(is_wanted)


def evaluate_each(function: Function, variables: Variables, arguments: Sequence[Any]) -> list[Any]:
    """Override: without advice."""
    with _without_advice_on_tracing():
        return contract.evaluate_each(function, variables, arguments)


class Evaluator(contract.Evaluator):
    """Override: a graph, or eager calls if the model runs eagerly."""

    def _prepared(self, rows: list[Tensor], further: Any) -> Function:
        """Return the function to run, and note the effects of its graph."""
        if self._is_brief:
            return lambda *given: evaluate_each(lambda _: self._function(*given), [], [()])[0]
        is_open = not needs_fixed_shapes(self._model)

        def specified(value: Tensor, is_row: bool) -> tf.TensorSpec:
            """Return the specification of a tensor, with open rows if steps take any number."""
            shape = [None, *value.shape[1:]] if is_row and is_open else value.shape
            return tf.TensorSpec(shape, value.dtype)

        signature = [
            [specified(value, is_row=True) for value in rows],
            keras.tree.map_structure(functools.partial(specified, is_row=False), further),
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
    return Effects(
        writes=any(re.match(r"Assign|Resource(Scatter|Apply)|LookupTableI", k) for k in stateful),
        branches=bool(kinds & {"If", "StatelessIf", "Case", "StatelessCase"}),
    )


def free_memory() -> int:
    """Override: of the machine; TensorFlow does not say how much memory a GPU has."""
    if tf.config.list_logical_devices("GPU"):
        raise ValueError(contract.NO_MEMORY_KNOWN)
    return contract.free_memory()
