"""Rules 3 to 5: what a step is, what it is divided by, and that an empty one is a step."""

import numpy as np
import pytest

import keras_adaclip as ka
from tests.soundness.setups import (
    COMPILED,
    MODES,
    dp_sgd,
    fix_draws,
    flat_weights,
    line_data,
    line_model,
    pure_noise_data,
    pure_noise_model,
    recorded_fit,
    rolled_to,
    spread,
)

BATCH_SIZE = 4


def counted(model):
    """Steps by `iterations` and by the ledger."""
    return int(model.optimizer.iterations), model.optimizer.ledger.steps


@pytest.mark.parametrize(
    ("mode", "microbatch_size"),
    [*((mode, None) for mode in MODES), *((mode, 2) for mode in COMPILED)],
)
def test_a_poisson_step_divides_by_the_expected_batch_size(mode, microbatch_size, monkeypatch):
    """And each step is counted once, however many of them are executed together."""
    sizes = [1, 7, 0, 4, 10, 2]
    fix_draws(monkeypatch, [range(size) for size in sizes])
    model = line_model(dp_sgd(100.0, 0.0, microbatch_size=microbatch_size), **MODES[mode])
    per_epoch = MODES[mode].get("steps_per_execution", 1)
    num_epochs = len(sizes) // per_epoch
    recorder = recorded_fit(model, *line_data([1.0] * 10), BATCH_SIZE, num_epochs, per_epoch)
    updates = recorder.updates[:, 0]
    drawn = np.sum(np.reshape(sizes, (-1, per_epoch)), axis=1)
    np.testing.assert_allclose(updates, rolled_to(drawn / BATCH_SIZE, updates[0]), rtol=1e-6)
    assert counted(model) == (6, 6)
    assert [row.releases for row in model.optimizer.ledger] == [6]


@pytest.mark.parametrize("microbatch_size", [None, 3])
@pytest.mark.parametrize("mode", COMPILED)
def test_the_last_partial_batch_is_divided_by_the_full_size_too(mode, microbatch_size):
    """And passes over shuffled batches are counted beside single batches."""
    model = line_model(dp_sgd(100.0, 0.0, microbatch_size=microbatch_size), **COMPILED[mode])
    x, y = line_data([1.0] * 10)
    model.fit(x, y, batch_size=4, epochs=2, sampling="shuffle", verbose=0)
    np.testing.assert_allclose(flat_weights(model), [2 * 10 / 4], rtol=1e-6)
    model.train_on_batch(x[:4], y[:4])
    assert counted(model) == (7, 7)
    rows = {row.sampling.label: (row.steps, row.releases) for row in model.optimizer.ledger}
    assert rows == {"shuffle": (6, 2), "stream": (1, 1)}


def test_foreign_batches_are_divided_by_the_size_of_the_first():
    batches = (line_data([1.0] * size) for size in (4, 4, 1))
    model = line_model(dp_sgd(100.0, 0.0))
    model.fit(batches, steps_per_epoch=3, num_examples=9, verbose=0)
    np.testing.assert_allclose(flat_weights(model), [9 / 4], rtol=1e-6)


@pytest.mark.parametrize("clipping", [1.0, "quantile"])
@pytest.mark.parametrize("mode", COMPILED)
def test_an_empty_draw_is_pure_noise_and_is_counted(mode, clipping, monkeypatch):
    fix_draws(monkeypatch, [[]])
    x, y = pure_noise_data(100)
    if clipping == "quantile":
        clipping = ka.clipping.QuantileClipping(initial_clip_norm=1.0, learning_rate=1e-6)
    model = pure_noise_model(dp_sgd(clipping), **COMPILED[mode])
    recorder = recorded_fit(model, x + 1.0, y, 40, 2)
    of_sum, _ = model.optimizer.clipping.noise_split(1.0, 40)
    spread(recorder.updates, of_sum / 40)
    assert counted(model) == (2, 2)
    assert np.isfinite(recorder.history["loss"]).all()
