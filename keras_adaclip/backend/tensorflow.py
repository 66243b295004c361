"""The TensorFlow side of `keras_adaclip.backend`."""

import contextlib
import functools
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_adaclip.backend import (
    direct_calls,
    tensorflow_devices,
    tensorflow_memory,
    tensorflow_rows,
)
from keras_adaclip.backend.counter_gaussian import num_blocks_for, standard_normal
from keras_adaclip.backend.direct_calls import Effects

Tensor = Any

Recording = direct_calls.Recording
computes_on_cpu = tensorflow_rows.computes_on_cpu
free_memory = tensorflow_memory.free_memory
memory_in_use = tensorflow_memory.memory_in_use
peak_memory = tensorflow_memory.peak_memory
num_batch_shards = tensorflow_devices.num_batch_shards
gathered = tensorflow_devices.gathered
is_whole_in_each_process = tensorflow_devices.is_whole_in_each_process
logs_for_keras = tensorflow_devices.logs_for_keras
may_join_batches = tensorflow_devices.may_join_batches
num_processes = tensorflow_devices.num_processes
num_replicas = tensorflow_devices.num_replicas
process_number = tensorflow_devices.process_number
number_of_replica = tensorflow_devices.number_of_replica
on_all_shards = tensorflow_devices.on_all_shards
fit_arguments = tensorflow_rows.fit_arguments
scope_of_devices = tensorflow_devices.scope_of_devices
unsupported_distribution = tensorflow_devices.unsupported_distribution
sums_of_replicas = tensorflow_devices.sums_of_replicas
applied_as_they_are = tensorflow_devices.applied_as_they_are
take_rows = tensorflow_rows.take_rows
zero_where_not = tensorflow_rows.zero_where_not


def needs_fixed_shapes(model: keras.Model) -> bool:
    """Whether every batch must have one shape: XLA compiles once a shape, a graph does not."""
    return bool(model.jit_compile) and not model.run_eagerly


def slices_any_size(model: keras.Model) -> bool:
    """Whether a chunk of a batch may have a size that is known only when the step runs."""
    return not needs_fixed_shapes(model)


def is_traced(value: Any) -> bool:
    """Whether `value` is a tensor that stands for what compiled code computes."""
    return bool(tf.is_tensor(value) and tf.is_symbolic_tensor(value))


def loops_in_python() -> bool:
    """Whether a loop over time steps runs in Python, unrolled or not."""
    return False


def trains_faster_side_by_side(num_parameters: int) -> bool:
    """Whether clients with dense layers train faster side by side than one after another.

    Args:
        num_parameters: of the model.
    """
    return num_parameters <= 1 << 17


def compiled_for_cpu() -> contextlib.AbstractContextManager[None]:
    """Within it, Keras's trainer prepares its steps to be compiled as is best on a CPU.

    TensorFlow takes no options of the compiler from a program. Without XLA it frees a tensor as
    soon as it was read for the last time.
    """
    return contextlib.nullcontext()


def unsupported_compilation(model: keras.Model) -> str | None:
    """Says why the way in which `model` is compiled cannot be private; None where it can."""
    return None


def array_of(variable: keras.Variable) -> np.ndarray:
    """The value of a variable, outside of compiled code; of one on several devices the common one.

    Args:
        variable: of a model or an optimizer.
    """
    return np.asarray(tf.convert_to_tensor(variable.value).numpy())


def differentiate_at_taps(
    function: Callable[[Callable[[Tensor], Tensor]], tuple[Tensor, Any]],
    variables: Sequence[keras.Variable],
) -> tuple[Any, list[Tensor]]:
    """Runs `function(tap)` and differentiates its loss by every tensor that passed `tap`.

    Args:
        function: takes `tap`, a function that returns its argument; returns a scalar loss and
            any structure of further tensors.
        variables: the variables whose updates inside `function` must be kept (JAX needs them).

    Returns:
        The further tensors, and one gradient a tap, in the order of the calls of `tap`.
    """
    taps: list[Tensor] = []
    with tf.GradientTape(watch_accessed_variables=False) as tape:

        def tap(value: Tensor) -> Tensor:
            # A new tensor: one that Keras's softmax made carries its logits along, and a loss
            # that starts from them would bypass the tap.
            value = tf.identity(value)
            tape.watch(value)
            taps.append(value)
            return value

        loss, further = function(tap)
    gradients = tape.gradient(loss, taps, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return further, [tf.convert_to_tensor(gradient) for gradient in gradients]


def map_examples(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> list[Tensor]:
    """Applies `function` to the rows of `values` and stacks what it returns.

    Args:
        function: takes and returns lists of tensors without a batch axis. What it returns first is
            a scalar that may be differentiated by `values`; the rest is not.
        values: tensors of shape `(batch_size, ...)`.
    """
    numbers = [number for number, value in enumerate(values) if value.dtype.is_floating]

    def one_example(row: Sequence[Tensor]) -> list[Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            by = [row[number] for number in numbers]
            for value in by:
                tape.watch(value)
            outputs = list(function(list(row)))
        gradients = tape.gradient(
            outputs[0], by, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return [*outputs, *(tf.convert_to_tensor(gradient) for gradient in gradients)]

    # The gradients are taken inside of the map: XLA would take the rows for constants, and compile
    # anew for every batch, where they are taken of the map.
    @tf.custom_gradient
    def mapped(*rows: Tensor) -> tuple[list[Tensor], Callable[..., Any]]:
        try:
            found = list(tf.vectorized_map(one_example, list(rows)))
        except (AttributeError, TypeError, ValueError, tf.errors.OpError):
            # Not every loop inside a loss can be vectorized (that of CTC cannot).
            found = list(keras.ops.map(one_example, list(rows)))
        num_outputs = len(found) - len(numbers)
        gradients = dict(zip(numbers, found[num_outputs:], strict=True))

        def backward(cotangent: Tensor, *_: Tensor, variables: Any = None) -> Any:
            def scaled(gradient: Tensor) -> Tensor:
                shape = [-1] + [1] * (len(gradient.shape) - 1)
                return gradient * tf.reshape(tf.cast(cotangent, gradient.dtype), shape)

            of_rows = [
                scaled(gradients[number]) if number in gradients else None
                for number in range(len(rows))
            ]
            # Variables that the loss reads, such as those of a teacher, are not what is trained.
            return of_rows if variables is None else (of_rows, [None] * len(variables))

        return found[:num_outputs], backward

    return list(mapped(*values))


def after(value: Tensor, other: Tensor) -> Tensor:
    """`value`, to be used only when `other` is there: what follows is not computed early."""
    with tf.control_dependencies([other]):
        return tf.identity(value)


def quicker_call(layer: keras.layers.Layer) -> Callable[[Tensor], Tensor] | None:
    """What gives the same as a layer's `call` in less time; None where that is as good."""
    return None


def quicker_call_in_loop(layer: keras.layers.Layer) -> Callable[[Tensor], Tensor] | None:
    """`quicker_call` for a layer that runs inside of `loop_over_chunks`."""
    return None


def convolution_kernel_gradients(
    inputs: Tensor,
    cotangents: Tensor,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    dilation_rate: Sequence[int],
    pairs: Sequence[tuple[Any, Any]],
    groups: int,
) -> Tensor | None:
    """The gradients of a convolution's kernel by example; None where products are as good.

    Args:
        inputs: tensor of shape `(batch_size, *spatial, channels)`.
        cotangents: tensor of shape `(batch_size, *spatial, filters)`.
        kernel_size: elements of the kernel, one number for each spatial dimension.
        strides: steps between two windows.
        dilation_rate: steps between two elements of the kernel.
        pairs: rows of zeros before and after each spatial dimension of the inputs.
        groups: groups of channels and filters.

    Returns:
        Float32 of shape `(batch_size, filters, channels // groups, *kernel_size)`.
    """
    return None


def outside_random_state() -> bytes:
    """The state of random generators besides Keras's own: it changes when something draws."""
    return b""


def per_example_layer_gradients(
    function: Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]],
    values: Sequence[Tensor],
    arguments: Sequence[Tensor],
    cotangents: Sequence[Tensor],
) -> list[Tensor]:
    """Gradients of `sum(function(values, arguments) * cotangents)` by `values`, example by example.

    Args:
        function: takes the shared `values` and the arguments of one example. It stands beside a
            copy of itself, so that the batch size is 2 and rows of the outputs beyond those of
            `cotangents` do not count: in a batch of one, TensorFlow 2.21 on CPU corrupts its memory
            where such a batch is multiplied by a shared matrix
            (github.com/tensorflow/tensorflow/issues/117700).
        values: tensors shared by all examples.
        arguments: tensors of shape `(batch_size, ...)`.
        cotangents: tensors of shape `(batch_size, ...)`, one for each output of `function`.

    Returns:
        One tensor of shape `(batch_size, *value.shape)` for each of `values`.
    """

    def one_example(slices: tuple[Sequence[Tensor], Sequence[Tensor]]) -> list[Tensor]:
        inputs, cotangent = slices
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            watched = [tf.identity(value) for value in values]
            for value in watched:
                tape.watch(value)
            outputs = function(watched, [tf.stack([value, value]) for value in inputs])
        gradients = tape.gradient(
            list(outputs),
            watched,
            output_gradients=[tf.stack([value, tf.zeros_like(value)]) for value in cotangent],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    gradients = tf.vectorized_map(one_example, (list(arguments), list(cotangents)))
    return list(gradients)


def gradients_of(
    function: Callable[[], tuple[Tensor, Any]],
    by: Sequence[keras.Variable],
    variables: Sequence[keras.Variable],
) -> tuple[Any, list[Tensor]]:
    """Gradients of the scalar loss that `function` returns, by the variables in `by`.

    Args:
        function: takes nothing; returns a scalar loss and any structure of further tensors.
        by: the variables to differentiate by.
        variables: further variables whose updates inside `function` must be kept.

    Returns:
        The further tensors and one dense gradient for each variable (zeros where unconnected).
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        for variable in by:
            tape.watch(variable.value)
        loss, further = function()
    gradients = tape.gradient(
        loss,
        [variable.value for variable in by],
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    return further, [tf.convert_to_tensor(gradient) for gradient in gradients]


def gradients_at(
    function: Callable[[Sequence[Tensor]], tuple[Tensor, Any]], values: Sequence[Tensor]
) -> tuple[list[Tensor], Any]:
    """Gradients of a scalar loss by tensors, also inside of `map_units`.

    Args:
        function: takes the tensors; returns a scalar loss and a list of further tensors.
        values: tensors of a floating type.

    Returns:
        A gradient for each of `values` (zeros where unconnected), and the further tensors.
    """
    values = [tf.identity(value) for value in values]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        for value in values:
            tape.watch(value)
        loss, further = function(values)
    gradients = tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(gradient) for gradient in gradients], further


def map_units(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> list[Tensor]:
    """Applies `function` to every unit at once.

    Args:
        function: takes and returns lists of tensors without the units' axis.
        values: tensors of shape `(num_units, ...)`.

    Returns:
        What it returns, with the units' axis in front.
    """
    return list(tf.vectorized_map(function, values))


def loop_over_chunks(
    body: Callable[[Tensor, list[Tensor]], list[Tensor]],
    carry: list[Tensor],
    num_chunks: Tensor | int,
    variables: Sequence[keras.Variable],
    constants: Sequence[keras.Variable] = (),
) -> list[Tensor]:
    """Runs `carry = body(index, carry)` for index 0 to `num_chunks` - 1, compiled where possible.

    Args:
        body: may read and assign `variables`.
        carry: tensors of constant shape.
        num_chunks: may be known only when the step runs.
        variables: variables that `body` assigns (JAX threads them through the loop).
        constants: further variables that `body` reads.
    """
    num_chunks = tf.cast(num_chunks, tf.int32)
    _, *carry = tf.while_loop(
        lambda index, *_: index < num_chunks,
        lambda index, *values: [index + 1, *body(index, list(values))],
        [tf.constant(0, tf.int32), *carry],
        parallel_iterations=1,
    )
    return list(carry)


def evaluate(function: Callable[[], Any], variables: Sequence[keras.Variable]) -> Any:
    """Runs `function` outside training, discards its updates, returns NumPy arrays.

    Args:
        function: reads and assigns `variables` only; returns a structure of tensors.
        variables: its variables.
    """
    scope = keras.StatelessScope([(variable, variable.value) for variable in variables])
    with scope, _without_advice_on_tracing():
        result = function()
    return keras.tree.map_structure(lambda value: value.numpy(), result)


@contextlib.contextmanager
def _without_advice_on_tracing() -> Iterator[None]:
    """Outside of a graph `vectorized_map` traces anew in every call, which nobody can change."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return "triggered tf.function retracing" not in str(record.msg)

    logger = tf.get_logger()
    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(is_wanted)


def evaluate_each(
    function: Callable[[Any], Any], variables: Sequence[keras.Variable], arguments: Sequence[Any]
) -> list[Any]:
    """`evaluate` for several arguments of `function`, compiled once where that is dear.

    Args:
        function: takes one of `arguments`; reads and assigns `variables` only.
        variables: its variables.
        arguments: structures of NumPy arrays, all of the same shapes.
    """
    return [evaluate(functools.partial(function, argument), variables) for argument in arguments]


class Evaluator:
    """Runs a function as the steps of a model run: traced once, or eagerly.

    Args:
        function: takes a list of arrays whose first axis is that of the rows, and a structure of
            further arrays; returns a structure of tensors, and has no other effect.
        model: the model; where its steps take batches of any size, so does what is traced.

    Attributes:
        effects: what else the function does, known after its first run.
    """

    def __init__(self, function: Callable[[list[Tensor], Any], Any], model: keras.Model) -> None:
        self.effects = Effects()
        self._function, self._model = function, model
        self._run: Callable[[list[Tensor], Any], Any] | None = None

    def __call__(self, rows: list[Any], further: Any) -> Any:
        """What the function returns, as NumPy arrays."""
        rows, further = keras.tree.map_structure(tf.convert_to_tensor, (rows, further))
        if self._run is None:
            self._run = self._traced(rows, further)
        return keras.tree.map_structure(lambda value: value.numpy(), self._run(rows, further))

    def _traced(self, rows: list[Tensor], further: Any) -> Callable[[list[Tensor], Any], Any]:
        is_open = not needs_fixed_shapes(self._model)

        def specified(value: Tensor, is_row: bool) -> tf.TensorSpec:
            shape = [None, *value.shape[1:]] if is_row and is_open else value.shape
            return tf.TensorSpec(shape, value.dtype)

        signature = [
            [specified(value, is_row=True) for value in rows],
            keras.tree.map_structure(functools.partial(specified, is_row=False), further),
        ]
        traced = tf.function(self._function, input_signature=signature, autograph=False)
        if self._model.run_eagerly:
            # Values of tensors may decide then what runs, which a graph cannot know.
            with contextlib.suppress(Exception):
                self.effects = _effects_of(traced.get_concrete_function().graph)
            return self._function
        self.effects = _effects_of(traced.get_concrete_function().graph)
        return traced


def _effects_of(graph: Any) -> Effects:
    definition = graph.as_graph_def()
    kinds = {node.op for node in definition.node}
    kinds |= {node.op for each in definition.library.function for node in each.node_def}
    stateful = {kind for kind in kinds if not kind.startswith("Stateless")}
    return Effects(
        writes=any(re.match(r"Assign|Resource(Scatter|Apply)|LookupTableI", k) for k in stateful),
        draws=any(re.search(r"^Random|^TruncatedNormal|^Multinomial", k) for k in stateful),
        branches=bool(kinds & {"If", "StatelessIf", "Case", "StatelessCase"}),
    )


def full_precision() -> contextlib.AbstractContextManager[None]:
    """Nothing: compiled code asks when it runs, and `scope_of_devices` has seen to it."""
    return contextlib.nullcontext()


def trace(function: Callable[[], Any]) -> None:
    """Runs `function` for what Python sees of it, such as shapes; results are dropped."""
    function()


@contextlib.contextmanager
def keep_variables(variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Makes sure that an error leaves every variable with a value."""
    yield


def gaussian(shape: Sequence[int], key: Tensor, step: Tensor, stream: int) -> Tensor:
    """Standard normal float32 noise, a function of `(key, step, stream)` alone.

    Args:
        shape: shape of the noise.
        key: int32 tensor of shape (2,), 64 random bits.
        step: integer scalar tensor, below 2^31.
        stream: number of the draw within the step, below 2^32.
    """
    size, stream = math.prod(shape), tf.constant(stream, tf.uint32)
    # Read here: of a variable with a copy on each device a function remembers the first one that it
    # was called with, and another model's noise would follow that one's counter.
    key, step = tf.convert_to_tensor(key), tf.convert_to_tensor(step)
    draw = _fused_normal(num_blocks_for(size), tf.bitcast(key, tf.uint32), step, stream)
    return tf.reshape(draw[:size], tuple(shape))


# Operation by operation it would be a hundred passes over the numbers: XLA makes one of it, also
# inside of a step that it does not compile.
_fused_normal = tf.function(standard_normal, jit_compile=True)


def train_step(
    model: keras.Model, step: Callable[[keras.Model, Any], dict[str, Tensor]], data: Any
) -> dict[str, Tensor]:
    """Runs `step(model, data)` in the form that Keras's trainer for this backend expects.

    Every operation of the step waits for the data: where an iterator has run out, TensorFlow would
    still run those that need none of it, such as the ledger's count.
    """
    tensors = [value for value in keras.tree.flatten(data) if tf.is_tensor(value)]
    with tf.control_dependencies(tensors):
        return logs_for_keras(step(model, data))
