"""`DPOptimizer(target_epsilon=...)`: `fit` plans the noise of rows and of clients."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.federated import ClientData, ServerRounds

X = np.random.default_rng(0).normal(size=(120, 3)).astype("float32")
Y = X[:, :1].copy()


def rows(optimizer):
    """A compiled private model."""
    model = ka.PrivateSequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def clients(optimizer, **settings):
    """A compiled federated model."""
    model = ka.federate(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(optimizer, loss="mse", **settings)
    return model


CLIENTS = ClientData.from_arrays(X, Y, np.arange(120) // 3)


def optimizer(epsilon=2.0, clipping=1.0, **options):
    return ka.optimizers.DPOptimizer("sgd", clipping, target_epsilon=epsilon, **options)


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_fit_on_rows_ends_at_the_target(sampling):
    model = rows(optimizer(delta=1e-3))
    model.fit(X, Y, batch_size=12, epochs=3, sampling=sampling, verbose=0)
    assert model.optimizer.ledger.steps == 30
    assert 1.99 < model.privacy_spent(1e-3).epsilon <= 2.0
    assert next(iter(model.privacy_ledger)).noise_multiplier == model.optimizer.noise_multiplier


def test_epochs_that_share_a_pass_are_all_trained():
    model = rows(optimizer(delta=1e-3))
    model.fit(X, Y, batch_size=12, epochs=3, steps_per_epoch=3, sampling="shuffle", verbose=0)
    assert (model.privacy_ledger.steps, model.privacy_ledger.rows[-1].releases) == (9, 1)
    assert 1.99 < model.privacy_spent(1e-3).epsilon <= 2.0


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "shuffle"])
def test_rounds_over_clients_end_at_the_target(sampling, capsys):
    model = clients(optimizer(clipping="quantile" if sampling == "poisson" else 1.0))
    model.fit(CLIENTS, cohort_size=20, epochs=3, sampling=sampling)
    assert "planned for epsilon 2" in capsys.readouterr().out
    assert model.optimizer.ledger.steps == 6
    assert 1.99 < model.privacy_spent(40**-1.1).epsilon <= 2.0


def test_the_noise_of_a_plan_is_the_calibrated_one():
    model = rows(optimizer(delta=1e-3))
    model.fit(X, Y, batch_size=12, epochs=2, verbose=0)
    expected = ka.accounting.calibrate_noise_multiplier(2.0, 1e-3, 120, 12, epochs=2)
    assert model.optimizer.noise_multiplier == pytest.approx(expected, rel=2e-3)


def test_an_earlier_fit_counts_and_a_larger_target_goes_on():
    model = rows(optimizer())
    model.fit(X, Y, batch_size=12, epochs=1, verbose=0)
    with pytest.raises(ValueError, match="budget is spent"):
        model.fit(X, Y, batch_size=12, epochs=1, verbose=0)
    assert model.optimizer.ledger.steps == 10
    model.compile(optimizer(3.0), "mse")
    model.fit(X, Y, batch_size=12, epochs=1, verbose=0)
    assert 2.98 < model.privacy_spent(120**-1.1).epsilon <= 3.0


def test_a_plan_is_saved_as_target_and_not_as_noise(tmp_path):
    model = rows(optimizer(delta=1e-3))
    assert model.optimizer.noise_multiplier is None
    model.fit(X, Y, batch_size=12, epochs=1, verbose=0)
    config = model.optimizer.get_config()
    assert config["noise_multiplier"] is None
    assert (config["target_epsilon"], config["delta"]) == (2.0, 1e-3)
    assert "target_epsilon=2.0" in repr(model.optimizer)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.noise_multiplier is None
    assert loaded.privacy_spent(1e-3) == model.privacy_spent(1e-3)
    with pytest.raises(ValueError, match="budget is spent"):
        loaded.fit(X, Y, batch_size=12, epochs=1, verbose=0)


def test_steps_without_a_plan_are_refused():
    model = rows(optimizer())
    with pytest.raises(ValueError, match="plans a whole `fit`"):
        model.train_on_batch(X[:4], Y[:4])
    model.fit(X, Y, batch_size=12, epochs=1, verbose=0)
    # The plan of the `fit` before is no plan for other steps.
    with pytest.raises(ValueError, match="no plan"):
        model.optimizer.configure(model.optimizer._run_settings)
    model = rows(optimizer())
    model.optimizer.target_epsilon = None  # Training would have no noise.
    with pytest.raises(ValueError, match="no plan"):
        model.fit(X, Y, batch_size=12, verbose=0)
    assert model.optimizer.ledger.steps == 0
    model.optimizer.target_epsilon = 2.0
    with pytest.raises(AttributeError, match="comes from its plan"):
        model.optimizer.noise_multiplier = 0.1


def test_the_plan_of_a_refused_fit_is_no_plan_for_rounds_over_nodes(monkeypatch):
    model = clients(optimizer())

    def refuse(self):
        raise RuntimeError("refused")

    with monkeypatch.context() as patch:
        patch.setattr(type(model), "_include_spending_on_shared_weights", refuse)
        with pytest.raises(RuntimeError, match="refused"):
            model.fit(CLIENTS, cohort_size=20, steps_per_epoch=1, verbose=0)
    rounds = ServerRounds(model, 40, cohort_size=20)
    with pytest.raises(ValueError, match="no plan"), rounds.run(30):
        pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "exactly one"),
        ({"noise_multiplier": 1.0, "target_epsilon": 1.0}, "exactly one"),
        ({"noise_multiplier": 1.0, "delta": 1e-5}, "belongs to `target_epsilon`"),
        ({"target_epsilon": 0.0}, "target_epsilon"),
        ({"target_epsilon": 1.0, "delta": 1.0}, "delta"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        ka.optimizers.DPOptimizer("sgd", **options)


def test_clients_get_no_simulated_cohort_and_no_plan_of_rows():
    with pytest.raises(ValueError, match="Leave one of the two out"):
        clients(optimizer(), cohort_noise_size=100)
    with pytest.raises(ValueError, match="target_epsilon"):
        clients(ka.optimizers.AutoDPOptimizer(3.0))
