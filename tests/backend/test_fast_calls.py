"""Faster calls of layers give the same numbers and the same gradients."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_adaclip import backend
from tests.gradients.architectures import stack
from tests.gradients.configurations import StandardizedConv2D
from tests.gradients.support import built, plan_for, runner, with_other_weights

is_torch = keras.backend.backend() == "torch"
# Where they are fast: on PyTorch everywhere, on JAX in loops.
is_jax = keras.backend.backend() == "jax"


class OwnPooling(layers.MaxPooling2D):
    def call(self, inputs):
        return super().call(inputs) + 1.0


def images(shape, seed=0):
    # Rounded, so that many a maximum is a tie.
    return np.random.default_rng(seed).normal(1.0, 2.0, shape).round(1).astype("float32")


def outcome(layer, call, x, weights):
    """The outputs, and the gradients of their weighted sum by the inputs and by the weights."""
    by = [keras.Variable(x), *layer.trainable_variables]

    def weighted():
        outputs = call(keras.ops.convert_to_tensor(by[0]))
        return keras.ops.sum(keras.ops.multiply(outputs, weights)), outputs

    outputs, gradients = backend.gradients_of(weighted, by, [])
    return [keras.ops.convert_to_numpy(each) for each in (outputs, *gradients)]


SAME = {"padding": "same"}
if is_jax:
    FAST = [
        (lambda: layers.Conv2D(6, (1, 3)), (2, 7, 6, 4)),
        (lambda: layers.Conv2D(6, 3, activation="tanh", **SAME), (0, 7, 6, 4)),
        (lambda: layers.Conv2D(6, 3, activation="tanh", **SAME), (2, 7, 6, 4)),
        (lambda: layers.Conv2D(6, (1, 3), dilation_rate=2, use_bias=False, **SAME), (2, 7, 6, 4)),
        (lambda: layers.Conv2D(6, 3, strides=3, **SAME), (2, 7, 6, 4)),
        (lambda: layers.Conv1D(6, 4), (2, 9, 4)),
        (lambda: layers.Conv1D(6, 4, dilation_rate=2, **SAME), (2, 9, 4)),
        (lambda: layers.Conv1D(6, 4, strides=3, **SAME), (2, 9, 4)),
    ]
else:
    FAST = [
        (lambda: layers.Conv2D(6, (1, 3)), (2, 7, 6, 4)),
        (lambda: layers.Conv2D(6, 3, activation="tanh", **SAME), (0, 7, 6, 4)),
        (lambda: layers.Conv2D(6, 3, activation="tanh", **SAME), (2, 7, 6, 4)),
        (lambda: layers.Conv2D(6, (1, 3), dilation_rate=2, use_bias=False, **SAME), (2, 7, 6, 4)),
        (lambda: layers.Conv2D(6, 3, strides=3, groups=2), (2, 7, 6, 4)),
        (lambda: layers.MaxPooling2D(2), (2, 6, 7, 8)),
        (lambda: layers.MaxPooling2D((3, 2), (1, 2)), (2, 6, 7, 8)),
        (lambda: layers.AveragePooling2D((3, 2), (1, 2)), (2, 6, 7, 8)),
        (lambda: layers.GroupNormalization(2), (2, 6, 7, 8)),
        (lambda: layers.GroupNormalization(2, scale=False, center=False), (2, 6, 7, 8)),
        (lambda: layers.GroupNormalization(2, axis=1), (2, 6, 7, 8)),
        (lambda: layers.GroupNormalization(2), (3, 4, 8)),
        (lambda: layers.GroupNormalization(2), (0, 2, 2, 4)),
    ]


@pytest.mark.skipif(not is_torch and not is_jax, reason="TensorFlow has none")
@pytest.mark.parametrize(("make", "shape"), FAST)
def test_fast_calls_give_the_outputs_and_gradients_of_the_layers(make, shape):
    layer = make()
    x = images(shape)
    weights = images(layer(x).shape, seed=1)
    with_other_weights(layer)
    call = backend.fast_call(layer, in_loop=is_jax)
    found, expected = (outcome(layer, each, x, weights) for each in (call, layer))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


adapted, changed = layers.Conv2D(3, 2), layers.Conv2D(3, 2)
adapted.build((None, 4, 4, 2))
adapted.enable_lora(1)
changed.convolution_op = lambda inputs, kernel: inputs


@pytest.mark.parametrize(
    "layer",
    [
        layers.MaxPooling2D(padding="same"),
        layers.MaxPooling2D(data_format="channels_first"),
        layers.AveragePooling2D(2, dtype="mixed_bfloat16"),
        OwnPooling(),
        layers.Conv2D(3, 2, data_format="channels_first"),
        layers.Conv2D(3, 2, dtype="mixed_float16"),
        layers.Conv1D(4, 2, padding="causal"),
        StandardizedConv2D(3, 2),
        changed,
        *([adapted, layers.Conv2D(3, 2, strides=2, padding="same")] if is_torch else []),
        *([layers.Conv2D(4, 2, groups=2), layers.MaxPooling2D()] if is_jax else []),
        layers.Dense(2),
    ],
    ids=lambda layer: layer.name,
)
def test_other_layers_have_no_fast_call(layer):
    assert backend.fast_call(layer, in_loop=is_jax) is None


def test_a_step_uses_fast_calls_except_where_the_user_replaced_a_call(monkeypatch):
    made = [layers.Conv2D(3, 2), layers.GroupNormalization(1), layers.MaxPooling2D(2, 1)]
    made += [layers.AveragePooling2D(1), layers.Flatten(), layers.Dense(2)]
    model = stack(*made, shape=(5, 4, 2))
    x, y = images((3, 5, 4, 2)), images((3, 2), seed=1)
    fast, own = model.layers[:3], model.layers[3]
    pooled = own.call
    own.call = replacement = lambda inputs: 2.0 * pooled(inputs)
    expected = keras.ops.convert_to_numpy(model(x))
    model = built(model, x, y)
    plan = plan_for(model, x, y)
    assert plan.is_layerwise
    assert list(plan.fast_calls) == (fast if is_torch else [])
    called = []
    for layer in plan.fast_calls:
        monkeypatch.setattr(type(layer), "call", lambda *_: called.append(1))
    runner(model, plan)(x, y)
    assert not called
    monkeypatch.undo()
    assert own.call is replacement
    assert not any("call" in vars(layer) for layer in fast)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(x)), expected)
