"""Faster calls of layers give the same numbers and the same gradients."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_adaclip import backend
from tests.gradients.architectures import stack
from tests.gradients.support import built, plan_for, runner

is_torch = keras.backend.backend() == "torch"
is_jax = keras.backend.backend() == "jax"
POOLS = (layers.MaxPooling2D, layers.AveragePooling2D)


class OwnConvolution(layers.Conv2D):
    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel - 1.0)


class OwnPooling(layers.MaxPooling2D):
    def call(self, inputs):
        return super().call(inputs) + 1.0


@pytest.mark.skipif(not is_torch, reason="others have none")
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("size", "strides"), [(2, None), ((3, 2), (1, 2))])
def test_pooling_gives_the_same(pool, size, strides):
    # Rounded, so that many a maximum is a tie.
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 3)).round().astype("float32")
    for found, expected in outcomes(pool(size, strides), x):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(not is_torch, reason="others have none")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"padding": "same", "activation": "tanh"},
        {"padding": "same", "strides": (1, 3), "use_bias": False},
        {"padding": "same", "dilation_rate": (2, 1)},
        {"groups": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [1, (2, 3)])
def test_convolutions_give_the_same(arguments, size):
    layer = layers.Conv2D(6, size, bias_initializer="random_normal", **arguments)
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 4)).astype("float32")
    for found, expected in outcomes(layer, x):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not is_torch, reason="others have none")
@pytest.mark.parametrize("arguments", [{}, {"scale": False}, {"center": False}, {"axis": 1}])
@pytest.mark.parametrize("shape", [(3, 4, 6, 8), (3, 4, 8), (0, 2, 2, 4)])
def test_group_normalization_gives_the_same(arguments, shape):
    layer = layers.GroupNormalization(
        2, gamma_initializer="random_normal", beta_initializer="random_normal", **arguments
    )
    x = np.random.default_rng(0).normal(2.0, 3.0, shape).astype("float32")
    for found, expected in outcomes(layer, x):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not is_torch, reason="others have none")
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda **rest: layers.Dense(3, **rest), (4, 5)),
        (lambda **rest: layers.Dense(3, use_bias=False, **rest), (2, 3, 4)),
        (lambda **rest: layers.EinsumDense("abc,cde->abde", (4, 3, 2), **rest), (2, 4, 5)),
        (
            lambda **rest: layers.EinsumDense("abc,cde->abde", (4, 3, 2), bias_axes="de", **rest),
            (2, 4, 5),
        ),
        (
            lambda **rest: layers.EinsumDense("abc,cde->abde", (4, 3, 2), bias_axes="e", **rest),
            (2, 4, 5),
        ),
        (
            lambda **rest: layers.EinsumDense("abcd,cde->abe", (4, 3), bias_axes="e", **rest),
            (2, 4, 5, 2),
        ),
    ],
)
def test_products_give_the_same(make, shape, activation):
    layer = make(activation=activation)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    layer.build(shape)
    if layer.bias is not None:
        layer.bias.assign(np.random.default_rng(2).normal(size=layer.bias.shape))
    for found, expected in outcomes(layer, x):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "equation", ["abc,cd->adb", "abc,dc->abd", "acb,cd->abd", "abc,bc->abc", "abc,bcd->abd"]
)
def test_an_einsum_that_is_no_plain_product_is_left(equation):
    letters = dict(zip("abcd", (2, 3, 4, 5), strict=True))
    terms = equation.replace("->", ",").split(",")
    layer = layers.EinsumDense(equation, tuple(letters[letter] for letter in terms[2][1:]))
    assert backend.fast_call(layer, in_loop=False) is None


def outcomes(layer, x):
    """Outputs and gradients by the inputs: of what stands in for the layer, and of the layer."""
    import torch

    weights = np.random.default_rng(1).normal(size=layer(x).shape).astype("float32")

    def outcome(call):
        inputs = torch.tensor(x, requires_grad=True)
        outputs = call(inputs)
        (gradient,) = torch.autograd.grad(torch.sum(outputs * torch.tensor(weights)), inputs)
        return outputs.detach().numpy(), gradient.numpy()

    return list(zip(outcome(backend.fast_call(layer, in_loop=False)), outcome(layer), strict=True))


def adapted_convolution():
    layer = layers.Conv2D(3, 2)
    layer.build((None, 4, 4, 2))
    layer.enable_lora(1)
    return layer


def convolution_with_its_own_operation():
    layer = layers.Conv2D(3, 2)
    layer.convolution_op = lambda inputs, kernel: inputs
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        layers.MaxPooling2D(padding="same"),
        layers.MaxPooling2D(data_format="channels_first"),
        layers.AveragePooling2D(2, dtype="mixed_bfloat16"),
        layers.MaxPooling1D(),
        OwnPooling(),
        layers.Conv2D(3, 2, data_format="channels_first"),
        layers.Conv2D(3, 2, dtype="mixed_float16"),
        OwnConvolution(3, 2),
        convolution_with_its_own_operation(),
        adapted_convolution(),
        layers.GroupNormalization(2, dtype="mixed_bfloat16"),
        layers.Dense(2, dtype="mixed_bfloat16"),
        layers.Embedding(3, 2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_other_layers_call_themselves(layer):
    assert backend.fast_call(layer, in_loop=False) is None


def test_a_call_that_the_user_has_replaced_stays():
    model = stack(
        layers.Conv2D(3, 2),
        layers.MaxPooling2D(2, 1),
        layers.Flatten(),
        layers.Dense(2),
        shape=(5, 4, 2),
    )
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 5, 4, 2)).astype("float32"), rng.normal(size=(3, 2))
    convolution, pooling = model.layers[:2]
    pooled, convolved = pooling.call, convolution.call
    pooling.call = lambda inputs: 2.0 * pooled(inputs)
    convolution.call = lambda *args, **kwargs: convolved(*args, **kwargs)
    replaced = [layer.call for layer in (convolution, pooling)]
    expected = keras.ops.convert_to_numpy(model(x))
    model = built(model, x, y)
    plan = plan_for(model, x, y)
    assert plan.is_layerwise
    assert not {convolution, pooling} & set(plan.fast_calls)
    runner(model, plan)(x, y)
    assert [layer.call for layer in (convolution, pooling)] == replaced
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(x)), expected)


@pytest.mark.parametrize("pool", POOLS)
def test_a_step_calls_it_and_leaves_the_layer_as_it_was(pool, monkeypatch):
    model = stack(
        layers.Conv2D(3, 2),
        layers.GroupNormalization(1),
        pool(2, 1),
        layers.Flatten(),
        layers.Dense(2),
        shape=(5, 4, 2),
    )
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 5, 4, 2)).astype("float32"), rng.normal(size=(3, 2))
    model = built(model, x, y)
    plan = plan_for(model, x, y)
    assert plan.is_layerwise
    quicker = [*model.layers[:3], model.layers[4]] if is_torch else []
    assert list(plan.fast_calls) == quicker
    called = []
    for layer in quicker:
        monkeypatch.setattr(type(layer), "call", lambda *_: called.append(1))
    if is_torch:
        runner(model, plan)(x, y)
    assert not called
    assert not any("call" in vars(layer) for layer in model.layers)


class DoubledConvolution(layers.Conv2D):
    def call(self, inputs):
        return 2.0 * super().call(inputs)


@pytest.mark.skipif(not is_jax, reason="the others compute convolutions in loops as outside")
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
def test_convolutions_in_loops_give_the_same(kind, size, shape, arguments):
    import jax

    layer = kind(5, size, bias_initializer="random_normal", **arguments)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    weights = np.random.default_rng(1).normal(size=layer(x).shape).astype("float32")

    def outcome(call):
        def inner_product(x, kernel):
            with keras.StatelessScope([(layer._kernel, kernel)]):
                return (call(x) * weights).sum()

        return [call(x), *jax.grad(inner_product, (0, 1))(x, layer.kernel.value)]

    found, expected = outcome(backend.fast_call(layer, in_loop=True)), outcome(layer)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not is_jax, reason="the others compute convolutions in loops as outside")
@pytest.mark.parametrize(
    "layer",
    [
        layers.Conv2D(3, 2, data_format="channels_first"),
        layers.Conv2D(4, 2, groups=2),
        layers.Conv1D(4, 2, padding="causal"),
        layers.Conv2D(3, 2, dtype="mixed_bfloat16"),
        layers.Conv2DTranspose(3, 2),
        layers.Dense(3),
        DoubledConvolution(3, 2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_other_layers_in_loops_call_themselves(layer):
    assert backend.fast_call(layer, in_loop=True) is None


@pytest.mark.skipif(not is_jax, reason="the others compute convolutions in loops as outside")
def test_outside_of_loops_convolutions_are_xlas_own():
    assert backend.fast_call(layers.Conv2D(3, 2), in_loop=False) is None
