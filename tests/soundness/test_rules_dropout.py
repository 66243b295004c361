"""Rule 14: each example has a dropout mask of its own."""

import keras
import numpy as np
import pytest

from tests.soundness.setups import COMPILED, dp_sgd, fix_draws, line_data, line_model, recorded_fit

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
