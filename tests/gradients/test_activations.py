"""What is counted of a forward pass."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_adaclip import backend
from keras_adaclip.gradients.activations import counted_outputs

INNER = keras.Sequential([keras.Input((4, 3)), layers.Dense(2), layers.Flatten()])
CASES = {
    "dense": ((3,), [layers.Dense(4), layers.ReLU(), layers.Dense(2)], 4 + 4 + 2),
    "frozen": ((3,), [layers.Dense(4, trainable=False), layers.Dense(2)], 4 + 2),
    # Only the layers inside of a nested model, and only the whole of a loop.
    "nested": ((4, 3), [INNER, layers.Dense(5)], 8 + 8 + 5),
    "recurrent": ((4, 3), [layers.LSTM(5, return_sequences=True), layers.Flatten()], 20 + 20),
    "in time": ((4, 3), [layers.TimeDistributed(layers.Dense(5))], 20),
}


@pytest.mark.parametrize("case", CASES)
def test_the_outputs_of_innermost_layers_are_counted(case):
    shape, stack, expected = CASES[case]
    model = keras.Sequential([keras.Input(shape), *stack])
    x = np.ones((2, *shape), "float32")

    def calls():
        with counted_outputs(model) as sizes:
            model(x)
        assert sum(sizes) == 2 * expected
        return sizes

    backend.trace(calls)
    assert sum(calls()) == 2 * expected
    for layer in model._flatten_layers():
        assert "call" not in vars(layer)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only there are some unknown")
def test_unknown_lengths_count_as_one():
    import tensorflow as tf

    model = keras.Sequential([keras.Input((None, 3)), layers.Dense(4)])
    sizes = []

    @tf.function(input_signature=[tf.TensorSpec((None, None, 3))])
    def calls(x):
        with counted_outputs(model) as counted:
            model(x)
        sizes.extend(counted)

    calls(np.ones((2, 5, 3), "float32"))
    assert sizes == [4]
