"""Sum queries of TensorFlow Privacy in rounds: results, noise, cost, saving and refusals.

`make test-tensorflow-privacy` has an environment for these tests; elsewhere they are skipped.
Statistical bounds lie five standard deviations out, a false alarm in some million runs.
"""

import importlib.util
import itertools
import math
import sys

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from tests.docs import pages
from tests.federated import oracle
from tests.federated.support import weights

if keras.backend.backend() != "tensorflow" or not importlib.util.find_spec("tensorflow_privacy"):
    pytest.skip("needs TensorFlow Privacy, on TensorFlow", allow_module_level=True)

import dp_accounting as dp
import tensorflow as tf
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

# Its Keras parts need an older Keras; the queries do not.
sys.skip_tf_privacy_import = True
from tensorflow_privacy.privacy.dp_query import (  # noqa: E402
    no_privacy_query,
    normalized_query,
    restart_query,
    tree_aggregation_query,
)

queries = ka.integrations.tensorflow_privacy
NUM_CLIENTS, SIZE, FEATURES, CLASSES, COHORT = 12, 5, 4, 3, 6
SHAPES = [(FEATURES, CLASSES), (CLASSES,)]
SPECS = [tf.TensorSpec(shape) for shape in SHAPES]
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
DELTA = 1e-2
# The ledger states 2^-16 less noise than the event.
CLOSE = {"rel": 1e-4}


def arrays():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_CLIENTS * SIZE, FEATURES)).astype("float32")
    y = generator.integers(0, CLASSES, len(x))
    return x, y, np.repeat(np.arange(NUM_CLIENTS), SIZE)


def population():
    return ka.federated.ClientData.from_arrays(*arrays())


def stack():
    return [keras.Input((FEATURES,)), layers.Dense(CLASSES)]


def compiled(query, *, server=None, client_rate=0.5, chunk=None, made_of=None, **options):
    keras.utils.set_random_seed(0)
    model = ka.federated.FederatedSequential(made_of or stack())
    optimizer = queries.QueryOptimizer(
        server or keras.optimizers.SGD(1.0), query, microbatch_size=chunk
    )
    # One step on all of a client's examples: the same whatever order they come in.
    options |= {"client_optimizer": keras.optimizers.SGD(client_rate), "client_batch_size": None}
    model.compile(optimizer, loss=LOSS, **options)
    return model


def trained(query, **options):
    model = compiled(query)
    model.fit(population(), COHORT, epochs=1, verbose=0, **options)
    return model


def sums(clip_norm=0.3, noise=0.0):
    return queries.GaussianSumQuery(clip_norm, noise)


def quantile(noise=0.0, count_stddev=0.0, expected=COHORT):
    return queries.QuantileAdaptiveClipSumQuery(0.2, noise, 0.5, 0.4, count_stddev, expected)


@keras.saving.register_keras_serializable(package="tests")
def private_quantile():
    return quantile(1.5, 1.0)


def nested(*parts):
    return queries.NestedSumQuery(list(parts))


def tree():
    build = tree_aggregation_query.TreeResidualSumQuery.build_l2_gaussian_query
    return build(0.5, 4.0, SPECS)


# Results


def by_hand(query, state, found):
    """Return result and next state of one round."""
    parameters = query.derive_sample_params(state)
    sample = query.initial_sample_state([tf.zeros(shape) for shape in SHAPES])
    for contribution in found:
        record = [tf.constant(part, tf.float32) for part in contribution]
        preprocessed = query.preprocess_record(parameters, record)
        sample = query.accumulate_preprocessed_record(sample, preprocessed)
    result, state, _ = query.get_noised_result(sample, state)
    return [part.numpy() for part in tf.nest.flatten(result)], state


@pytest.mark.parametrize(
    ("make", "chunk"),
    [(sums, None), (quantile, 1), (lambda: nested(sums(), quantile()), 4)],
    ids=["sum", "quantile", "nested"],
)
def test_rounds_are_those_of_the_query_called_by_hand(make, chunk, monkeypatch):
    recorded = oracle.record_batches(monkeypatch)
    model = compiled(make(), server=keras.optimizers.SGD(0.7), chunk=chunk)
    expected = oracle.arrays(model.trainable_variables)
    model.fit(population(), COHORT, epochs=1, steps_per_epoch=3, verbose=0)
    plain, query = keras.Sequential(stack()), make()
    plain.compile(loss=LOSS)
    state = query.initial_global_state()
    for batch in recorded[:3]:
        found = oracle.contributions(plain, keras.optimizers.SGD(0.5), expected, batch)
        result, state = by_hand(query, state, found)
        expected = [
            value - 0.7 / COHORT * part for value, part in zip(expected, result, strict=True)
        ]
    for ours, theirs in zip(oracle.arrays(model.trainable_variables), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    theirs = {key: float(value) for key, value in query.derive_metrics(state).items()}
    assert model.optimizer.query_metrics == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("change", [1e6, np.nan])
def test_the_data_of_one_client_move_its_own_bounded_contribution(change):
    found, norms = [], []
    for changed in (False, True):
        x, y, ids = arrays()
        if changed:
            x[ids == 3] = change
        model = compiled(quantile())
        before = weights(model)
        # Everyone takes part, so that the two differ by this client alone.
        clients = ka.federated.ClientData.from_arrays(x, y, ids)
        model.fit(clients, NUM_CLIENTS, epochs=1, verbose=0)
        assert np.all(np.isfinite(weights(model)))
        found.append(weights(model) - before)
        norms.append(model.optimizer.clip_norm)
    moved = NUM_CLIENTS * np.linalg.norm(found[1] - found[0])
    # Replaced: twice the norm. A client that is not finite adds zeros: once.
    assert 1e-4 < moved <= 0.2 * (1.0 if np.isnan(change) else 2.0) * (1 + 1e-4)
    # One bit of twelve, by the learning rate of the norm, over the expected six.
    assert abs(np.log(norms[1] / norms[0])) <= 0.4 / COHORT * (1 + 1e-4)


@pytest.mark.parametrize(("sampling", "chunk"), [("poisson", None), ("fixed", 1)])
def test_a_client_without_examples_abstains(sampling, chunk):
    """The query pays for half a vote: a client that is emptied must not move a whole one."""
    norms, moved = [], []
    for is_emptied in (False, True):
        x, y, ids = arrays()
        x[ids == 3] *= 1e3
        kept = ids != 3 if is_emptied else np.full(len(ids), True)
        parts = (x[kept], y[kept], ids[kept])
        clients = ka.federated.ClientData.from_arrays(*parts, population=range(NUM_CLIENTS))
        model = compiled(quantile(expected=NUM_CLIENTS), chunk=chunk)
        before = weights(model)
        model.fit(clients, NUM_CLIENTS, epochs=1, verbose=0, sampling=sampling)
        norms.append(model.optimizer.clip_norm)
        moved.append(NUM_CLIENTS * (weights(model) - before))
    assert 0.1 < np.linalg.norm(moved[1] - moved[0]) <= 0.2 * (1 + 1e-4)
    half_a_vote = 0.5 * 0.4 / NUM_CLIENTS
    assert abs(np.log(norms[1] / norms[0])) == pytest.approx(half_a_vote, rel=1e-3)


def test_callbacks_read_norm_and_epsilon():
    model = compiled(private_quantile())
    callbacks = [ka.callbacks.ClippingMonitor(), ka.callbacks.PrivacyCallback(delta=DELTA)]
    logs = model.fit(population(), COHORT, epochs=2, verbose=0, callbacks=callbacks).history
    assert logs["clip_norm"][-1] == pytest.approx(model.optimizer.clip_norm)
    assert logs["epsilon"][-1] == model.privacy_spent(DELTA).epsilon
    assert "QuantileAdaptiveClipSumQuery" in str(model.privacy_report(DELTA, group_sizes=()))


# Noise


def changes(query, cohort_size, epochs):
    """Return the change of the weights in each round, in which the clients do not move."""
    # 8,003 numbers.
    wide = [keras.Input((4,)), layers.Dense(1000, activation="tanh"), layers.Dense(3)]
    model = compiled(query, made_of=wide, client_rate=0.0)
    tf.random.set_seed(7)
    seen = [weights(model)]
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(weights(model))
    )
    model.fit(population(), cohort_size, epochs=epochs, verbose=0, callbacks=[look])
    return np.diff(seen, axis=0)


def test_rounds_have_the_noise_of_the_query_and_never_the_same():
    """Not even in two runs with one global seed."""
    found = np.concatenate([changes(sums(2.0, 3.0), 4, 2) for _ in range(2)])
    expected, num_draws = 3.0 / 4, found.size
    assert np.std(found) == pytest.approx(expected, rel=5 / np.sqrt(2.0 * num_draws))
    assert abs(np.mean(found)) < 5 * expected / np.sqrt(num_draws)
    for one, other in itertools.combinations(found, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(len(one))


def test_a_round_without_clients_is_a_round_of_noise(monkeypatch):
    oracle.draw_nobody(monkeypatch)
    model = compiled(sums(1.0, 2.0))
    before = weights(model)
    model.fit(population(), COHORT, epochs=1, steps_per_epoch=1, verbose=0)
    assert np.all(weights(model) != before)


# Cost


def epsilon(accountant, event):
    return accountant.compose(event).get_epsilon(DELTA)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        # The sum, and the counts with their sensitivity of a half.
        (private_quantile, [1.5, 2.0]),
        (lambda: nested(sums(0.5, 1.0), private_quantile()), [2.0, 1.5, 2.0]),
    ],
    ids=["quantile", "nested"],
)
def test_poisson_rounds_cost_what_dp_accounting_says_of_the_events(make, parts):
    model = compiled(make())
    model.fit(population(), COHORT, epochs=2, verbose=0)
    composed = dp.ComposedDpEvent([dp.GaussianDpEvent(z) for z in parts])
    one = dp.GaussianDpEvent(sum(z**-2 for z in parts) ** -0.5)
    rounds, q = 2 * NUM_CLIENTS // COHORT, COHORT / NUM_CLIENTS
    by_rdp, by_pld = (
        epsilon(accountant, dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(q, event), rounds))
        for accountant, event in ((RdpAccountant(), composed), (PLDAccountant(), one))
    )
    assert model.privacy_spent(DELTA, "rdp").epsilon == pytest.approx(by_rdp, **CLOSE)
    assert model.privacy_spent(DELTA).epsilon == pytest.approx(by_pld, **CLOSE)
    assert model.privacy_spent(DELTA).epsilon >= by_pld - 1e-9
    assert len(model.privacy_ledger) == 1, "an adaptive norm is no reason for further rows"


@pytest.mark.parametrize("sampling", ["shuffle", "fixed"])
def test_cohorts_drawn_otherwise_cost_what_dp_accounting_says(sampling):
    model = compiled(sums(0.5, 1.0))
    model.fit(population(), 3, epochs=2, verbose=0, sampling=sampling)
    if sampling == "shuffle":
        accountant, event = PLDAccountant(), dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 2)
    else:
        # The client that is replaced moves the sum twice as far.
        drawn = dp.SampledWithoutReplacementDpEvent(NUM_CLIENTS, 3, dp.GaussianDpEvent(1.0))
        event = dp.SelfComposedDpEvent(drawn, 8)
        relation = dp.NeighboringRelation.REPLACE_ONE
        accountant = RdpAccountant(neighboring_relation=relation)
    assert model.privacy_spent(DELTA).epsilon == pytest.approx(epsilon(accountant, event), **CLOSE)


def test_a_query_without_noise_has_no_epsilon():
    assert trained(quantile()).privacy_spent(DELTA).epsilon == math.inf


class Falling(queries.GaussianSumQuery):
    """Its noise falls by half with each round."""

    def get_noised_result(self, sample_state, global_state):
        result, state, event = super().get_noised_result(sample_state, global_state)
        return result, state._replace(stddev=state.stddev / 2.0), event


def test_noise_that_falls_is_accounted_by_the_epoch():
    model = compiled(Falling(1.0, 4.0))
    model.fit(population(), COHORT, epochs=3, steps_per_epoch=1, verbose=0)
    found = [row.noise_multiplier for row in model.privacy_ledger]
    assert found == pytest.approx([4.0, 2.0, 1.0], **CLOSE)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_round_with_less_noise_than_counted_is_not_used(run_eagerly):
    model = compiled(Falling(1.0, 4.0), run_eagerly=run_eagerly)
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(weights(model))
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="fallen"):
        model.fit(population(), COHORT, epochs=1, verbose=0, callbacks=[look])
    assert len(seen) == 1
    np.testing.assert_array_equal(weights(model), seen[0])
    # Counted all the same.
    assert model.privacy_ledger.steps >= 1


def test_the_code_of_the_page_trains():
    page = (pages.DOCS / "federated.md").read_text(encoding="utf-8")
    (block,) = (block for block in pages.blocks(page) if "TensorFlow Privacy" in block.options)
    names = {"keras": keras, "ka": ka}
    names["model"] = model = ka.federated.FederatedSequential([*stack(), keras.layers.Softmax()])
    exec(compile(block.text, "docs/federated.md", "exec"), names)
    model.fit(population(), cohort_size=6, epochs=1, verbose=0)
    assert 0 < model.privacy_spent(delta=1e-3).epsilon < float("inf")


# Saving


def test_a_loaded_model_goes_on_with_norm_and_ledger(tmp_path):
    model = compiled(private_quantile, server=keras.optimizers.SGD(0.5, momentum=0.9))
    model.fit(population(), COHORT, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.query_metrics == model.optimizer.query_metrics
    assert loaded.privacy_ledger == model.privacy_ledger
    np.testing.assert_array_equal(weights(loaded), weights(model))
    for one in (model, loaded):
        one.fit(population(), COHORT, epochs=2, verbose=0)
    # An adaptive norm changes the last digits of the noise multiplier.
    expected = pytest.approx(model.privacy_spent(DELTA).epsilon, rel=1e-5)
    assert loaded.privacy_spent(DELTA).epsilon == expected
    assert loaded.privacy_ledger.steps == 4 * NUM_CLIENTS // COHORT


def test_a_model_with_a_query_that_no_function_made_is_compiled_anew(tmp_path):
    model = trained(private_quantile())
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="compile=False"):
        keras.models.load_model(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert loaded.privacy_spent(DELTA) == model.privacy_spent(DELTA)
    loaded.compile(optimizer=queries.QueryOptimizer("sgd", private_quantile()), loss=LOSS)
    loaded.fit(population(), COHORT, epochs=1, verbose=0)
    assert loaded.privacy_ledger.steps == 2 * model.privacy_ledger.steps


def test_loaded_noise_is_counted_as_it_is(tmp_path):
    trained(sums(1.0, 1.0)).save_weights(tmp_path / "model.weights.h5")
    model = trained(sums(1.0, 4.0))
    model.load_weights(tmp_path / "model.weights.h5")
    model.fit(population(), COHORT, epochs=1, verbose=0)
    assert model.privacy_ledger.rows[-1].noise_multiplier == pytest.approx(1.0, **CLOSE)


def test_the_state_of_another_query_is_refused(tmp_path):
    trained(private_quantile()).save_weights(tmp_path / "model.weights.h5")
    other = trained(sums())
    before = other.optimizer.inner_optimizer.iterations.numpy()
    with pytest.raises(ValueError, match="does not fit"):
        other.load_weights(tmp_path / "model.weights.h5")
    assert other.optimizer.inner_optimizer.iterations.numpy() == before


# Refusals


@pytest.mark.parametrize(
    "make",
    [
        tree,
        lambda: tree_aggregation_query.TreeCumulativeSumQuery.build_l2_gaussian_query(1, 1, SPECS),
        lambda: restart_query.RestartQuery(tree(), restart_query.PeriodicRoundRestartIndicator(2)),
        lambda: normalized_query.NormalizedQuery(sums(), 7.0),
        no_privacy_query.NoPrivacySumQuery,
        lambda: "gaussian",
    ],
)
def test_other_queries_are_refused(make):
    with pytest.raises(TypeError, match="must be a `GaussianSumQuery`"):
        queries.QueryOptimizer("sgd", make())
    with pytest.raises(TypeError, match="must be a `GaussianSumQuery`"):
        queries.QueryOptimizer("sgd", make)


class Laplace(queries.GaussianSumQuery):
    def get_noised_result(self, sample_state, global_state):
        result, state, _ = super().get_noised_result(sample_state, global_state)
        return result, state, dp.LaplaceDpEvent(1.0)


class Seeded(queries.GaussianSumQuery):
    """As one might write it for a test."""

    def get_noised_result(self, sample_state, global_state):
        _, state, event = super().get_noised_result(sample_state, global_state)
        noised = [part + tf.random.normal(part.shape, seed=4) for part in sample_state]
        return noised, state, event


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Laplace(1.0, 1.0), "not a Gaussian mechanism"),
        (lambda: nested(sums(1.0, 1.0), tree_of_a_bias()), "not a Gaussian mechanism"),
        (lambda: nested(sums(1.0, 1.0), no_privacy_query.NoPrivacySumQuery()), "not a Gaussian"),
        (lambda: nested(*[sums(1.0, 1.0)]), "a list of 2 queries"),
        (lambda: nested(*[sums(1.0, 1.0)] * 3), "a list of 2 queries"),
        (lambda: Seeded(1.0, 1.0), "fixed seed"),
        (lambda: sums(0.0, 1.0), "reached zero"),
    ],
)
def test_rounds_that_cannot_be_accounted_are_refused_before_training(make, reason):
    model = compiled(make())
    before = weights(model)
    with pytest.raises(ValueError, match=reason):
        model.fit(population(), COHORT, epochs=1, verbose=0)
    np.testing.assert_array_equal(weights(model), before)
    assert model.privacy_ledger.steps == 0


def tree_of_a_bias():
    build = tree_aggregation_query.TreeResidualSumQuery.build_l2_gaussian_query
    return build(0.5, 4.0, SPECS[1])


def test_functions_that_run_eagerly_are_refused():
    model = compiled(sums(1.0, 1.0))
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(ValueError, match="run_functions_eagerly"):
            model.fit(population(), COHORT, epochs=1, verbose=0)
    finally:
        tf.config.run_functions_eagerly(False)


def test_settings_that_do_not_go_with_a_query_are_refused():
    weighting = ka.federated.ByExamples(4, 4)
    options = {"jit_compile": True, "cohort_noise_size": 100, "client_weighting": weighting}
    for name, value in options.items():
        with pytest.raises(ValueError, match=f"`{name}` does not go with"):
            compiled(sums(), **{name: value})


def test_only_rounds_of_a_federated_model_are_taken():
    optimizer = queries.QueryOptimizer("sgd", sums())
    with pytest.raises(ValueError, match="DPOptimizer"):
        ka.PrivateSequential(stack()).compile(optimizer=optimizer, loss=LOSS)
    plain = keras.Sequential(stack())
    plain.compile(optimizer=optimizer, loss=LOSS)
    with pytest.raises(ValueError, match="FederatedModel"):
        plain.fit(*population().all_examples(), verbose=0)
    model = trained(sums())
    gradients = [tf.zeros(shape) for shape in SHAPES]
    with pytest.raises(ValueError, match="plain gradients"):
        model.optimizer.apply(gradients, model.trainable_variables)
    with pytest.raises(AttributeError):
        model.optimizer.noise_multiplier = 3.0
