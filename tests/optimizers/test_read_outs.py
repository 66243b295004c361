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
