"""A private step over chunks: the same sums for every chunk size, and one trace for all batches."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from keras_adaclip.gradients import Batch
from keras_adaclip.models import private_training
from tests import oracles
from tests.gradients.support import numpy, row_gradients, tensors

CLIP_NORM = 0.7
ROWS = 7


def private_model(microbatch_size=None, **arguments):
    keras.utils.set_random_seed(3)
    stack = [layers.Dense(5, activation="tanh"), layers.Dense(2)]
    model = ka.PrivateSequential([keras.Input((3,)), *stack])
    optimizer = ka.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0),
        clipping=CLIP_NORM,
        noise_multiplier=0.0,
        microbatch_size=microbatch_size,
    )
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"], **arguments)
    return model


def data(rows=ROWS):
    rng = np.random.default_rng(0)
    return (
        rng.normal(size=(rows, 3)).astype("float32"),
        rng.normal(size=(rows, 2)).astype("float32"),
    )


@pytest.mark.parametrize("microbatch_size", [None, 1, 3, 10])
def test_any_microbatch_size_makes_the_same_step(microbatch_size):
    x, y = data()
    model = private_model(microbatch_size)
    before = model.get_weights()
    expected = oracles.clipped_sums(row_gradients(model, x, y), CLIP_NORM)
    predicted = model.predict(x, verbose=0)
    logs = model.train_on_batch(x, y, return_dict=True)
    for old, new, total in zip(before, model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(old - new, total / ROWS, rtol=1e-4, atol=1e-6)
    assert float(logs["loss"]) == pytest.approx(np.mean((predicted - y) ** 2), rel=1e-5)
    assert float(logs["mae"]) == pytest.approx(np.mean(np.abs(predicted - y)), rel=1e-5)


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch traces nothing")
def test_no_batch_size_makes_the_step_trace_again(monkeypatch):
    calls, traced = [], []

    def counted(model, batch):
        calls.append(None)
        return private_training.step_of_this_test(model, batch)

    monkeypatch.setattr(
        private_training, "step_of_this_test", private_training.private_step, raising=False
    )
    monkeypatch.setattr(private_training, "private_step", counted)
    x, y = data(200)
    model = private_model()
    sizes = set()
    dataset = ka.sampling.PoissonDataset(x, y, expected_batch_size=20, seed=1)
    draw = dataset.draw

    def recorded_draw():
        rows = draw()
        sizes.add(len(rows))
        return rows

    monkeypatch.setattr(dataset, "draw", recorded_draw)
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: traced.append(len(calls))
    )
    model.fit(dataset, epochs=4, verbose=0, callbacks=[record])
    assert len(sizes) > 5
    assert traced[0] >= 1
    assert len(set(traced)) == 1, traced


def test_rows_are_padded_up_to_a_multiple_and_cut_out_again():
    x, y = data(5)
    batch = Batch(*tensors([x, {"y": y}, None]))
    padded = batch.padded_to_multiple(4)
    assert padded.num_rows == 8
    np.testing.assert_array_equal(numpy(padded.mask), np.arange(8) < 5)
    np.testing.assert_array_equal(numpy(padded.y["y"])[5:], np.zeros((3, 2)))
    chunk = padded.rows(4, 4)
    np.testing.assert_array_equal(numpy(chunk.x)[0], x[4])
    np.testing.assert_array_equal(numpy(chunk.mask), [True, False, False, False])
    assert chunk.sample_weight is None
    same = batch.padded_to_multiple(5)
    np.testing.assert_array_equal(numpy(same.x), x)
    np.testing.assert_array_equal(numpy(same.mask), [True] * 5)
