"""Rule 26: random layers draw from the secret key of the step, and nothing holds what they drew.

A row that is removed moves those behind it to other places, and so to other masks. Whoever knows
the masks sees the sum change by far more than the clipping norm.
"""

import keras
import numpy as np
import pytest
from keras import layers, ops

from tests.soundness.setups import COMPILED, dp_sgd, fix_draws, line_data, line_model, recorded_fit

NUM_ROWS = 8


class Unseeded(layers.Layer):
    """Adds numbers that Keras's global generator draws, which only eager steps can use."""

    def call(self, x, training=None):
        return x + keras.random.normal(ops.shape(x)) if training else x


class ScaledNoise(layers.Layer):
    """Draws and has a weight, so that examples are differentiated one after another."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=input_shape[1:], initializer="ones")
        self.generator = keras.random.SeedGenerator(5)

    def call(self, x, training=None):
        noise = keras.random.normal(ops.shape(x), seed=self.generator)
        return x * self.scale + noise * self.scale if training else x


LAYERS = {
    "dropout": lambda: layers.Dropout(0.5),
    "seeded dropout": lambda: layers.Dropout(0.5, seed=1),
    "gaussian noise": lambda: layers.GaussianNoise(1.0, seed=1),
    "one by one": ScaledNoise,
}
if keras.backend.backend() == "torch":
    LAYERS["unseeded"] = Unseeded


def updates(kind, mode, seed=None, num_rows=NUM_ROWS, microbatch_size=None):
    """The sums of two steps, divided by their number of rows, all made from one global seed."""
    keras.utils.set_random_seed(0)
    optimizer = dp_sgd(1.0, 0.0, seed=seed, microbatch_size=microbatch_size)
    model = line_model(optimizer, 64, [LAYERS[kind]()], **COMPILED[mode])
    x, y = line_data(np.random.default_rng(0).normal(size=(NUM_ROWS, 64)))
    states = [ops.convert_to_numpy(each).copy() for each in model.non_trainable_variables]
    found = recorded_fit(model, x, y, num_rows, 2).updates
    for before, after in zip(states, model.non_trainable_variables, strict=True):
        np.testing.assert_array_equal(before, ops.convert_to_numpy(after))
    return found


CASES = [*((kind, None) for kind in LAYERS), ("seeded dropout", 3)]


@pytest.mark.parametrize(("kind", "microbatch_size"), CASES)
@pytest.mark.parametrize("mode", COMPILED)
def test_known_seeds_do_not_tell_what_layers_draw(kind, mode, microbatch_size, monkeypatch):
    """Not even those of `set_random_seed` and of the layers; that of the optimizer does."""
    fix_draws(monkeypatch, [range(NUM_ROWS)])
    one, other, *seeded = (
        updates(kind, mode, seed, microbatch_size=microbatch_size) for seed in (None, None, 3, 3)
    )
    np.testing.assert_array_equal(*seeded)
    for update in (one[0], one[1], other[1], *seeded):
        assert np.abs(update - other[0]).max() > 1e-3


@pytest.mark.parametrize(("kind", "microbatch_size"), CASES)
@pytest.mark.parametrize("mode", COMPILED)
def test_a_row_moves_the_sum_by_the_norm_where_others_keep_their_draws(
    kind, mode, microbatch_size, monkeypatch
):
    sums = []
    for rows in (range(NUM_ROWS), range(NUM_ROWS - 1)):
        fix_draws(monkeypatch, [rows])
        sums.append(NUM_ROWS * updates(kind, mode, 3, microbatch_size=microbatch_size)[0])
    assert 0.5 < np.linalg.norm(sums[0] - sums[1]) <= 1.0001
