"""Rounds that a query of TensorFlow Privacy aggregates, beside the query called by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_adaclip as ka
from tests.federated import oracle
from tests.integrations import support

queries = ka.integrations.tensorflow_privacy
COHORT, ROUNDS = 6, 3


def quantile(noise=0.0, count_stddev=0.0, expected=COHORT):
    return queries.QuantileAdaptiveClipSumQuery(0.2, noise, 0.5, 0.4, count_stddev, expected)


def sums(clip_norm=0.3):
    return queries.GaussianSumQuery(clip_norm, 0.0)


def tree():
    return queries.TreeResidualSumQuery.build_l2_gaussian_query(0.3, 0.0, support.SPECS)


# Query, number of clients at a time, whether results are means.
NOISELESS = {
    "sum": (sums, None, False),
    "quantile": (quantile, None, False),
    "normalized": (lambda: queries.NormalizedQuery(quantile(), 7.0), 1, True),
    "nested": (lambda: queries.NestedQuery([sums(), sums(0.1)]), 4, False),
    "average": (lambda: queries.NoPrivacyAverageQuery(), None, True),
    "restarted tree": (
        lambda: queries.RestartQuery(tree(), queries.PeriodicRoundRestartIndicator(2)),
        None,
        False,
    ),
}


def by_hand(query, state, found):
    """Return result and next state of one round."""
    parameters = query.derive_sample_params(state)
    sample = query.initial_sample_state([tf.zeros(shape) for shape in support.SHAPES])
    for contribution in found:
        record = [tf.constant(part, tf.float32) for part in contribution]
        preprocessed = query.preprocess_record(parameters, record)
        sample = query.accumulate_preprocessed_record(sample, preprocessed)
    result, state, _ = query.get_noised_result(sample, state)
    return [part.numpy() for part in tf.nest.flatten(result)], state


@pytest.mark.filterwarnings("ignore:Epsilon is infinite")
@pytest.mark.parametrize("name", list(NOISELESS))
def test_rounds_are_those_of_the_query_by_hand(name, monkeypatch):
    make, chunk, is_mean = NOISELESS[name]
    recorded = oracle.record_batches(monkeypatch)
    model = support.compiled(make(), server=keras.optimizers.SGD(0.7), chunk=chunk)
    expected = oracle.arrays(model.trainable_variables)
    model.fit(support.population(), COHORT, epochs=1, steps_per_epoch=ROUNDS, verbose=0)
    plain, query = keras.Sequential(support.stack()), make()
    plain.compile(loss=support.LOSS)
    state = query.initial_global_state()
    for batch in recorded[:ROUNDS]:
        found = oracle.contributions(plain, keras.optimizers.SGD(0.5), expected, batch)
        result, state = by_hand(query, state, found)
        rate = 0.7 if is_mean else 0.7 / COHORT
        expected = [value - rate * part for value, part in zip(expected, result, strict=True)]
    for ours, theirs in zip(oracle.arrays(model.trainable_variables), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    theirs = {key: float(value) for key, value in query.derive_metrics(state).items()}
    assert model.optimizer.query_metrics == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("change", [1e6, np.nan])
def test_all_data_of_one_client_move_its_own_bounded_contribution(change):
    found, norms = [], []
    for changed in (False, True):
        x, y, ids = support.arrays()
        if changed:
            x[ids == 3] = change
        model = support.compiled(quantile())
        before = support.weights(model)
        # Everyone takes part, so that the two differ by this client alone.
        clients = ka.federated.ClientData.from_arrays(x, y, ids)
        model.fit(clients, support.NUM_CLIENTS, epochs=1, verbose=0)
        assert np.all(np.isfinite(support.weights(model)))
        found.append(support.weights(model) - before)
        norms.append(model.optimizer.clip_norm)
    moved = support.NUM_CLIENTS * np.linalg.norm(found[1] - found[0])
    # Replaced: twice the norm. A client that is not finite adds zeros: once.
    assert 1e-4 < moved <= 0.2 * (1.0 if np.isnan(change) else 2.0) * (1 + 1e-4)
    # One bit of twelve, by the learning rate of the norm, over the expected six.
    assert abs(np.log(norms[1] / norms[0])) <= 0.4 / COHORT * (1 + 1e-4)


@pytest.mark.filterwarnings("ignore:Epsilon is infinite")
@pytest.mark.parametrize(("sampling", "chunk"), [("poisson", None), ("fixed", 1)])
def test_a_client_without_examples_abstains(sampling, chunk):
    """The query pays for half a vote: a client that is emptied must not move a whole one."""
    norms, moved = [], []
    for is_emptied in (False, True):
        x, y, ids = support.arrays()
        x[ids == 3] *= 1e3
        kept = ids != 3 if is_emptied else np.full(len(ids), True)
        parts = (x[kept], y[kept], ids[kept])
        clients = ka.federated.ClientData.from_arrays(*parts, population=range(support.NUM_CLIENTS))
        model = support.compiled(quantile(expected=support.NUM_CLIENTS), chunk=chunk)
        before = support.weights(model)
        model.fit(clients, support.NUM_CLIENTS, epochs=1, verbose=0, sampling=sampling)
        norms.append(model.optimizer.clip_norm)
        moved.append(support.NUM_CLIENTS * (support.weights(model) - before))
    assert 0.1 < np.linalg.norm(moved[1] - moved[0]) <= 0.2 * (1 + 1e-4)
    half_a_vote = 0.5 * 0.4 / support.NUM_CLIENTS
    assert abs(np.log(norms[1] / norms[0])) == pytest.approx(half_a_vote, rel=1e-3)


def test_no_client_at_all_is_a_round_of_noise(monkeypatch):
    oracle.draw_nobody(monkeypatch)
    model = support.compiled(queries.GaussianSumQuery(1.0, 2.0))
    before = support.weights(model)
    model.fit(support.population(), COHORT, epochs=1, steps_per_epoch=1, verbose=0)
    assert np.all(support.weights(model) != before)


def test_callbacks_read_norm_and_epsilon():
    model = support.compiled(quantile(1.0, 2.0))
    callbacks = [ka.callbacks.ClippingMonitor(), ka.callbacks.PrivacyCallback(delta=1e-2)]
    logs = model.fit(support.population(), COHORT, epochs=2, verbose=0, callbacks=callbacks).history
    assert logs["clip_norm"][-1] == pytest.approx(model.optimizer.clip_norm)
    assert logs["epsilon"][-1] == model.privacy_spent(1e-2).epsilon
    assert "QuantileAdaptiveClipSumQuery" in str(model.privacy_report(1e-2, group_sizes=()))
