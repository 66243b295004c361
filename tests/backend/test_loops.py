"""Loops over chunks, maps over rows and masks of rows on each backend."""

import gc
from contextlib import nullcontext

import keras
import numpy as np
import pytest
from keras import ops

from keras_adaclip import backend
from tests.gradients.support import compiled
from tests.models import helpers

IS_TENSORFLOW = keras.backend.backend() == "tensorflow"


def to_numpy(values):
    return [ops.convert_to_numpy(value) for value in values]


@pytest.mark.parametrize("num_chunks", [0, 1, 5])
def test_a_loop_hands_carry_and_variables_on_from_chunk_to_chunk(num_chunks):
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

    total, rows, last = to_numpy(compiled(run)(ops.convert_to_tensor(np.int32(num_chunks))))
    assert last == 10.0 + num_chunks
    assert total == 2.0 * sum(11.0 + index for index in range(num_chunks))
    expected = [float(index) if index < num_chunks else -1.0 for index in range(5)]
    np.testing.assert_array_equal(rows, expected)


def test_rows_that_cannot_be_vectorized_are_mapped_one_by_one():
    def by_value(row):
        (value,) = row
        return [ops.cond(ops.all(value > 0), lambda: ops.sum(value), lambda: ops.max(value) * 0.0)]

    values = ops.convert_to_tensor([[1.0, 2.0], [-1.0, 5.0], [3.0, 4.0]])
    (found,) = to_numpy(backend.map_examples(by_value, [values]))
    np.testing.assert_array_equal(found, [3.0, 0.0, 7.0])


@pytest.mark.parametrize("mode", ["eager", "compiled", *(["XLA"] if IS_TENSORFLOW else [])])
@pytest.mark.parametrize("shape", [(3,), (3, 2, 4)])
def test_rows_that_are_not_kept_are_zero_whatever_they_hold(mode, shape):
    kept = np.array([True, False, True])
    values = np.arange(1.0, 1.0 + np.prod(shape), dtype="float32").reshape(shape)
    expected = np.where(np.reshape(kept, (3, *[1] * (len(shape) - 1))), values, 0.0)
    values[~kept] = np.nan
    function = backend.masked if mode == "eager" else compiled(backend.masked)
    if mode == "XLA":
        import tensorflow as tf

        function = tf.function(backend.masked, jit_compile=True)
    found = function(ops.convert_to_tensor(kept), ops.convert_to_tensor(values))
    np.testing.assert_array_equal(ops.convert_to_numpy(found), expected)


@pytest.mark.skipif(not IS_TENSORFLOW, reason="graphs are TensorFlow's")
def test_the_graph_of_a_model_goes_with_it():
    from tensorflow.python.framework.func_graph import FuncGraph

    model = helpers.compiled(jit_compile=False)
    helpers.quiet_fit(model, helpers.features(), helpers.labels(), batch_size=6)
    del model
    gc.collect()
    graphs = [each.name for each in gc.get_objects() if isinstance(each, FuncGraph)]
    assert not any(name.startswith(("one_step", "cond")) for name in graphs)
