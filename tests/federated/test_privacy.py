"""What rounds cost, and that one client cannot do more than its bounded share."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.federated import ClientData, FederatedSequential
from keras_adaclip.federated.cohorts import CohortBatches

NUM_CLIENTS, SIZE = 12, 5
LOSS = {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}


def arrays(seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(NUM_CLIENTS * SIZE, 4)).astype("float32")
    y = generator.integers(0, 3, len(x))
    return x, y, np.repeat(np.arange(NUM_CLIENTS), SIZE)


def compiled(clipping=0.3, noise_multiplier=0.0, seed=1, stack=None, chunk=None, **options):
    keras.utils.set_random_seed(0)
    if stack is None:
        stack = [keras.Input((4,)), layers.Dense(4, activation="tanh"), layers.Dense(3)]
    model = FederatedSequential(stack)
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0),
            clipping=clipping,
            noise_multiplier=noise_multiplier,
            microbatch_size=chunk,
            seed=seed,
        ),
        client_optimizer=keras.optimizers.SGD(0.5),
        client_batch_size=2,
        **{**LOSS, **options},
    )
    return model


def weights(model):
    return np.concatenate(
        [ops.convert_to_numpy(each).ravel() for each in model.trainable_variables]
    )


@pytest.mark.parametrize(
    ("change", "chunk"), [("other", 1), ("huge", None), ("nan", None), ("infinite", 1)]
)
def test_all_data_of_one_client_move_its_own_bounded_contribution(change, chunk):
    found = []
    for changed in (False, True):
        x, y, ids = arrays()
        if changed:
            of_client = ids == 3
            x[of_client] = {
                "other": arrays(5)[0][of_client],
                "huge": 1e6,
                "nan": np.nan,
                "infinite": np.inf,
            }[change]
        model = compiled(chunk=chunk)
        before = weights(model)
        # Everyone takes part, so that the two differ by this client alone.
        model.fit(ClientData.from_arrays(x, y, ids), NUM_CLIENTS, epochs=1, verbose=0)
        assert np.all(np.isfinite(weights(model)))
        found.append(weights(model) - before)
    moved = NUM_CLIENTS * np.linalg.norm(found[1] - found[0])
    # Replaced: twice the norm. A client that is not finite adds nothing: once.
    bound = 0.3 * (1.0 if change in ("nan", "infinite") else 2.0)
    assert 1e-3 < moved <= bound * (1 + 1e-4)


def test_no_client_at_all_is_a_round_of_noise(monkeypatch):
    def empty(cohorts, index):
        return cohorts.take(np.array([], int), np.random.default_rng(0))

    monkeypatch.setattr(CohortBatches, "__getitem__", empty)
    model = compiled(noise_multiplier=2.0)
    before = weights(model)
    model.fit(ClientData.from_arrays(*arrays()), 6, epochs=1, steps_per_epoch=1, verbose=0)
    moved = weights(model) - before
    # 2 * 0.3 / 6 a coordinate, 35 of them: within five standard errors.
    assert np.std(moved) == pytest.approx(0.1, rel=5 / np.sqrt(2 * len(moved)))
    assert model.privacy_ledger.steps == 1


def test_the_noise_is_drawn_once_a_round_and_divided_by_the_expected_cohort():
    """Clients without a gradient leave nothing but noise."""
    model = compiled(
        noise_multiplier=1.5,
        clipping=0.7,
        chunk=2,
        stack=[keras.Input((4,)), layers.Dense(3, use_bias=False), layers.Lambda(lambda x: 0 * x)],
        loss="mse",
    )
    x, _, ids = arrays()
    clients = ClientData.from_arrays(x, np.zeros((len(x), 3)), ids)
    moves = []
    for _ in range(30):
        before = weights(model)
        model.fit(clients, 4, epochs=1, steps_per_epoch=4, verbose=0)
        moves.append(weights(model) - before)
    # Four independent rounds with 1.5 * 0.7 / 4 each; 360 numbers.
    expected = 2 * 1.5 * 0.7 / 4
    assert np.std(moves) == pytest.approx(expected, rel=5 / np.sqrt(2 * 360))


def test_epsilon_is_that_of_poisson_sampled_clients():
    model = compiled(noise_multiplier=3.0)
    callback = ka.callbacks.PrivacyCallback(delta=1e-3)
    history = model.fit(
        ClientData.from_arrays(*arrays()), 4, epochs=2, verbose=0, callbacks=[callback]
    ).history
    expected = ka.accounting.compute_epsilon(3.0, NUM_CLIENTS, 4, steps=6, delta=1e-3)
    assert history["epsilon"][-1] == pytest.approx(expected, rel=1e-6)
    assert model.privacy_spent(1e-3).epsilon == history["epsilon"][-1]


def test_a_fixed_cohort_is_accounted_for_replacing_a_client():
    model = compiled(noise_multiplier=3.0)
    clients = ClientData.from_arrays(*arrays())
    callback = ka.callbacks.PrivacyCallback(delta=1e-3)
    history = model.fit(
        clients, 4, epochs=2, verbose=0, callbacks=[callback], sampling="fixed"
    ).history
    plan = {"steps": 6, "delta": 1e-3, "sampling": "fixed"}
    expected = ka.accounting.compute_epsilon(3.0, NUM_CLIENTS, 4, **plan)
    spent = model.privacy_spent(1e-3)
    assert history["epsilon"][-1] == spent.epsilon == pytest.approx(expected, rel=1e-6)
    assert (spent.neighboring_relation, spent.accountant) == ("replace_one", "rdp")
    assert "one unit is replaced by another" in str(spent)


def test_a_shuffled_epoch_is_one_release():
    model = compiled(noise_multiplier=3.0)
    clients = ClientData.from_arrays(*arrays())
    model.fit(clients, 5, epochs=2, verbose=0, sampling="shuffle")
    assert model.privacy_ledger.steps == 6
    (row,) = [row for row in model.privacy_ledger if row.steps]
    assert row.releases == 2
    # A pass that was cut short lends its other rounds to no other one.
    model.fit(clients, 5, epochs=3, steps_per_epoch=2, verbose=0, sampling="shuffle")
    assert sum(row.releases for row in model.privacy_ledger) == 5
    steps = model.privacy_ledger.steps
    with pytest.raises(ValueError, match="`steps_per_epoch` must lie between 1 and 3"):
        model.fit(clients, 5, epochs=1, steps_per_epoch=4, verbose=0, sampling="shuffle")
    assert model.privacy_ledger.steps == steps


def test_the_noise_of_a_large_cohort_in_a_small_one():
    model = compiled(noise_multiplier=3.0, cohort_noise_size=40)
    model.fit(ClientData.from_arrays(*arrays()), 4, epochs=1, verbose=0)
    (row,) = [row for row in model.privacy_ledger if row.steps]
    # In the mean: 3 / 40 as well as 0.3 / 4. What ran is what is counted.
    assert row.noise_multiplier == pytest.approx(0.3, rel=1e-6)
    assert model.optimizer.noise_multiplier == 3.0
    assert "a simulation of cohorts of 40" in model.privacy_report(1e-3, group_sizes=()).clipping
    with pytest.raises(ValueError, match="`cohort_noise_size` must be at least 4"):
        compiled(cohort_noise_size=3).fit(ClientData.from_arrays(*arrays()), 4, verbose=0)


def test_no_weight_lets_a_client_contribute_more(monkeypatch):
    """Weights beyond one, as no weighting makes them, count as one."""
    take = CohortBatches.take

    def heavy(cohorts, positions, generator):
        return {**(batch := take(cohorts, positions, generator)), "weight": 50 * batch["weight"]}

    monkeypatch.setattr(CohortBatches, "take", heavy)
    model = compiled(client_weighting=ka.federated.ByExamples(limit=5, mean=5.0))
    before = weights(model)
    model.fit(ClientData.from_arrays(*arrays()), NUM_CLIENTS, epochs=1, verbose=0)
    assert np.linalg.norm(weights(model) - before) <= 0.3 * (1 + 1e-4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"client_weighting": "examples"}, ValueError, "limit bounds the sensitivity"),
        ({"local_epochs": 0}, ValueError, "local_epochs"),
        ({"client_batch_size": 2.5}, TypeError, "client_batch_size"),
        ({"proximal_strength": -1.0}, ValueError, "proximal_strength"),
        ({"client_optimizer": "none"}, ValueError, "none"),
        (
            {"client_optimizer": keras.optimizers.SGD(gradient_accumulation_steps=2)},
            ValueError,
            "gradient_accumulation_steps",
        ),
        (
            {"client_optimizer": ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0)},
            ValueError,
            "plain Keras optimizer",
        ),
        ({"optimizer": "sgd"}, ValueError, "DPOptimizer"),
    ],
)
def test_wrong_arguments_of_compile(arguments, error, message):
    model = FederatedSequential([keras.Input((4,)), layers.Dense(3)])
    given = {"optimizer": ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0), **arguments}
    with pytest.raises(error, match=message):
        model.compile(**given, **LOSS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cohort_size": NUM_CLIENTS + 1}, "`cohort_size` must lie between 1 and 12"),
        ({"cohort_size": 0}, "`cohort_size` must lie between 1 and 12"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
        ({"sampling": "all"}, "one of 'poisson', 'fixed', 'shuffle'"),
    ],
)
def test_wrong_arguments_of_fit(arguments, message):
    model = compiled(noise_multiplier=1.0)
    with pytest.raises(ValueError, match=message):
        model.fit(ClientData.from_arrays(*arrays()), **{"cohort_size": 4, **arguments}, verbose=0)
    assert model.privacy_ledger.steps == 0


def test_a_batch_of_examples_is_refused():
    x, y, _ = arrays()
    with pytest.raises(NotImplementedError, match="does not say to which client"):
        compiled().train_on_batch(x, y)


def test_layers_that_keep_averages_of_the_data_are_refused():
    stack = [keras.Input((4,)), layers.BatchNormalization(), layers.Dense(3)]
    model = compiled(stack=stack)
    with pytest.raises(ValueError, match=r"batch_normalization.*GroupNormalization"):
        model.fit(ClientData.from_arrays(*arrays()), 4, verbose=0)


def test_a_saved_model_goes_on(tmp_path):
    clients = ClientData.from_arrays(*arrays())
    clipping = ka.clipping.QuantileClipping(0.5, initial_clip_norm=0.2, count_noise_stddev=4.0)
    model = compiled(noise_multiplier=3.0, clipping=clipping, local_epochs=2, proximal_strength=0.1)
    model.fit(clients, 4, epochs=1, verbose=0)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    assert loaded.federated_settings.get_config() == model.federated_settings.get_config()
    assert loaded.optimizer.clip_norm == model.optimizer.clip_norm
    np.testing.assert_array_equal(weights(loaded), weights(model))
    loaded.fit(clients, 4, epochs=1, verbose=0)
    expected = ka.accounting.compute_epsilon(3.0, NUM_CLIENTS, 4, steps=6, delta=1e-3)
    assert loaded.privacy_spent(1e-3).epsilon == pytest.approx(expected, rel=1e-6)


def test_dropout_differs_between_clients_steps_and_rounds():
    """Inputs of ones through dropout into a sum: the bias-free weights show the masks."""
    stack = [keras.Input((16,)), layers.Dropout(0.5), layers.Dense(1, use_bias=False)]
    model = compiled(clipping=1e6, stack=stack, loss="mean_absolute_error")
    x, ids = np.ones((24, 16), "float32"), np.repeat(np.arange(12), 2)
    clients = ClientData.from_arrays(x, np.full((24, 1), 1e6), ids)
    moves = []
    for _ in range(2):
        before = weights(model)
        model.fit(clients, 12, epochs=1, steps_per_epoch=1, verbose=0)
        moves.append(weights(model) - before)
    # A coordinate is moved by each of 24 rows, kept with probability 1/2: binomial, if masks are
    # independent; with one mask for all it would be all or nothing.
    counts = np.concatenate(moves) / np.max(moves[0] + moves[1]) * 2
    assert len(np.unique(np.round(np.concatenate(moves), 3))) > 4
    assert not np.allclose(moves[0], moves[1])
    assert counts.min() > 0.1
