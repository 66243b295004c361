"""The tempered sigmoid: its formula, its place in a saved model, and its layer-wise gradients."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from keras_adaclip.activations import TemperedSigmoid

X = np.linspace(-6.0, 6.0, 101).astype("float32")


@pytest.mark.parametrize("arguments", [(), (1.58, 3.0, 0.71), (0.5, 4, -2)])
def test_the_tempered_sigmoid_follows_its_formula(arguments):
    """By default it is the hyperbolic tangent."""
    scale, inverse_temperature, offset = arguments or (2.0, 2.0, 1.0)
    x = X.astype("float64")
    expected = scale / (1.0 + np.exp(-inverse_temperature * x)) - offset
    found = ops.convert_to_numpy(TemperedSigmoid(*arguments)(ops.convert_to_tensor(X)))
    np.testing.assert_allclose(found, expected, atol=2e-6)
    half = TemperedSigmoid(*arguments)(ops.ones((2, 3, 4), dtype="bfloat16"))
    assert keras.backend.standardize_dtype(half.dtype) == "bfloat16"


def test_private_models_train_layer_by_layer_and_are_saved_with_it(tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(16, 6)).astype("float32"), generator.integers(0, 3, 16)
    activation = TemperedSigmoid(1.5, 3.0, 0.5)
    layers = [keras.layers.Dense(4, activation=activation), keras.layers.Activation(activation)]
    model = ka.PrivateSequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])
    optimizer = ka.optimizers.DPOptimizer("sgd", clipping=1.0, noise_multiplier=1.0)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=8, verbose=0)
    assert model.gradient_plan.is_layerwise
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    config = {"scale": 1.5, "inverse_temperature": 3.0, "offset": 0.5}
    assert loaded.layers[0].activation.get_config() == activation.get_config() == config
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
