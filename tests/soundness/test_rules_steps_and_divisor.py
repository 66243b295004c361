"""Rules 3 to 5: what a step is, what it is divided by, and that an empty one is a step."""

import keras
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

MODES_AND_MICROBATCHES = [*((mode, None) for mode in MODES), *((mode, 2) for mode in COMPILED)]


def counted(model):
    """Steps by `iterations` and by the ledger."""
    return int(model.optimizer.iterations), model.optimizer.ledger.steps


# Rule 3


@pytest.mark.parametrize(("mode", "microbatch_size"), MODES_AND_MICROBATCHES)
def test_iterations_and_ledger_count_the_same_steps(mode, microbatch_size):
    model = line_model(dp_sgd(microbatch_size=microbatch_size), **MODES[mode])
    x, y = line_data([1.0] * 20)
    model.fit(x, y, batch_size=5, epochs=2, verbose=0)
    assert counted(model) == (8, 8)
    model.fit(x, y, batch_size=5, epochs=3, steps_per_epoch=2, verbose=0)
    assert counted(model) == (14, 14)
    assert [row.releases for row in model.optimizer.ledger] == [14]


@pytest.mark.parametrize("mode", COMPILED)
def test_shuffled_passes_and_single_batches_are_counted(mode):
    model = line_model(dp_sgd(), **COMPILED[mode])
    x, y = line_data([1.0] * 16)
    model.fit(x, y, batch_size=4, epochs=3, sampling="shuffle", verbose=0)
    assert counted(model) == (12, 12)
    model.train_on_batch(x[:4], y[:4])
    model.train_on_batch(x[:4], y[:4])
    assert counted(model) == (14, 14)
    rows = {row.sampling.label: (row.steps, row.releases) for row in model.optimizer.ledger}
    assert rows == {"shuffle": (12, 3), "stream": (2, 2)}


# Rule 4

EXPECTED_BATCH_SIZE = 4


@pytest.mark.parametrize(("mode", "microbatch_size"), MODES_AND_MICROBATCHES)
def test_a_poisson_step_divides_by_the_expected_batch_size(mode, microbatch_size, monkeypatch):
    sizes = [1, 7, 0, 4, 10, 2]
    fix_draws(monkeypatch, [range(size) for size in sizes])
    optimizer = dp_sgd(100.0, 0.0, microbatch_size=microbatch_size)
    model = line_model(optimizer, **MODES[mode])
    per_epoch = MODES[mode].get("steps_per_execution", 1)
    recorder = recorded_fit(
        model, *line_data([1.0] * 10), EXPECTED_BATCH_SIZE, len(sizes) // per_epoch, per_epoch
    )
    drawn = np.sum(np.reshape(sizes, (-1, per_epoch)), axis=1)
    updates = recorder.updates[:, 0]
    expected = rolled_to(drawn / EXPECTED_BATCH_SIZE, updates[0])
    np.testing.assert_allclose(updates, expected, rtol=1e-6)


@pytest.mark.parametrize("microbatch_size", [None, 3])
@pytest.mark.parametrize("mode", COMPILED)
def test_the_last_partial_batch_is_divided_by_the_full_size_too(mode, microbatch_size):
    optimizer = dp_sgd(100.0, 0.0, microbatch_size=microbatch_size)
    model = line_model(optimizer, **COMPILED[mode])
    x, y = line_data([1.0] * 10)
    model.fit(x, y, batch_size=4, epochs=1, sampling="shuffle", verbose=0)
    np.testing.assert_allclose(flat_weights(model), [10 / 4], rtol=1e-6)


class Batches(keras.utils.PyDataset):
    """Batches of given sizes, all inputs 1."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        return line_data([1.0] * self.sizes[index])


def test_foreign_batches_are_divided_by_the_size_of_the_first():
    model = line_model(dp_sgd(100.0, 0.0))
    model.fit(Batches([4, 4, 1]), epochs=1, shuffle=False, verbose=0, num_examples=9)
    np.testing.assert_allclose(flat_weights(model), [9 / 4], rtol=1e-6)


# Rule 5


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


def test_small_poisson_batches_come_out_empty_now_and_then(monkeypatch):
    """With one expected example of 50, a draw is empty with probability 0.36."""
    dataset = ka.sampling.PoissonDataset(*line_data([1.0] * 50), expected_batch_size=1, seed=0)
    sizes, draw = [], dataset.draw

    def watched():
        rows = draw()
        sizes.append(len(rows))
        return rows

    monkeypatch.setattr(dataset, "draw", watched)
    model = line_model(dp_sgd())
    model.fit(dataset, epochs=1, steps_per_epoch=30, verbose=0)
    assert 0 in sizes
    assert counted(model) == (30, 30)
    assert np.isfinite(flat_weights(model)).all()
