"""Reading the optimizer while Keras trains."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka


class ReadClipNorm(keras.callbacks.Callback):
    """Reads the threshold after every batch, by way of the optimizer alone."""

    def __init__(self, optimizer):
        super().__init__()
        self.optimizer = optimizer
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(self.optimizer.clip_norm)


def test_clip_norm_within_an_epoch():
    optimizer = ka.optimizers.DPOptimizer("sgd", clipping="quantile", noise_multiplier=1.0)
    model = ka.PrivateSequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    reader = ReadClipNorm(optimizer)
    arguments = {"batch_size": 25, "verbose": 0, "callbacks": [reader]}
    x, y = np.ones((100, 3)), np.ones((100, 1))
    if keras.backend.backend() == "jax":
        with pytest.raises(RuntimeError, match="jax_state_sync"):
            model.fit(x, y, **arguments)
    else:
        model.fit(x, y, **arguments)
        assert len(set(reader.values)) == 4
    assert optimizer.clip_norm > 0.0


@pytest.mark.parametrize("groups", ["flat", "per_layer"])
def test_clip_norm_before_the_first_step(groups):
    strategy = ka.clipping.QuantileClipping(initial_clip_norm=0.5, groups=groups)
    optimizer = ka.optimizers.DPOptimizer("sgd", clipping=strategy, noise_multiplier=1.0)
    if groups != "flat":
        with pytest.raises(RuntimeError, match="Compile a model that is built"):
            _ = optimizer.clip_norm
    layers = [keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)]
    model = ka.PrivateSequential(layers)
    model.compile(optimizer, "mse")
    before = np.array(optimizer.clip_norm)
    assert before.shape == (() if groups == "flat" else (2,))
    optimizer.build(model.trainable_variables)
    np.testing.assert_array_equal(optimizer.clip_norm, before)


def test_a_ledger_that_was_overwritten_is_said_to_be():
    optimizer = ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0)
    model = ka.PrivateSequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=0)
    for variable in optimizer.variables:
        variable.assign(np.zeros(variable.shape))
    with pytest.raises(RuntimeError, match="something outside of this package has assigned"):
        model.privacy_spent(1e-3)
