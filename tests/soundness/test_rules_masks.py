"""Rule 6: padding is not a sample weight of zero. Rule 14: each example has a dropout mask."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.soundness.setups import (
    COMPILED,
    dp_sgd,
    fix_draws,
    line_data,
    line_model,
    recorded_fit,
    rolled_to,
)

VALUES = np.array([5.0, 0.5, 5.0, 0.5, 2.0, 0.25, 3.0, 0.125], np.float32)
WEIGHTS = np.array([0.0, 1.0, 1.0, 3.0, 0.5, 1.0, 0.0, 1.0], np.float32)
BATCH_SIZE = 4


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
    recorder = recorded_fit(model, x, y, BATCH_SIZE, len(draws), sample_weight=WEIGHTS)
    weighted = VALUES * WEIGHTS
    bits = [np.sum(np.where(weighted[rows] <= 1.0, 0.5, -0.5)) for rows in draws]
    fractions = np.array(recorder.fractions[1:])
    expected = rolled_to(np.array(bits) / BATCH_SIZE + 0.5, fractions[0])
    np.testing.assert_allclose(fractions, expected, rtol=1e-6)
    sums = [np.sum(np.minimum(weighted, 1.0)[rows]) for rows in draws]
    updates = recorder.updates[:, 0]
    expected = rolled_to(np.array(sums) / BATCH_SIZE, updates[0])
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
    history = recorded_fit(model, x, x + errors[:, None], BATCH_SIZE, **options).history
    expected = {
        "plain": np.mean(errors[rows]),
        "weighted": np.average(errors[rows], weights=WEIGHTS[rows]),
        "loss": np.mean((-VALUES * WEIGHTS)[rows]),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(history[name], value, rtol=1e-5)


NUM_EXAMPLES, NUM_FEATURES = 40, 50


@pytest.mark.parametrize("microbatch_size", [None, 4])
@pytest.mark.parametrize("mode", COMPILED)
def test_dropout_masks_differ_between_examples_chunks_and_steps(mode, microbatch_size, monkeypatch):
    """A kept feature adds 2. The number of examples that keep it is Binomial(40, 1/2).

    One mask for all would give 0 or 40, one mask for each place in a chunk of 4 a multiple of 10.
    False alarm: below 1e-6 for the range, below 1e-30 for the multiples.
    """
    fix_draws(monkeypatch, [range(NUM_EXAMPLES)])
    model = line_model(
        dp_sgd(1e6, 0.0, microbatch_size=microbatch_size),
        NUM_FEATURES,
        [keras.layers.Dropout(0.5)],
        **COMPILED[mode],
    )
    x, y = line_data(np.ones((NUM_EXAMPLES, NUM_FEATURES)))
    recorder = recorded_fit(model, x, y, NUM_EXAMPLES, 3)
    kept = recorder.updates * NUM_EXAMPLES / 2.0
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-3)
    kept = np.round(kept).astype(int)
    assert kept.min() >= 2
    assert kept.max() <= NUM_EXAMPLES - 2
    assert np.mean(kept % 10 == 0) < 0.6
    assert not np.array_equal(kept[0], kept[1])
    assert not np.array_equal(kept[1], kept[2])
