"""Clipped sums of small nets against NumPy gradients that were worked out by hand."""

import keras
import numpy as np
import pytest
from keras import layers

from tests import oracles
from tests.gradients.support import LOOPED, assert_close, built, plan_for, rules, runner

DENSE, CONVOLUTION, MEAN = oracles.Dense, oracles.Conv2D, oracles.MeanOverPositions
# The shape of the inputs, the layers, a function from weights to the oracle's blocks, and rules.
NETS = {
    "sequence": (
        (3, 8),
        lambda: [layers.Dense(9, activation="tanh"), layers.GlobalAveragePooling1D()],
        lambda w: [DENSE(*w[:2]), oracles.Tanh(), MEAN(), DENSE(*w[2:])],
        ["Dense", "Dense"],
    ),
    "strided convolution": (
        (7, 7, 1),
        lambda: [layers.Conv2D(4, 3, strides=2), layers.Flatten()],
        lambda w: [CONVOLUTION(*w[:2], 2), oracles.Flatten(), DENSE(*w[2:])],
        ["Convolution", "Dense"],
    ),
    "embedding": (
        (7,),
        lambda: [layers.Embedding(5, 4), layers.GlobalAveragePooling1D()],
        lambda w: [oracles.Embedding(w[0]), MEAN(), DENSE(*w[1:])],
        ["Embedding", "Dense"],
    ),
    "group normalization": (
        (4, 4, 2),
        lambda: [layers.Conv2D(4, 2), layers.GroupNormalization(2), layers.Flatten()],
        lambda w: [
            CONVOLUTION(*w[:2]),
            oracles.Normalization(*w[2:4], groups=2),
            oracles.Flatten(),
            DENSE(*w[4:]),
        ],
        ["Convolution", "Normalization", "Dense"],
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_clipped_sums_are_those_of_numpy(name):
    shape, stack, blocks, expected_rules = NETS[name]
    rng = np.random.default_rng(1)
    x = rng.normal(size=(5, *shape)).astype("float32")
    if name == "embedding":
        x = rng.integers(0, 5, (5, *shape)).astype("int32")
    labels = rng.integers(0, 3, 5).astype("int32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    inputs = keras.Input(shape, dtype=x.dtype.name)
    model = built(keras.Sequential([inputs, *stack(), layers.Dense(3)]), x, labels, loss=loss)
    weights = [rng.normal(scale=0.7, size=v.shape) for v in model.trainable_variables]
    weights = [value.astype("float32") for value in weights]
    model.set_weights(weights)

    losses, gradients = oracles.per_example_gradients(
        blocks([value.astype(np.float64) for value in weights]), x, labels
    )
    norms = oracles.gradient_norms(gradients)
    clip_norm = float(np.median(norms))
    expected = oracles.clipped_sums(gradients, clip_norm)
    plan = plan_for(model, x, labels)
    assert rules(plan) == expected_rules
    for each in (plan, LOOPED):
        found = runner(model, each, clip_norm)(x, labels)
        np.testing.assert_allclose(found.norms, norms, rtol=1e-5)
        np.testing.assert_allclose(found.losses, losses, rtol=1e-5)
        np.testing.assert_allclose(found.factors, oracles.clip_factors(norms, clip_norm), rtol=1e-5)
        assert_close(found.gradients, expected)
