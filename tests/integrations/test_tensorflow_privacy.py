"""Sum queries of TensorFlow Privacy as a `DPOptimizer`: results, noise, cost, saving, refusals.

`make test-tensorflow-privacy` has an environment for these tests; elsewhere they are skipped.
"""

import importlib.util
import math

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

import tensorflow as tf
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant

queries = ka.integrations.tensorflow_privacy
NUM_CLIENTS, SIZE, FEATURES, CLASSES, COHORT = 12, 5, 4, 3, 6
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
DELTA = 1e-2


def population():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_CLIENTS * SIZE, FEATURES)).astype("float32")
    y = generator.integers(0, CLASSES, len(x))
    return ka.federated.ClientData.from_arrays(x, y, np.repeat(np.arange(NUM_CLIENTS), SIZE))


def stack():
    return [keras.Input((FEATURES,)), layers.Dense(CLASSES)]


def compiled(query, server="sgd"):
    keras.utils.set_random_seed(0)
    model = ka.federated.FederatedSequential(stack())
    # One step on all of a client's examples: the same whatever order they come in.
    options = {"client_optimizer": keras.optimizers.SGD(0.5), "client_batch_size": None}
    model.compile(queries.QueryOptimizer(server, query), loss=LOSS, **options)
    return model


def sums(clip_norm=0.3, noise=0.0):
    return queries.GaussianSumQuery(clip_norm, noise)


def quantile(noise=0.0, count_stddev=0.0, **options):
    return queries.QuantileAdaptiveClipSumQuery(
        0.2, noise, 0.5, 0.4, count_stddev, COHORT, **options
    )


def by_hand(query, state, found):
    """Return result and next state of one round."""
    parameters = query.derive_sample_params(state)
    sample = query.initial_sample_state([tf.zeros((FEATURES, CLASSES)), tf.zeros((CLASSES,))])
    for contribution in found:
        record = [tf.constant(part, tf.float32) for part in contribution]
        preprocessed = query.preprocess_record(parameters, record)
        sample = query.accumulate_preprocessed_record(sample, preprocessed)
    result, state, _ = query.get_noised_result(sample, state)
    return [part.numpy() for part in tf.nest.flatten(result)], state


@pytest.mark.parametrize(
    "make", [sums, quantile, lambda: quantile(geometric_update=False)], ids=["sum", "exp", "linear"]
)
def test_rounds_are_those_of_the_query_called_by_hand(make, monkeypatch):
    recorded = oracle.record_batches(monkeypatch)
    model = compiled(make(), keras.optimizers.SGD(0.7))
    expected = oracle.arrays(model.trainable_variables)
    # In cohorts of one size no share of counts lies beyond 0 and 1, where the query cuts it off.
    model.fit(population(), COHORT, epochs=1, steps_per_epoch=3, sampling="fixed", verbose=0)
    plain, query = keras.Sequential(stack()), make()
    plain.compile(loss=LOSS)
    state = query.initial_global_state()
    for batch in recorded[:3]:
        found = oracle.contributions(plain, keras.optimizers.SGD(0.5), expected, batch)
        result, state = by_hand(query, state, found)
        pairs = zip(expected, result, strict=True)
        expected = [value - 0.7 / COHORT * part for value, part in pairs]
    for ours, theirs in zip(oracle.arrays(model.trainable_variables), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    norm = state.sum_state.l2_norm_clip if hasattr(state, "sum_state") else state.l2_norm_clip
    assert model.optimizer.clip_norm == pytest.approx(float(norm), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "noise_of_sum", "noise_of_counts"),
    [(lambda: sums(0.5, 1.0), 2.0, 0.0), (lambda: quantile(1.5, 1.0), 1.5, 1.0)],
    ids=["sum", "quantile"],
)
def test_noise_and_cost_are_those_of_the_event(make, noise_of_sum, noise_of_counts):
    query, model = make(), compiled(make())
    optimizer = model.optimizer
    split = optimizer.clipping.noise_split(optimizer.noise_multiplier, COHORT)
    assert split == pytest.approx((noise_of_sum, noise_of_counts))
    model.fit(population(), COHORT, epochs=2, verbose=0)
    zeros = query.initial_sample_state([tf.zeros(1)])
    _, _, event = query.get_noised_result(zeros, query.initial_global_state())
    # Of numbers: the accountant does not add up tensors.
    parts = getattr(event, "events", [event])
    events = [GaussianDpEvent(float(part.noise_multiplier)) for part in parts]
    rounds, share = 2 * NUM_CLIENTS // COHORT, COHORT / NUM_CLIENTS
    drawn = SelfComposedDpEvent(PoissonSampledDpEvent(share, ComposedDpEvent(events)), rounds)
    expected = RdpAccountant().compose(drawn).get_epsilon(DELTA)
    assert model.privacy_spent(DELTA, "rdp").epsilon == pytest.approx(expected, rel=1e-5)


def test_a_query_without_noise_has_no_epsilon():
    for query in (sums(), quantile(), quantile(0.0, 1.0)):
        assert queries.QueryOptimizer("sgd", query).noise_multiplier == 0.0
    model = compiled(quantile())
    model.fit(population(), COHORT, epochs=1, verbose=0)
    assert model.privacy_spent(DELTA).epsilon == math.inf


def test_the_code_of_the_page_trains():
    page = (pages.DOCS / "federated.md").read_text(encoding="utf-8")
    (block,) = (block for block in pages.blocks(page) if "TensorFlow Privacy" in block.options)
    names = {"keras": keras, "ka": ka}
    names["model"] = model = ka.federated.FederatedSequential([*stack(), keras.layers.Softmax()])
    exec(compile(block.text, "docs/federated.md", "exec"), names)
    model.fit(population(), cohort_size=6, epochs=1, verbose=0)
    assert 0 < model.privacy_spent(delta=1e-3).epsilon < float("inf")


def test_a_loaded_model_is_one_of_a_dp_optimizer(tmp_path):
    model = compiled(quantile(1.5, 1.0), keras.optimizers.SGD(0.5, momentum=0.9))
    model.fit(population(), COHORT, epochs=1, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.clip_norm == model.optimizer.clip_norm
    assert loaded.privacy_ledger == model.privacy_ledger
    np.testing.assert_array_equal(weights(loaded), weights(model))


def test_a_model_of_examples_takes_it_too():
    model = ka.PrivateSequential(stack())
    model.compile(queries.QueryOptimizer("sgd", sums(0.3, 0.6), microbatch_size=8), loss=LOSS)
    model.fit(*population().all_examples(), batch_size=20, verbose=0)
    assert [row.noise_multiplier for row in model.privacy_ledger] == pytest.approx([2.0])


class Falling(queries.GaussianSumQuery):
    """Its noise falls by half with each round."""

    def get_noised_result(self, sample_state, global_state):
        result, state, event = super().get_noised_result(sample_state, global_state)
        return result, state._replace(stddev=state.stddev / 2.0), event


@pytest.mark.parametrize("make", [lambda: Falling(1.0, 4.0), lambda: sums, lambda: "gaussian"])
def test_other_queries_are_refused(make):
    with pytest.raises(TypeError, match="must be a `GaussianSumQuery`"):
        queries.QueryOptimizer("sgd", make())


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: sums(0.0, 1.0), "clip_norm"),
        (lambda: sums(1.0, -1.0), "stddev"),
        (lambda: quantile(1.0, 0.0), "clipped_count_stddev"),
        (lambda: quantile(-1.0, 1.0), "noise_multiplier"),
    ],
)
def test_numbers_of_a_query_are_checked(make, name):
    with pytest.raises(ValueError, match=f"`{name}` must"):
        queries.QueryOptimizer("sgd", make())
