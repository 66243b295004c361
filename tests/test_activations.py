"""The tempered sigmoid: its formula, its place in a saved model, and its layer-wise gradients."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from keras_adaclip.activations import TemperedSigmoid

X = np.linspace(-6.0, 6.0, 101).astype("float32")


@pytest.mark.parametrize("arguments", [(1.58, 3.0, 0.71), (1, 1, 0), (0.5, 4, -2)])
def test_the_formula(arguments):
    scale, inverse_temperature, offset = arguments
    expected = scale / (1.0 + np.exp(-inverse_temperature * X.astype("float64"))) - offset
    found = TemperedSigmoid(*arguments)(ops.convert_to_tensor(X))
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, atol=2e-6)


def test_by_default_it_is_the_hyperbolic_tangent():
    found = TemperedSigmoid()(ops.convert_to_tensor(X))
    np.testing.assert_allclose(ops.convert_to_numpy(found), np.tanh(X), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_shape_and_float_type_are_kept(dtype):
    found = TemperedSigmoid()(ops.ones((2, 3, 4), dtype=dtype))
    assert tuple(found.shape) == (2, 3, 4)
    assert keras.backend.standardize_dtype(found.dtype) == dtype


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scale": 0.0}, ValueError, r"`scale` must be positive\. Received: scale=0\.0"),
        ({"inverse_temperature": -1}, ValueError, "`inverse_temperature` must be positive"),
        ({"offset": float("nan")}, ValueError, "`offset` must be finite"),
        ({"scale": True}, TypeError, "`scale` must be a number"),
    ],
)
def test_arguments_that_make_no_activation(arguments, error, message):
    with pytest.raises(error, match=message):
        TemperedSigmoid(**arguments)


def test_a_private_model_trains_with_it_layer_by_layer_and_is_saved_with_it(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 6, 6, 1)).astype("float32"), rng.integers(0, 3, 16)
    model = ka.PrivateSequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(3, 3, activation=TemperedSigmoid(1.5, 3.0, 0.5)),
            keras.layers.Activation(TemperedSigmoid()),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    optimizer = ka.optimizers.DPOptimizer("sgd", clipping=1.0, noise_multiplier=1.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    model.fit(x, y, batch_size=8, verbose=0)
    assert model.gradient_plan.is_layerwise
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    activation = loaded.layers[0].activation
    assert repr(activation) == "TemperedSigmoid(scale=1.5, inverse_temperature=3.0, offset=0.5)"
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
