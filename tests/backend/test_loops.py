"""Loops, maps over rows, gradients and evaluation on each backend."""

from contextlib import nullcontext

import keras
import numpy as np
import pytest
from keras import ops

from keras_adaclip import backend
from tests.gradients.support import compiled


def to_numpy(values):
    return [ops.convert_to_numpy(value) for value in values]


@pytest.mark.parametrize("mode", [lambda function: function, compiled], ids=["eager", "compiled"])
@pytest.mark.parametrize("num_chunks", [0, 1, 5])
def test_a_loop_threads_carry_and_variables(mode, num_chunks):
    counter = keras.Variable(np.float32(10.0), name="counter")
    factor = keras.Variable(np.float32(2.0), name="factor")

    def run(count):
        def body(index, carry):
            total, rows = carry
            counter.assign(counter + 1.0)
            index = ops.cast(index, "int32")
            rows = ops.slice_update(rows, [index], ops.reshape(ops.cast(index, "float32"), (1,)))
            return [total + factor * counter, rows]

        # Trainers on JAX hold variables in a scope, those on TensorFlow assign to them.
        is_jax = keras.backend.backend() == "jax"
        mapping = [(variable, variable.value) for variable in (counter, factor)]
        with keras.StatelessScope(mapping) if is_jax else nullcontext():
            carry = [ops.zeros(()), ops.full((5,), -1.0)]
            carry = backend.loop_over_chunks(body, carry, count, [counter], [factor])
            return [*carry, counter + 0.0]

    total, rows, last = to_numpy(mode(run)(ops.convert_to_tensor(np.int32(num_chunks))))
    assert last == 10.0 + num_chunks
    assert total == 2.0 * sum(11.0 + index for index in range(num_chunks))
    expected = [float(index) if index < num_chunks else -1.0 for index in range(5)]
    np.testing.assert_array_equal(rows, expected)


def test_losses_of_rows_and_their_gradients_are_those_of_each_row_alone():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(5, 3)).astype("float32"), rng.integers(0, 3, 5)
    weights = np.arange(1.0, 6.0, dtype="float32")
    variable = keras.Variable(x)

    def loss_of_row(values):
        """A loss that picks one number of a row, and a result that nobody differentiates."""
        row, label = values
        return [ops.square(ops.take(row, label)) * ops.sum(row), ops.max(row)]

    def total():
        values = [variable.value, ops.convert_to_tensor(labels)]
        losses, largest = backend.map_examples(loss_of_row, values)
        return ops.sum(ops.multiply(losses, weights)), (losses, largest)

    (losses, largest), (gradient,) = backend.gradients_of(total, [variable], [variable])
    picked, sums = x[np.arange(5), labels], x.sum(axis=1)
    np.testing.assert_allclose(ops.convert_to_numpy(losses), picked**2 * sums, rtol=1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(largest), x.max(axis=1), rtol=1e-6)
    expected = np.repeat((picked**2)[:, None], 3, axis=1)
    expected[np.arange(5), labels] += 2 * picked * sums
    np.testing.assert_allclose(
        ops.convert_to_numpy(gradient), weights[:, None] * expected, rtol=1e-4, atol=1e-6
    )


def test_rows_that_cannot_be_vectorized_are_mapped_one_by_one():
    def by_value(row):
        (value,) = row
        return [ops.cond(ops.all(value > 0), lambda: ops.sum(value), lambda: ops.max(value) * 0.0)]

    values = ops.convert_to_tensor([[1.0, 2.0], [-1.0, 5.0], [3.0, 4.0]])
    (found,) = to_numpy(backend.map_examples(by_value, [values]))
    np.testing.assert_array_equal(found, [3.0, 0.0, 7.0])


def test_gradients_at_taps_are_those_of_the_summed_loss():
    def function(tap):
        first = tap(ops.convert_to_tensor([[1.0, 2.0], [3.0, 4.0]]))
        second = tap(first * 3.0)
        unused = tap(ops.ones((2,)))
        return ops.sum(second * second) + ops.sum(first), [second, unused]

    (second, _), gradients = backend.differentiate_at_taps(function, [])
    np.testing.assert_array_equal(ops.convert_to_numpy(second), [[3.0, 6.0], [9.0, 12.0]])
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    expected = [1.0 + 18.0 * values, 6.0 * values, np.zeros(2)]
    for found, each in zip(to_numpy(gradients), expected, strict=True):
        np.testing.assert_allclose(found, each)


def test_gradients_by_variables_are_zero_where_unused():
    used = keras.Variable(np.array([1.0, 2.0], np.float32))
    unused = keras.Variable(np.ones((2, 2), np.float32))
    further, gradients = backend.gradients_of(
        lambda: (ops.sum(used * used), ops.sum(used)), [used, unused], []
    )
    assert ops.convert_to_numpy(further) == 3.0
    for found, each in zip(to_numpy(gradients), ([2.0, 4.0], np.zeros((2, 2))), strict=True):
        np.testing.assert_allclose(found, each)
    # A loss that depends on no variable at all.
    _, gradients = backend.gradients_of(lambda: (ops.sum(ops.ones((2,))), ()), [used], [])
    np.testing.assert_array_equal(to_numpy(gradients)[0], np.zeros(2))


def test_evaluate_drops_updates_and_returns_numpy():
    variable = keras.Variable(np.float32(1.0))

    def function(_):
        variable.assign(variable + 1.0)
        return {"value": variable * 2.0}

    (found,) = backend.evaluate_each(function, [variable], [()])
    assert isinstance(found["value"], np.ndarray | np.float32)
    assert float(found["value"]) == 4.0
    assert ops.convert_to_numpy(variable.value) == 1.0


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's advice")
def test_evaluate_gives_no_advice_on_tracing(caplog):
    import tensorflow as tf

    def function(_):
        tf.get_logger().warning("5 calls to %s triggered tf.function retracing.", "f")
        tf.get_logger().warning("something else")
        return tf.constant(1.0)

    with caplog.at_level("WARNING", tf.get_logger().name):
        tf.get_logger().addHandler(caplog.handler)
        try:
            backend.evaluate_each(function, [], [()])
        finally:
            tf.get_logger().removeHandler(caplog.handler)
    assert {record.getMessage() for record in caplog.records} == {"something else"}
