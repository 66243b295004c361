"""What stands in for a convolution inside of a loop: the same numbers, the same gradients."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_adaclip import backend

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="others have none")


class OwnConvolution(layers.Conv2D):
    def call(self, inputs):
        return 2.0 * super().call(inputs)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"padding": "same", "activation": "tanh"},
        {"padding": "same", "strides": 3, "use_bias": False},
        {"padding": "same", "dilation_rate": 2},
        {"strides": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("kind", "size", "shape"),
    [
        (layers.Conv1D, 4, (2, 9, 4)),
        (layers.Conv2D, (2, 3), (2, 7, 6, 4)),
        (layers.Conv2D, 3, (0, 7, 6, 4)),
    ],
    ids=str,
)
def test_convolutions_give_the_same(kind, size, shape, arguments):
    import jax

    layer = kind(5, size, bias_initializer="random_normal", **arguments)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    weights = np.random.default_rng(1).normal(size=layer(x).shape).astype("float32")

    def outcome(call):
        def inner_product(x, kernel):
            with keras.StatelessScope([(layer._kernel, kernel)]):
                return (call(x) * weights).sum()

        return [call(x), *jax.grad(inner_product, (0, 1))(x, layer.kernel.value)]

    found, expected = outcome(backend.fast_call_in_loop(layer)), outcome(layer)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        layers.Conv2D(3, 2, data_format="channels_first"),
        layers.Conv2D(4, 2, groups=2),
        layers.Conv1D(4, 2, padding="causal"),
        layers.Conv2D(3, 2, dtype="mixed_bfloat16"),
        layers.Conv2DTranspose(3, 2),
        layers.Dense(3),
        OwnConvolution(3, 2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_other_layers_call_themselves(layer):
    assert backend.fast_call_in_loop(layer) is None


def test_outside_of_loops_convolutions_are_xlas_own():
    assert backend.fast_call(layers.Conv2D(3, 2)) is None
