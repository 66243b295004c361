"""Gradients and loops on TensorFlow."""

from typing import Any

import keras
import tensorflow as tf

from keras_adaclip.backend import contract
from keras_adaclip.backend.contract import Function, ResultAndGradients, Tensor, Tensors, Variables
from keras_adaclip.backend.tensorflow_steps import computes_on_cpu

_FEW_ROWS = 32


def differentiate_at_taps(function: Function, variables: Variables) -> ResultAndGradients:
    """Override: watches a copy of each tapped tensor with a gradient tape."""
    taps: list[Tensor] = []
    with tf.GradientTape(watch_accessed_variables=False) as tape:

        def tap(value: Tensor) -> Tensor:
            """Return a watched copy of a tensor."""
            # A new tensor: one that Keras's softmax made carries its logits along, and a loss
            # that starts from them would bypass the tap.
            value = tf.identity(value)
            tape.watch(value)
            taps.append(value)
            return value

        loss, further = function(tap)
    return further, _gradients(tape, loss, taps)


def least_batch_size() -> int:
    """Override: two.

    In a batch of one, TensorFlow 2.21 corrupts memory on a CPU if the batch is multiplied by a
    shared matrix (github.com/tensorflow/tensorflow/issues/117700).
    """
    return 2


def _gradients(tape: Any, target: Tensor, by: list[Tensor]) -> list[Tensor]:
    """Return the gradients that a tape recorded, dense, and zeros if unconnected."""
    gradients = tape.gradient(target, by, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def map_examples(function: Function, values: list[Tensor]) -> list[Tensor]:
    """Override: takes the gradients inside of the map.

    Taken outside, XLA would treat the rows as constants and compile again for every batch. A few
    rows outside of a graph, such as those of a plan's proof, are taken one by one: an eager map
    traces its function in each call, which takes as long as a hundred rows.
    """
    if tf.executing_eagerly() and len(values[0]) <= _FEW_ROWS:
        alone = [function(list(row)) for row in zip(*map(tf.unstack, values), strict=True)]
        return [tf.stack(parts) for parts in zip(*alone, strict=True)]
    numbers = [number for number, value in enumerate(values) if value.dtype.is_floating]

    def one_example(row: Tensors) -> list[Tensor]:
        """Return the outputs for one row, and the gradients of the first by the row."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            by = [row[number] for number in numbers]
            for value in by:
                tape.watch(value)
            outputs = list(function(list(row)))
        return [*outputs, *_gradients(tape, outputs[0], by)]

    try:
        found = list(tf.vectorized_map(one_example, values))
    except (AttributeError, TypeError, ValueError, tf.errors.OpError):
        # Not every loop inside a loss can be vectorized; that of CTC cannot.
        found = list(keras.ops.map(one_example, values))
    losses, *increments = map(tf.stop_gradient, found[: len(found) - len(numbers)])
    for number, gradient in zip(numbers, found[len(found) - len(numbers) :], strict=True):
        # Add zero, whose derivative by the row is the gradient. (TensorFlow would keep the graph
        # around a `tf.custom_gradient` for as long as the process runs.)
        value = tf.where(tf.math.is_finite(values[number]), values[number], 0.0)
        zero = value - tf.stop_gradient(value)
        zero = tf.math.multiply_no_nan(tf.stop_gradient(gradient), zero)
        zero = tf.reduce_sum(zero, list(range(1, len(zero.shape))))
        losses += tf.cast(zero, losses.dtype)
    return [losses, *increments]


def map_units(function: Function, values: list[Tensor], may_loop: bool = True) -> list[Tensor]:
    """Override: `tf.vectorized_map`."""
    return list(tf.vectorized_map(function, values))


def loop_over_chunks(
    body: Function, carry: list[Tensor], num_chunks: Any, variables: Variables, constants: Variables
) -> list[Tensor]:
    """Override: one `tf.while_loop`, in which one iteration runs at a time."""
    num_chunks = tf.cast(num_chunks, tf.int32)
    _, *carry = tf.while_loop(
        lambda index, *_: index < num_chunks,
        lambda index, *values: [index + 1, *body(index, list(values))],
        [tf.constant(0, tf.int32), *carry],
        parallel_iterations=1,
    )
    return list(carry)


def after(value: Tensor, other: Tensor) -> Tensor:
    """Override: a control dependency."""
    with tf.control_dependencies([other]):
        return tf.identity(value)


def masked(kept: Tensor, values: Tensor) -> Tensor:
    """Override: on a CPU, copies nothing if all rows are kept, as in nearly every step.

    In milliseconds of one core, with copies in parentheses: a step of the speed benchmark's row
    `mlp` takes 107 (118), one of `cnn-256` 29 (31), one of `lstm` 56 (58).
    """
    if not computes_on_cpu():
        return contract.masked(kept, values)
    return tf.cond(tf.reduce_all(kept), lambda: values, lambda: contract.masked(kept, values))
