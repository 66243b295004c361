"""Saving and loading an optimizer with a query, and what it refuses."""

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_adaclip as ka
from tests.integrations import support

queries = ka.integrations.tensorflow_privacy
DELTA = 1e-2


def sums():
    return queries.GaussianSumQuery(1.0, 1.0)


def trained(query, **options):
    model = support.compiled(query)
    model.fit(support.population(), 4, epochs=1, verbose=0, **options)
    return model


@keras.saving.register_keras_serializable(package="tests")
def quantile():
    return queries.QuantileAdaptiveClipSumQuery(0.2, 1.5, 0.5, 0.4, 1.0, 4)


@keras.saving.register_keras_serializable(package="tests")
def tree():
    return queries.RestartQuery(
        queries.TreeResidualSumQuery.build_l2_gaussian_query(0.5, 4.0, support.SPECS),
        queries.PeriodicRoundRestartIndicator(5),
    )


@pytest.mark.parametrize(("make", "sampling"), [(quantile, "poisson"), (tree, "shuffle")])
def test_a_loaded_model_goes_on_with_norm_state_and_ledger(make, sampling, tmp_path):
    model = support.compiled(make, server=keras.optimizers.SGD(0.5, momentum=0.9))
    model.fit(support.population(), 4, epochs=2, verbose=0, sampling=sampling)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.query_metrics == model.optimizer.query_metrics
    assert loaded.privacy_ledger == model.privacy_ledger
    np.testing.assert_array_equal(support.weights(loaded), support.weights(model))
    for one in (model, loaded):
        one.fit(support.population(), 4, epochs=2, verbose=0, sampling=sampling)
    # An adaptive norm changes the last digits of the noise multiplier.
    epsilon = model.privacy_spent(DELTA).epsilon
    assert loaded.privacy_spent(DELTA).epsilon == pytest.approx(epsilon, rel=1e-5)
    assert loaded.privacy_ledger.steps == 4 * support.NUM_CLIENTS // 4
    # Those digits may open another row.
    releases = sum(row.releases for row in loaded.privacy_ledger)
    assert releases == (4 if sampling == "shuffle" else loaded.privacy_ledger.steps)


def test_the_noise_of_a_tree_is_not_in_the_file(tmp_path):
    model = trained(tree, sampling="shuffle")
    noise = model.optimizer.aggregation.state.inner_query_state.previous_tree_noise[0].numpy()
    assert np.any(noise != 0.0)
    model.save_weights(tmp_path / "model.weights.h5")
    found = {}
    with h5py.File(tmp_path / "model.weights.h5") as file:
        file.visititems(lambda name, value: found.update({name: np.ravel(value)}))
    assert any("indicator_state" in name for name in found)
    assert not any("tree" in name for name in found)
    assert not any(noise.ravel()[0] in value for value in found.values())


def test_a_query_that_no_function_made_is_compiled_anew(tmp_path):
    model = trained(quantile())
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="compile=False"):
        keras.models.load_model(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert loaded.privacy_spent(DELTA) == model.privacy_spent(DELTA)
    loaded.compile(optimizer=queries.QueryOptimizer("sgd", quantile()), loss=support.LOSS)
    loaded.fit(support.population(), 4, epochs=1, verbose=0)
    assert loaded.privacy_ledger.steps == 2 * model.privacy_ledger.steps


def test_the_state_of_another_query_is_refused(tmp_path):
    model = trained(quantile())
    model.save_weights(tmp_path / "model.weights.h5")
    other = trained(sums())
    before = other.optimizer.inner_optimizer.iterations.numpy()
    with pytest.raises(ValueError, match="saved state is not that of a `GaussianSumQuery`"):
        other.load_weights(tmp_path / "model.weights.h5")
    assert other.optimizer.inner_optimizer.iterations.numpy() == before


def test_a_config_of_version_0_1_is_read():
    config = queries.QueryOptimizer("sgd", quantile).get_config()
    assert queries.QueryOptimizer.from_config({**config, "clip_norm": None}).get_config() == config


def cumulative():
    return queries.TreeCumulativeSumQuery.build_l2_gaussian_query(1.0, 1.0, support.SPECS)


def adaptive_tree():
    return queries.QAdaClipTreeResSumQuery(0.3, 4.0, support.SPECS, 0.5, 0.4, 3.0, 4)


def nested():
    return queries.NestedQuery([sums(), queries.NormalizedQuery(sums(), 2.0)])


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ("gaussian", TypeError, "must be a `DPQuery`"),
        (cumulative, ValueError, "Use a `TreeResidualSumQuery`"),
        (adaptive_tree, ValueError, "`QAdaClipTreeResSumQuery` is not supported"),
        (nested, ValueError, "all be means"),
    ],
)
def test_queries_that_cannot_aggregate_rounds_are_refused(query, error, message):
    with pytest.raises(error, match=message):
        queries.QueryOptimizer("sgd", query)


def test_settings_that_do_not_go_with_a_query():
    weighting = ka.federated.ByExamples(4, 4)
    options = {"jit_compile": True, "cohort_noise_size": 100, "client_weighting": weighting}
    for name, value in options.items():
        with pytest.raises(ValueError, match=f"`{name}` does not go with"):
            support.compiled(sums(), **{name: value})


def test_only_rounds_of_a_federated_model_are_taken():
    optimizer = queries.QueryOptimizer("sgd", sums())
    with pytest.raises(ValueError, match="DPOptimizer"):
        ka.PrivateSequential(support.stack()).compile(optimizer=optimizer, loss=support.LOSS)
    plain = keras.Sequential(support.stack())
    plain.compile(optimizer=optimizer, loss=support.LOSS)
    with pytest.raises(ValueError, match="FederatedModel"):
        plain.fit(*support.population().all_examples(), verbose=0)
    model = trained(sums())
    gradients = [tf.zeros(shape) for shape in support.SHAPES]
    with pytest.raises(ValueError, match="plain gradients"):
        model.optimizer.apply(gradients, model.trainable_variables)
    with pytest.raises(AttributeError):
        model.optimizer.noise_multiplier = 3.0


def test_results_unlike_a_record_are_refused():
    class First(queries.GaussianSumQuery):
        def get_noised_result(self, sample_state, global_state):
            result, state, event = super().get_noised_result(sample_state, global_state)
            return result[0], state, event

    model = support.compiled(First(1.0, 1.0))
    before = support.weights(model)
    with pytest.raises(ValueError, match="like a record"):
        model.fit(support.population(), 4, epochs=1, verbose=0)
    np.testing.assert_array_equal(support.weights(model), before)
