"""What stands in for a layer's `call`: the same numbers, the same gradients."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_adaclip import backend
from tests.gradients.architectures import stack
from tests.gradients.support import built, plan_for, runner

is_torch = keras.backend.backend() == "torch"
POOLS = (layers.MaxPooling2D, layers.AveragePooling2D)


class OwnPooling(layers.MaxPooling2D):
    def call(self, inputs):
        return super().call(inputs) + 1.0


@pytest.mark.skipif(not is_torch, reason="others have none")
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("size", "strides"), [(2, None), (2, 1), ((3, 2), (1, 2)), (1, 3)])
def test_pooling_gives_the_same(pool, size, strides):
    import torch

    layer = pool(size, strides)
    # Rounded, so that many a maximum is a tie.
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 3)).round().astype("float32")
    weights = np.random.default_rng(1).normal(size=layer(x).shape).astype("float32")

    def outcome(call):
        inputs = torch.tensor(x, requires_grad=True)
        outputs = call(inputs)
        (gradient,) = torch.autograd.grad(torch.sum(outputs * torch.tensor(weights)), inputs)
        return outputs.detach().numpy(), gradient.numpy()

    for found, expected in zip(outcome(backend.quicker_call(layer)), outcome(layer), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "layer",
    [
        layers.MaxPooling2D(padding="same"),
        layers.MaxPooling2D(data_format="channels_first"),
        layers.AveragePooling2D(2, dtype="mixed_bfloat16"),
        layers.MaxPooling1D(),
        OwnPooling(),
        layers.Dense(2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_other_layers_call_themselves(layer):
    assert backend.quicker_call(layer) is None


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
    assert not plan.quicker_calls
    runner(model, plan)(x, y)
    assert [layer.call for layer in (convolution, pooling)] == replaced
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(x)), expected)


@pytest.mark.parametrize("pool", POOLS)
def test_a_step_calls_it_and_leaves_the_layer_as_it_was(pool, monkeypatch):
    model = stack(
        layers.Conv2D(3, 2), pool(2, 1), layers.Flatten(), layers.Dense(2), shape=(5, 4, 2)
    )
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 5, 4, 2)).astype("float32"), rng.normal(size=(3, 2))
    model = built(model, x, y)
    plan = plan_for(model, x, y)
    assert plan.is_layerwise
    assert list(plan.quicker_calls) == ([model.layers[1]] if is_torch else [])
    called = []
    monkeypatch.setattr(type(model.layers[1]), "call", lambda *_: called.append(1))
    if is_torch:
        runner(model, plan)(x, y)
    assert not called
    assert "call" not in vars(model.layers[1])
