"""What rounds of a query cost, that the ledger keeps it, and the code on `docs/federated.md`."""

import math

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import keras_adaclip as ka
from tests.docs import pages
from tests.integrations.support import NUM_CLIENTS, SPECS, compiled, population, stack, weights

queries = ka.integrations.tensorflow_privacy
COHORT, DELTA = 3, 1e-2
# The ledger states 2^-16 less noise than the event says.
CLOSE = {"rel": 1e-4}


def epsilon(accountant, event):
    return accountant.compose(event).get_epsilon(DELTA)


def test_poisson_rounds_cost_what_dp_accounting_says_of_the_querys_events():
    model = compiled(queries.QuantileAdaptiveClipSumQuery(0.2, 1.5, 0.5, 0.4, 1.0, COHORT))
    model.fit(population(), COHORT, epochs=2, verbose=0)
    # The sum, and the counts with their sensitivity of a half.
    parts = [1.5, 2.0]
    composed = dp_accounting.ComposedDpEvent([GaussianDpEvent(z) for z in parts])
    one = GaussianDpEvent(sum(z**-2 for z in parts) ** -0.5)
    sampled = dp_accounting.PoissonSampledDpEvent
    rounds, q = 2 * NUM_CLIENTS // COHORT, COHORT / NUM_CLIENTS
    by_rdp = epsilon(RdpAccountant(), SelfComposedDpEvent(sampled(q, composed), rounds))
    by_pld = epsilon(PLDAccountant(), SelfComposedDpEvent(sampled(q, one), rounds))
    assert model.privacy_spent(DELTA, "rdp").epsilon == pytest.approx(by_rdp, **CLOSE)
    assert model.privacy_spent(DELTA).epsilon == pytest.approx(by_pld, **CLOSE)
    assert model.privacy_spent(DELTA).epsilon >= by_pld - 1e-9
    assert len(model.privacy_ledger) == 1, "an adaptive norm is no reason for further rows"


@pytest.mark.parametrize("sampling", ["shuffle", "fixed"])
def test_cohorts_drawn_otherwise_cost_what_dp_accounting_says(sampling):
    model = compiled(queries.GaussianSumQuery(0.5, 1.0))
    model.fit(population(), COHORT, epochs=2, verbose=0, sampling=sampling)
    spent = model.privacy_spent(DELTA).epsilon
    if sampling == "shuffle":
        accountant, event = PLDAccountant(), SelfComposedDpEvent(GaussianDpEvent(2.0), 2)
    else:
        # The client that is replaced moves the sum twice as far.
        sampled = dp_accounting.SampledWithoutReplacementDpEvent
        event = SelfComposedDpEvent(sampled(NUM_CLIENTS, COHORT, GaussianDpEvent(1.0)), 8)
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        accountant = RdpAccountant(neighboring_relation=relation)
    expected = epsilon(accountant, event)
    assert spent == pytest.approx(expected, **CLOSE)


def test_a_pass_over_a_tree_costs_what_dp_accounting_says():
    query = queries.TreeResidualSumQuery.build_l2_gaussian_query(0.5, 4.0, SPECS)
    model = compiled(query)
    model.fit(population(), 2, epochs=2, verbose=0, sampling="shuffle")
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    event = dp_accounting.SingleEpochTreeAggregationDpEvent(4.0, math.ceil(NUM_CLIENTS / 2))
    accountant = RdpAccountant(neighboring_relation=relation)
    expected = epsilon(accountant, SelfComposedDpEvent(event, 2))
    assert model.privacy_spent(DELTA, "rdp").epsilon == pytest.approx(expected, **CLOSE)
    assert model.privacy_spent(DELTA).epsilon <= expected
    assert model.privacy_spent(DELTA).neighboring_relation == "zero_out"


class Laplace(queries.GaussianSumQuery):
    def get_noised_result(self, sample_state, global_state):
        result, state, _ = super().get_noised_result(sample_state, global_state)
        return result, state, dp_accounting.LaplaceDpEvent(1.0)


class OwnTree(queries.TreeResidualSumQuery):
    """Derived, so that nothing is known of its noise."""


def own_clipping():
    def clip(record, bound):
        return [tf.clip_by_value(part, -bound, bound) for part in record]

    generator = queries.GaussianNoiseGenerator(1.0, SPECS)
    return queries.TreeResidualSumQuery(SPECS, generator, clip, 1.0)


def tree(kind=queries.TreeResidualSumQuery):
    return kind.build_l2_gaussian_query(1.0, 1.0, SPECS)


@pytest.mark.parametrize(
    ("make", "sampling", "reason"),
    [
        (tree, "poisson", "once in a tree"),
        (own_clipping, "shuffle", "not a Gaussian mechanism"),
        (lambda: tree(OwnTree), "shuffle", "not a Gaussian"),
        (lambda: Laplace(1.0, 1.0), "poisson", "unsupported"),
    ],
)
def test_what_cannot_be_accounted_is_infinite_and_said(make, sampling, reason):
    model = compiled(make())
    with pytest.warns(UserWarning, match=f"Epsilon is infinite.*{reason}"):
        model.fit(population(), COHORT, epochs=1, verbose=0, sampling=sampling)
    assert model.privacy_spent(DELTA).epsilon == math.inf
    assert reason in model.privacy_report(DELTA, group_sizes=()).clipping


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


def test_a_round_with_less_noise_than_stated_is_not_used():
    model = compiled(Falling(1.0, 4.0))
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


def test_the_page_compiles_a_model_whose_rounds_a_query_aggregates():
    page = (pages.DOCS / "federated.md").read_text(encoding="utf-8")
    (block,) = (block for block in pages.blocks(page) if "TensorFlow Privacy" in block.options)
    names = {"keras": keras, "ka": ka}
    names["model"] = model = ka.federated.FederatedSequential([*stack(), keras.layers.Softmax()])
    exec(compile(block.text, "docs/federated.md", "exec"), names)
    model.fit(population(), cohort_size=6, epochs=1, verbose=0)
    assert 0 < model.privacy_spent(delta=1e-3).epsilon < float("inf")
