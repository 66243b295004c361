"""What rounds cost. `tests/soundness/test_rules_abstention.py` bounds what one client does."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from keras_adaclip.federated import ClientData
from keras_adaclip.federated.cohorts import CohortBatches
from tests.federated import oracle
from tests.federated.support import clients_of, compiled, mlp, weights

NUM_CLIENTS, SIZE, DELTA = 12, 5, 1e-3
CLIENTS = clients_of((SIZE,) * NUM_CLIENTS)


def private(stack=None, **options):
    return compiled(stack, **{"clipping": 0.3, "client": 0.5, "client_batch_size": 2, **options})


def test_no_weight_lets_a_client_contribute_more(monkeypatch):
    """Weights beyond one, as no weighting makes them, count as one."""
    take = CohortBatches.take

    def heavy(cohorts, positions, generator):
        return {**(batch := take(cohorts, positions, generator)), "weight": 50 * batch["weight"]}

    monkeypatch.setattr(CohortBatches, "take", heavy)
    model = private(client_weighting=ka.federated.ByExamples(limit=5, mean=5.0))
    before = weights(model)
    model.fit(CLIENTS, NUM_CLIENTS, epochs=1, verbose=0)
    assert np.linalg.norm(weights(model) - before) <= 0.3 * (1 + 1e-4)


@pytest.mark.parametrize("is_empty", [False, True])
def test_the_noise_is_drawn_once_a_round_and_divided_by_the_expected_cohort(is_empty, monkeypatch):
    """Clients without a gradient, or no client at all, leave nothing but noise."""
    if is_empty:
        oracle.draw_nobody(monkeypatch)
    noised = {"noise_multiplier": 1.5, "clipping": 0.7, "microbatch_size": 2}
    stack = [keras.Input((4,)), layers.Dense(50, use_bias=False)]
    model = private(stack, loss=lambda _, y_pred: 0.0 * keras.ops.sum(y_pred, -1), **noised)
    x, _ = CLIENTS.all_examples()
    clients = ClientData.from_arrays(x, np.zeros((len(x), 50)), np.arange(len(x)) % NUM_CLIENTS)
    seen = [weights(model)]
    for _ in range(4):
        model.fit(clients, 4, epochs=1, steps_per_epoch=4, verbose=0)
        seen.append(weights(model))
    moves = np.diff(seen, axis=0)
    # Four independent rounds with 1.5 * 0.7 / 4 each; 800 numbers.
    expected = 2 * 1.5 * 0.7 / 4
    assert np.std(moves) == pytest.approx(expected, rel=5 / np.sqrt(2 * 800))
    assert model.privacy_ledger.steps == 16


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_epsilon_is_that_of_the_rounds_as_they_were_drawn(sampling):
    model = private(noise_multiplier=3.0)
    callback = ka.callbacks.PrivacyCallback(delta=DELTA)
    arguments = {"epochs": 2, "callbacks": [callback], "sampling": sampling}
    history = model.fit(CLIENTS, 4, verbose=0, **arguments).history
    plan = {"steps": 6, "delta": DELTA, "sampling": sampling}
    expected = ka.accounting.compute_epsilon(3.0, NUM_CLIENTS, 4, **plan)
    spent = model.privacy_spent(DELTA)
    assert history["epsilon"][-1] == spent.epsilon == pytest.approx(expected, rel=1e-6)
    if sampling == "fixed":
        assert (spent.neighboring_relation, spent.accountant) == ("replace_one", "rdp")
        assert "one unit is replaced by another" in str(spent)


def test_a_shuffled_epoch_is_one_release():
    model = private(noise_multiplier=3.0)
    model.fit(CLIENTS, 5, epochs=2, verbose=0, sampling="shuffle")
    assert model.privacy_ledger.steps == 6
    (row,) = [row for row in model.privacy_ledger if row.steps]
    assert row.releases == 2
    # A pass that was cut short lends its other rounds to no other one.
    model.fit(CLIENTS, 5, epochs=3, steps_per_epoch=2, verbose=0, sampling="shuffle")
    assert sum(row.releases for row in model.privacy_ledger) == 5
    with pytest.raises(ValueError, match="`steps_per_epoch` must lie between 1 and 3"):
        model.fit(CLIENTS, 5, epochs=1, steps_per_epoch=4, verbose=0, sampling="shuffle")
    assert model.privacy_ledger.steps == 12


def test_the_noise_of_a_large_cohort_in_a_small_one():
    model = private(noise_multiplier=3.0, cohort_noise_size=40)
    model.fit(CLIENTS, 4, epochs=1, verbose=0)
    (row,) = [row for row in model.privacy_ledger if row.steps]
    # In the mean: 3 / 40 as well as 0.3 / 4. The ledger counts what ran.
    assert row.noise_multiplier == pytest.approx(0.3, rel=1e-6)
    assert model.optimizer.noise_multiplier == 3.0
    assert "a simulation of cohorts of 40" in model.privacy_report(DELTA, group_sizes=()).clipping
    with pytest.raises(ValueError, match="`cohort_noise_size` must be at least 4"):
        private(cohort_noise_size=3).fit(CLIENTS, 4, verbose=0)


def test_a_saved_model_goes_on(tmp_path):
    model = private(
        noise_multiplier=3.0,
        clipping=ka.clipping.QuantileClipping(0.5, initial_clip_norm=0.2, count_noise_stddev=4.0),
        client_weighting=ka.federated.ByExamples(limit=5, mean=4),
        local_epochs=2,
        proximal_strength=0.1,
    )
    model.fit(CLIENTS, 4, epochs=1, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.federated_settings.get_config() == model.federated_settings.get_config()
    assert loaded.optimizer.clip_norm == model.optimizer.clip_norm
    np.testing.assert_array_equal(weights(loaded), weights(model))
    loaded.fit(CLIENTS, 4, epochs=1, verbose=0)
    expected = ka.accounting.compute_epsilon(3.0, NUM_CLIENTS, 4, steps=6, delta=DELTA)
    assert loaded.privacy_spent(DELTA).epsilon == pytest.approx(expected, rel=1e-6)


def test_dropout_differs_between_clients_steps_and_rounds():
    """Inputs of ones through dropout into a sum: the bias-free weights show the masks."""
    stack = [keras.Input((16,)), layers.Dropout(0.5), layers.Dense(1, use_bias=False)]
    model = private(stack, clipping=1e6, loss="mean_absolute_error")
    x = np.ones((24, 16), "float32")
    clients = ClientData.from_arrays(x, np.full((24, 1), 1e6), np.repeat(np.arange(12), 2))
    seen = [weights(model)]
    for _ in range(2):
        model.fit(clients, 12, epochs=1, steps_per_epoch=1, verbose=0)
        seen.append(weights(model))
    # Each of 24 rows moves a coordinate with probability 1/2: binomial, if masks are independent;
    # with one mask for all it would be all or nothing.
    first, second = np.diff(seen, axis=0)
    assert len(np.unique(np.round([first, second], 3))) > 4
    assert not np.allclose(first, second)
    assert min(*first, *second) / np.max(first + second) * 2 > 0.1


PRIVATE = ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"client_weighting": "examples"}, "limit bounds the sensitivity"),
        ({"proximal_strength": -1.0}, "proximal_strength"),
        ({"client_optimizer": keras.optimizers.SGD(gradient_accumulation_steps=2)}, "accumulation"),
        ({"client_optimizer": keras.optimizers.SGD(use_ema=True)}, "use_ema"),
        ({"client_optimizer": PRIVATE}, "plain Keras optimizer"),
        ({"client_optimizer": None}, "its name or its config. Received: None"),
        ({"optimizer": "sgd"}, "DPOptimizer"),
    ],
)
def test_wrong_arguments_of_compile(arguments, message):
    model = ka.federated.FederatedSequential(mlp())
    with pytest.raises(ValueError, match=message):
        model.compile(**{"optimizer": PRIVATE, "loss": "mse", **arguments})


def test_batches_of_examples_and_wrong_cohorts_are_refused():
    model = private(noise_multiplier=1.0)
    with pytest.raises(NotImplementedError, match="does not say to which client"):
        model.train_on_batch(*CLIENTS.all_examples())
    for fit, message in (
        ({"cohort_size": 13}, "between 1 and 12"),
        ({"sampling": "all"}, "'fixed'"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(CLIENTS, **{"cohort_size": 4, **fit}, verbose=0)
    assert model.privacy_ledger.steps == 0


@pytest.mark.parametrize("chunk", [None, 1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_broken_client_takes_nobody_with_it(value, chunk):
    """Its rows stand beside those of others in memory, first of all, and their batches have room.

    The sum of clipped contributions moves by one client, and the count of the quantile by one.
    """
    x, y = CLIENTS.all_examples()
    x, y, ids = x[:15], y[:15], np.repeat([0, 1, 2, 3, 4], [7, 1, 3, 1, 3])
    found = []
    for is_present in (True, False):
        kept = ids > 0 if not is_present else ids >= 0
        rows = np.where((ids == 0)[:, None], np.float32(value), x)
        clients = ClientData.from_arrays(rows[kept], y[kept], ids[kept], population=range(5))
        clipping = ka.clipping.QuantileClipping(initial_clip_norm=0.01, count_noise_stddev=4.0)
        model = private(clipping=clipping, microbatch_size=chunk)
        before = weights(model)
        model.fit(clients, 5, epochs=1, sampling="fixed", verbose=0)
        found.append((weights(model) - before, float(model.optimizer.clip_norm)))
    (moved, norm), (alone, other) = found
    assert np.linalg.norm(alone) > 0.01 / 5
    assert np.linalg.norm(moved - alone) <= 0.01 / 5 * (1 + 1e-4)
    assert abs(np.log(norm / other)) <= 0.2 * 0.5 / 5 * (1 + 1e-4)
