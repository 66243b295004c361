"""Clipped sums of small nets against NumPy gradients that were worked out by hand."""

import keras
import numpy as np
import pytest
from keras import layers

from tests import oracles
from tests.gradients.support import LOOPED, assert_close, built, plan_for, rules, runner


def sequence_mlp():
    net = [layers.Dense(9, activation="tanh"), layers.GlobalAveragePooling1D(), layers.Dense(3)]

    def blocks(w):
        return [
            oracles.Dense(*w[:2]),
            oracles.Tanh(),
            oracles.MeanOverPositions(),
            oracles.Dense(*w[2:]),
        ]

    return (3, 8), net, blocks, ["Dense", "Dense"]


def strided_convolution():
    net = [layers.Conv2D(4, 3, strides=2), layers.Flatten(), layers.Dense(3)]
    blocks = lambda w: [oracles.Conv2D(*w[:2], 2), oracles.Flatten(), oracles.Dense(*w[2:])]  # noqa: E731
    return (7, 7, 1), net, blocks, ["Convolution", "Dense"]


def embedding():
    net = [layers.Embedding(5, 4), layers.GlobalAveragePooling1D(), layers.Dense(3)]

    def blocks(w):
        return [oracles.Embedding(w[0]), oracles.MeanOverPositions(), oracles.Dense(*w[1:])]

    return (7,), net, blocks, ["Embedding", "Dense"]


def group_normalization():
    net = [layers.Conv2D(4, 2), layers.GroupNormalization(2), layers.Flatten(), layers.Dense(3)]

    def blocks(w):
        return [
            oracles.Conv2D(*w[:2]),
            oracles.Normalization(*w[2:4], groups=2),
            oracles.Flatten(),
            oracles.Dense(*w[4:]),
        ]

    return (4, 4, 2), net, blocks, ["Convolution", "Normalization", "Dense"]


NETS = [
    sequence_mlp,
    strided_convolution,
    embedding,
    group_normalization,
]


@pytest.mark.parametrize("net", NETS, ids=lambda net: net.__name__)
def test_clipped_sums_are_those_of_numpy(net):
    shape, stack, blocks, expected_rules = net()
    rng = np.random.default_rng(1)
    has_ids = isinstance(stack[0], layers.Embedding)
    x = rng.integers(0, 5, (5, *shape)) if has_ids else rng.normal(size=(5, *shape))
    x = x.astype("int32" if has_ids else "float32")
    labels = rng.integers(0, 3, 5).astype("int32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = keras.Sequential([keras.Input(shape, dtype=x.dtype.name), *stack])
    model = built(model, x, labels, loss=loss)
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
    for way in (plan, LOOPED):
        found = runner(model, way, clip_norm)(x, labels)
        np.testing.assert_allclose(found.norms, norms, rtol=1e-5)
        np.testing.assert_allclose(found.losses, losses, rtol=1e-5)
        np.testing.assert_allclose(found.factors, oracles.clip_factors(norms, clip_norm), rtol=1e-5)
        assert_close(found.gradients, expected)
        for one, other in zip(found.gradients, expected, strict=True):
            assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(other)
