"""Batches of every size: one trace for all of them, padded with rows that do not count."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from keras_adaclip.models import private_training

X, Y = np.split(np.random.default_rng(0).normal(size=(200, 5)).astype("float32"), [3], axis=1)


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch traces nothing")
def test_no_batch_size_makes_the_step_trace_again(monkeypatch):
    calls, traced = [], []
    private_step = private_training.private_step

    def counted(model, batch):
        calls.append(None)
        return private_step(model, batch)

    dataset = ka.sampling.PoissonDataset(X, Y, expected_batch_size=20, seed=1)
    sizes = {len(dataset.draw()) for _ in range(20)}
    monkeypatch.setattr(private_training, "private_step", counted)
    model = ka.PrivateSequential([keras.Input((3,)), layers.Dense(2)])
    model.compile(ka.optimizers.DPOptimizer("sgd", clipping=0.7, noise_multiplier=0.0), "mse")
    callback = keras.callbacks.LambdaCallback
    record = callback(on_epoch_end=lambda epoch, logs: traced.append(len(calls)))
    model.fit(dataset, epochs=4, verbose=0, callbacks=[record])
    assert len(sizes) > 5
    assert traced[0] >= 1
    assert len(set(traced)) == 1, traced
