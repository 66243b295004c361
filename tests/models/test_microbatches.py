"""`microbatch_size="auto"`: what fits the memory limit is found, and changes nothing else."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from keras_adaclip import backend
from keras_adaclip.gradients import Batch, finite_rows, repeated
from keras_adaclip.models import layout

WIDTH = 64


def private(**arguments):
    keras.utils.set_random_seed(2)
    model = ka.PrivateSequential(
        [
            keras.Input((16, WIDTH)),
            layers.Dense(WIDTH, activation="tanh"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    optimizer = ka.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), clipping=0.5, noise_multiplier=0.0, seed=1, **arguments
    )
    model.compile(optimizer=optimizer, loss="mse")
    return model


def train(model, sampling="shuffle"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 16, WIDTH)).astype("float32")
    y = rng.normal(size=(128, 1)).astype("float32")
    model.fit(x, y, batch_size=64, sampling=sampling, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.fixture
def bytes_of_step(monkeypatch):
    """Replaces the measurement by one that says 1,000 bytes a row; the sizes that were tried."""
    tried = []

    def measured(_, batch):
        tried.append(batch.num_rows)
        return 1000 * batch.num_rows

    monkeypatch.setattr(layout, "_peak_bytes", measured)
    monkeypatch.setattr(layout.backend, "memory_in_use", lambda: 0)
    return tried


@pytest.mark.parametrize(
    ("limit", "chunk_size", "sizes"),
    [
        (1_000_000, None, [1, 2, 4, 8, 16, 32, 64]),
        (63_999, 32, [1, 2, 4, 8, 16, 32, 64]),
        (3_000, 2, [1, 2, 4]),
    ],
)
def test_sizes_are_doubled_while_they_fit(bytes_of_step, limit, chunk_size, sizes):
    model = private(microbatch_size="auto", memory_limit=limit)
    weights = train(model)
    assert model.private_state.chunk_size == chunk_size
    assert bytes_of_step == sizes
    for found, expected in zip(weights, train(private()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    # A second run knows.
    train(model)
    assert bytes_of_step == sizes


def test_poisson_draws_count_with_what_they_may_be(bytes_of_step):
    model = private(microbatch_size="auto", memory_limit=10**6)
    train(model, "poisson")
    # 64 + 6 standard deviations of Binomial(128, 1/2).
    assert bytes_of_step[-1] == 98


def test_too_small_a_limit_is_refused_before_training(bytes_of_step):
    model = private(microbatch_size="auto", memory_limit=999)
    with pytest.raises(ValueError, match="Not even one example"):
        train(model)
    assert model.privacy_ledger.steps == 0


def test_the_measurement_grows_with_the_rows():
    """A row has at least its 64 x 64 products, or 16 inputs and cotangents of 64 numbers."""
    model = private()
    train(model)
    rows = Batch(np.ones((3, 16, WIDTH), "float32"), np.ones((3, 1), "float32"))
    before = backend.memory_in_use()
    small, large = (
        layout._peak_bytes(model, repeated(finite_rows(rows), size)) - before for size in (64, 4096)
    )
    a_row = 4 * 16 * WIDTH
    assert large > 4096 * a_row
    assert large - small < 4096 * 40 * a_row


def test_a_real_limit_is_kept():
    model = private(microbatch_size="auto")
    train(model)
    assert model.private_state.chunk_size is None


def test_arguments_are_checked_and_saved():
    make = ka.optimizers.DPOptimizer
    optimizer = make("sgd", noise_multiplier=1.0, microbatch_size="auto", memory_limit=10)
    restored = make.from_config(optimizer.get_config())
    assert (restored.microbatch_size, restored.memory_limit) == ("auto", 10)
    with pytest.raises(ValueError, match="belongs to microbatch_size"):
        make("sgd", noise_multiplier=1.0, memory_limit=10)
    with pytest.raises(TypeError, match="microbatch_size='many'"):
        make("sgd", noise_multiplier=1.0, microbatch_size="many")
    with pytest.raises(ValueError, match="memory_limit=0"):
        make("sgd", noise_multiplier=1.0, microbatch_size="auto", memory_limit=0)
