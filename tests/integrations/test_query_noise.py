"""The noise of a query in rounds: how much, never twice, and that of trees over time.

Clients that do not move leave the noise alone. Fixed numbers of draws, seeds from the system: the
bounds lie five standard deviations out, a false alarm in some million runs.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_adaclip as ka
from tests.integrations.support import NUM_CLIENTS, compiled, population, weights

queries = ka.integrations.tensorflow_privacy
WIDTH = 1000
# 8,003 numbers.
SPECS = [tf.TensorSpec(shape) for shape in [(4, WIDTH), (WIDTH,), (WIDTH, 3), (3,)]]


def wide(query):
    """Return a model whose clients do not move, so that only the noise moves it."""
    stack = [keras.Input((4,)), layers.Dense(WIDTH, activation="tanh"), layers.Dense(3)]
    return compiled(query, made_of=stack, client_rate=0.0)


def changes(model, cohort_size, epochs, **options):
    """Return the change of the weights in each round."""
    seen = [weights(model)]
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(weights(model))
    )
    model.fit(population(), cohort_size, epochs=epochs, verbose=0, callbacks=[look], **options)
    return np.diff(seen, axis=0)


def assert_stddev(draws, expected):
    error = 1.0 / np.sqrt(2.0 * draws.size)
    assert np.std(draws) == pytest.approx(expected, rel=5 * error)
    assert abs(np.mean(draws)) < 5 * expected / np.sqrt(draws.size)


def correlation(one, other):
    return abs(np.corrcoef(one, other)[0, 1])


def test_rounds_have_the_noise_of_the_query():
    found = changes(wide(queries.GaussianSumQuery(2.0, 3.0)), 4, 2)
    assert_stddev(found, 3.0 / 4)
    for round_, following in itertools.pairwise(found):
        assert correlation(round_, following) < 5 / np.sqrt(len(round_))


def test_a_global_seed_does_not_repeat_the_noise():
    found = []
    for _ in range(2):
        model = wide(queries.GaussianSumQuery(1.0, 1.0))
        tf.random.set_seed(7)
        found.append(changes(model, 4, 1)[0])
    assert correlation(*found) < 5 / np.sqrt(len(found[0]))


def tree(seed=None):
    return queries.TreeResidualSumQuery.build_l2_gaussian_query(
        1.0, 2.0, SPECS, noise_seed=seed, use_efficient=False
    )


def test_rounds_of_a_tree_add_up_to_the_noise_of_its_nodes_and_restart_with_a_pass():
    # Four rounds a pass: after t of them as many nodes as t has binary ones.
    cohort = NUM_CLIENTS // 4
    found = cohort * changes(wide(tree()), cohort, 2, sampling="shuffle")
    assert len(found) == 8
    for one_pass in (found[:4], found[4:]):
        sums = np.cumsum(one_pass, axis=0)
        for number, nodes in enumerate([1, 1, 2, 1]):
            assert_stddev(sums[number], 2.0 * np.sqrt(nodes))
    # A new tree: what the first pass ended with is no part of the second.
    assert correlation(found[:4].sum(axis=0), found[4:].sum(axis=0)) < 5 / np.sqrt(8003)


def test_trees_draw_from_the_system_and_not_from_the_time(monkeypatch):
    monkeypatch.setattr(tf, "timestamp", lambda: tf.constant(1.5e9, tf.float64))
    found = [changes(wide(tree()), 3, 1, sampling="shuffle")[0] for _ in range(2)]
    assert correlation(*found) < 5 / np.sqrt(len(found[0]))


class SeededQuery(queries.GaussianSumQuery):
    """As one might write it for a test."""

    def get_noised_result(self, sample_state, global_state):
        _, state, event = super().get_noised_result(sample_state, global_state)
        noised = [part + tf.random.normal(part.shape, seed=4) for part in sample_state]
        return noised, state, event


def test_noise_from_a_fixed_seed_is_refused():
    model = compiled(SeededQuery(1.0, 1.0))
    before = weights(model)
    with pytest.raises(ValueError, match="fixed seed"):
        model.fit(population(), 4, epochs=1, verbose=0)
    np.testing.assert_array_equal(weights(model), before)
    with pytest.raises(ValueError, match="fixed seed"):
        queries.QueryOptimizer("sgd", queries.NormalizedQuery(tree(seed=5), 3.0))
