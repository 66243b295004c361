"""Rules 3 to 8 and 14: what a step adds up, divides by, clips to and counts, and in which order."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests import oracles
from tests.soundness import setups
from tests.soundness.setups import COMPILED, MODES, dp_sgd, fix_draws, line_data, line_model

BATCH_SIZE = 4


def counted(model):
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
    recorder = setups.recorded_fit(model, *line_data([1.0] * 10), BATCH_SIZE, num_epochs, per_epoch)
    updates = recorder.updates[:, 0]
    drawn = np.sum(np.reshape(sizes, (-1, per_epoch)), axis=1)
    np.testing.assert_allclose(updates, setups.rolled_to(drawn / BATCH_SIZE, updates[0]), rtol=1e-6)
    assert counted(model) == (6, 6)
    assert [row.releases for row in model.optimizer.ledger] == [6]


@pytest.mark.parametrize("microbatch_size", [None, 5])
@pytest.mark.parametrize("mode", COMPILED)
def test_a_draw_of_twelve_times_the_expected_size_loses_no_example(
    mode, microbatch_size, monkeypatch
):
    """Far more rows than batches are padded for, in chunks too; the usual draw comes after."""
    x, y = line_data(np.linspace(0.25, 4.0, 200))
    draws = [range(3, 3 + 12 * BATCH_SIZE), range(100, 100 + BATCH_SIZE)]
    fix_draws(monkeypatch, draws)
    model = line_model(dp_sgd(1.0, 0.0, microbatch_size=microbatch_size), **COMPILED[mode])
    updates = setups.recorded_fit(model, x, y, BATCH_SIZE, 2).updates[:, 0]
    sums = np.ravel([oracles.clipped_sums([x[rows]], 1.0) for rows in draws])
    np.testing.assert_allclose(updates, setups.rolled_to(sums / BATCH_SIZE, updates[0]), rtol=1e-5)
    assert counted(model) == (2, 2)


@pytest.mark.parametrize("microbatch_size", [None, 3])
@pytest.mark.parametrize("mode", COMPILED)
def test_the_last_partial_batch_is_divided_by_the_full_size_too(mode, microbatch_size):
    model = line_model(dp_sgd(100.0, 0.0, microbatch_size=microbatch_size), **COMPILED[mode])
    x, y = line_data([1.0] * 10)
    model.fit(x, y, batch_size=4, epochs=2, sampling="shuffle", verbose=0)
    np.testing.assert_allclose(setups.flat_weights(model), [2 * 10 / 4], rtol=1e-6)
    model.train_on_batch(x[:4], y[:4])
    assert counted(model) == (7, 7)
    rows = {row.sampling.label: (row.steps, row.releases) for row in model.optimizer.ledger}
    assert rows == {"shuffle": (6, 2), "stream": (1, 1)}


def test_foreign_batches_are_divided_by_the_size_of_the_first():
    batches = (line_data([1.0] * size) for size in (4, 4, 1))
    model = line_model(dp_sgd(100.0, 0.0))
    model.fit(batches, steps_per_epoch=3, num_examples=9, verbose=0)
    np.testing.assert_allclose(setups.flat_weights(model), [9 / 4], rtol=1e-6)


@pytest.mark.parametrize("clipping", [1.0, "quantile"])
@pytest.mark.parametrize("mode", COMPILED)
def test_an_empty_draw_is_pure_noise_and_is_counted(mode, clipping, monkeypatch):
    fix_draws(monkeypatch, [[]])
    x, y = setups.pure_noise_data(100)
    if clipping == "quantile":
        clipping = ka.clipping.QuantileClipping(initial_clip_norm=1.0, learning_rate=1e-6)
    model = setups.pure_noise_model(dp_sgd(clipping), **COMPILED[mode])
    recorder = setups.recorded_fit(model, x + 1.0, y, 40, 2)
    of_sum, _ = model.optimizer.clipping.noise_split(1.0, 40)
    setups.spread(recorder.updates, of_sum / 40)
    assert counted(model) == (2, 2)
    assert np.isfinite(recorder.history["loss"]).all()


# Rules 6 and 14

VALUES = np.array([5.0, 0.5, 5.0, 0.5, 2.0, 0.25, 3.0, 0.125], np.float32)
WEIGHTS = np.array([0.0, 1.0, 1.0, 3.0, 0.5, 1.0, 0.0, 1.0], np.float32)


@pytest.mark.filterwarnings("ignore:.*whatever the weight of an example:UserWarning")
@pytest.mark.parametrize("microbatch_size", [None, 2])
@pytest.mark.parametrize("mode", COMPILED)
def test_a_weight_of_zero_is_a_unit_for_the_quantile_and_padding_is_not(
    mode, microbatch_size, monkeypatch
):
    draws = [[0, 1, 2], [3], [], [0, 1, 2, 4, 5, 6, 7]]
    fix_draws(monkeypatch, draws)
    clipping = ka.clipping.QuantileClipping(initial_clip_norm=1.0, learning_rate=1e-9)
    model = line_model(dp_sgd(clipping, 0.0, microbatch_size=microbatch_size), **COMPILED[mode])
    x, y = line_data(VALUES)
    recorder = setups.recorded_fit(model, x, y, BATCH_SIZE, len(draws), sample_weight=WEIGHTS)
    weighted = VALUES * WEIGHTS
    bits = [np.sum(np.where(weighted[rows] <= 1.0, 0.5, -0.5)) for rows in draws]
    fractions = np.array(recorder.fractions[1:])
    expected = setups.rolled_to(np.array(bits) / BATCH_SIZE + 0.5, fractions[0])
    np.testing.assert_allclose(fractions, expected, rtol=1e-6)
    sums = [np.sum(np.minimum(weighted, 1.0)[rows]) for rows in draws]
    updates = recorder.updates[:, 0]
    expected = setups.rolled_to(np.array(sums) / BATCH_SIZE, updates[0])
    np.testing.assert_allclose(updates, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("microbatch_size", [None, 2])
@pytest.mark.parametrize("mode", COMPILED)
def test_metrics_and_loss_ignore_padding(mode, microbatch_size, monkeypatch):
    """Weights do not move (learning rate 0), so that NumPy can follow."""
    draws = [[1], [2, 3, 4], [0, 1, 2, 3, 4, 5, 6]]
    fix_draws(monkeypatch, draws)
    rows = np.concatenate(draws)
    model = line_model(
        dp_sgd(learning_rate=0.0, microbatch_size=microbatch_size),
        start=1.0,
        metrics=[keras.metrics.MeanAbsoluteError(name="plain")],
        weighted_metrics=[keras.metrics.MeanAbsoluteError(name="weighted")],
        **COMPILED[mode],
    )
    x, _ = line_data(VALUES)
    errors = np.arange(len(x), dtype=np.float32)
    options = {"steps_per_epoch": len(draws), "sample_weight": WEIGHTS}
    history = setups.recorded_fit(model, x, x + errors[:, None], BATCH_SIZE, **options).history
    expected = {
        "plain": np.mean(errors[rows]),
        "weighted": np.average(errors[rows], weights=WEIGHTS[rows]),
        "loss": np.mean((-VALUES * WEIGHTS)[rows]),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(history[name], value, rtol=1e-5)


@pytest.mark.parametrize("microbatch_size", [None, 4])
@pytest.mark.parametrize("mode", COMPILED)
def test_dropout_masks_differ_between_examples_chunks_and_steps(mode, microbatch_size, monkeypatch):
    """A kept feature adds 2. The number of examples that keep it is Binomial(40, 1/2).

    One mask for all would give 0 or 40, one mask for each place in a chunk of 4 a multiple of 10.
    False alarm: below 1e-6 for the range, below 1e-30 for the multiples.
    """
    fix_draws(monkeypatch, [range(40)])
    optimizer = dp_sgd(1e6, 0.0, microbatch_size=microbatch_size)
    model = line_model(optimizer, 50, [keras.layers.Dropout(0.5)], **COMPILED[mode])
    x, y = line_data(np.ones((40, 50)))
    recorder = setups.recorded_fit(model, x, y, 40, 3)
    kept = recorder.updates * 40 / 2.0
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-3)
    kept = np.round(kept).astype(int)
    assert kept.min() >= 2
    assert kept.max() <= 40 - 2
    assert np.mean(kept % 10 == 0) < 0.6
    assert not np.array_equal(kept[0], kept[1])
    assert not np.array_equal(kept[1], kept[2])


# Rules 7 and 8


def fast_quantile(**options):
    return ka.clipping.QuantileClipping(0.5, 1.0, learning_rate=2.0, **options)


@pytest.mark.parametrize("mode", COMPILED)
def test_the_noise_follows_the_clip_norm_of_the_same_step(mode):
    """The norm falls by a factor of about e a step: taking the next one's would be seen."""
    num_examples, batch_size = 2000, 1000
    model = setups.pure_noise_model(dp_sgd(fast_quantile(count_noise_stddev=5.0)), **COMPILED[mode])
    recorder = setups.recorded_fit(model, *setups.pure_noise_data(num_examples), batch_size, 3)
    of_sum, _ = model.optimizer.clipping.noise_split(1.0, batch_size)
    assert recorder.clip_norms[-1] < 0.2
    for update, clip_norm in zip(recorder.updates, recorder.clip_norms, strict=False):
        setups.spread(update, of_sum * clip_norm / batch_size)


@pytest.mark.parametrize("mode", COMPILED)
@pytest.mark.parametrize(("value", "power"), [(1e6, 1.0), (1e-6, -1.0)])
def test_a_step_clips_with_the_norm_from_before_and_moves_it_last(mode, value, power, monkeypatch):
    """If all units are clipped, a step adds the norm and the norm grows; if none is, it falls."""
    fix_draws(monkeypatch, [range(4)])
    model = line_model(dp_sgd(fast_quantile(), noise_multiplier=0.0), **COMPILED[mode])
    recorder = setups.recorded_fit(model, *line_data([value] * 8), 4, 4)
    norms = np.array(recorder.clip_norms)
    np.testing.assert_allclose(norms, np.exp(power * np.arange(5.0)), rtol=1e-5)
    np.testing.assert_allclose(recorder.updates[:, 0], np.minimum(norms[:-1], value), rtol=1e-5)
    np.testing.assert_allclose(recorder.fractions[1:], value < 1, atol=1e-6)


@pytest.mark.parametrize("mode", COMPILED)
def test_a_clip_norm_that_is_set_changes_clip_and_noise_together(mode):
    for make, noise_multiplier, data in (
        (line_model, 0.0, line_data([1e6] * 4)),
        (setups.pure_noise_model, 3.0, setups.pure_noise_data(4)),
    ):
        model = make(dp_sgd(1.0, noise_multiplier), **COMPILED[mode])
        setups.recorded_fit(model, *data, 4)
        (variable,) = (v for v in model.optimizer.variables if v.name == "clip_norm")
        variable.assign([0.125])
        assert model.optimizer.clip_norm == 0.125
        (update,) = setups.recorded_fit(model, *data, 4).updates
        if noise_multiplier:
            setups.spread(update, 3.0 * 0.125 / 4)
        else:
            np.testing.assert_allclose(update, [0.125], rtol=1e-5)


def test_a_clipping_strategy_cannot_be_exchanged():
    """A compiled step would go on with the old one, under the new one's noise."""
    optimizer = dp_sgd("quantile")
    with pytest.raises(AttributeError):
        optimizer.clipping = ka.clipping.FixedClipping(1.0)
    assert isinstance(optimizer.clipping, ka.clipping.QuantileClipping)


def test_weight_regularization_is_outside_clip_and_noise():
    regularizer = keras.regularizers.L2(0.5)
    dense = keras.layers.Dense(1, use_bias=False, kernel_regularizer=regularizer)
    model = ka.PrivateSequential([keras.Input((1,)), dense])
    model.compile(optimizer=dp_sgd(1e-6, 0.0, 0.1), loss="mse")
    dense.kernel.assign([[2.0]])
    (update,) = setups.recorded_fit(model, *line_data([1.0] * 4), 2).updates
    np.testing.assert_allclose(update, [-0.1 * 2 * 0.5 * 2.0], rtol=1e-4)
