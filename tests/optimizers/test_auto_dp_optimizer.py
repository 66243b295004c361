"""AutoDPOptimizer: the plan, the end at the target, and its bookkeeping."""

import math

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models.helpers import warns
from tests.optimizers.planning import (
    DELTA,
    AutoDPOptimizer,
    Dies,
    N,
    assert_spent,
    compile_with,
    compiled,
    data,
    fit,
    plan_of,
    spent,
)


@pytest.mark.parametrize(
    ("target", "sampling", "inner"), [(0.5, "poisson", None), (8.0, "shuffle", "adam")]
)
def test_all_planned_steps_run_and_end_at_the_target(target, sampling, inner):
    model = compiled(AutoDPOptimizer(target, optimizer=inner))
    history = fit(model, epochs=3, sampling=sampling)
    row = model.privacy_ledger.current
    assert row.noise_multiplier == model.optimizer.noise_multiplier
    assert row.steps == 3 * math.ceil(N / row.expected_batch_size)
    assert history.ended_early is None
    assert history.history["epsilon"][-1] == pytest.approx(spent(model))
    assert_spent(model, target)
    if inner is not None:
        assert float(model.optimizer.learning_rate) == pytest.approx(0.001)


@pytest.mark.parametrize("max_batch_size", [None, "auto"])
def test_a_data_set_brings_its_batch_size(max_batch_size):
    model = compiled(AutoDPOptimizer(2.0, delta=1e-4))
    options = {"expected_batch_size": 40, "max_batch_size": max_batch_size}
    model.fit(ka.sampling.PoissonDataset(*data(), **options), epochs=2, verbose=0)
    row = model.privacy_ledger.current
    assert row.expected_batch_size == 40
    assert (row.max_batch_size > 0) is (max_batch_size is not None)
    assert_spent(model, 2.0, 1e-4)


@pytest.mark.parametrize(
    ("num_examples", "epochs", "steps_per_epoch", "expected"),
    [
        (60_000, 20, None, round(math.sqrt(3 * 60_000 * 20))),
        (60_000, 80, None, 2 * round(math.sqrt(3 * 60_000 * 20))),
        (1_000, 15, None, 100),  # 150 steps
        (60_000, 5, 10, 6_000),
        (100, 1, None, 16),
        (10, 1, None, 10),
        (100, 100_000, None, 100),
    ],
)
def test_the_planned_batch_size(num_examples, epochs, steps_per_epoch, expected):
    found = AutoDPOptimizer(1.0).default_batch_size(num_examples, epochs, steps_per_epoch)
    assert found == pytest.approx(expected, abs=1)


def test_a_spent_budget_is_refused_and_nothing_is_trained():
    model = compiled(AutoDPOptimizer(1.0))
    fit(model)
    weights, ledger = model.get_weights(), model.privacy_ledger
    with pytest.raises(ValueError, match=r"The budget is spent: epsilon is 0\.999"):
        fit(model)
    with pytest.raises(ValueError, match="Train with `fit`"):
        model.train_on_batch(*data(8))
    assert model.privacy_ledger == ledger
    np.testing.assert_equal(model.get_weights(), weights)


def test_a_larger_target_pays_for_what_was_spent_under_another_optimizer():
    model = compiled(ka.optimizers.DPOptimizer("sgd", noise_multiplier=2.0))
    fit(model, batch_size=30, epochs=2)
    target = spent(model) + 1.0
    fit(compile_with(model, AutoDPOptimizer(target)), epochs=2)
    assert_spent(model, target)


def test_a_part_of_the_plan_that_is_given_is_used_and_the_target_still_ends_training(capsys):
    plan = {"noise_multiplier": 0.8, "batch_size": 50, "clipping": "quantile", "noise_walk": 0.5}
    model = compiled(AutoDPOptimizer(3.0, plan=plan))
    history = fit(model, epochs=100, verbose=2)
    (row,) = model.privacy_ledger
    assert (row.noise_multiplier, row.expected_batch_size) == (np.float32(0.8), 50)
    assert isinstance(model.optimizer.clipping, ka.clipping.QuantileClipping)
    assert history.ended_early is not None
    # The steps that the given noise allows are those that are planned.
    assert plan_of(model) == (0, row.steps, row.steps)
    assert row.steps < 100 * 4
    assert spent(model) <= 3.0
    words = "given: noise multiplier, batch size, clipping, noise walk"
    assert words in capsys.readouterr().out
    assert words in str(model.privacy_report(DELTA, ()))
    # The batch size of `fit` goes before that of the plan.
    model.optimizer.target_epsilon = 9.0
    fit(model, batch_size=20)
    assert model.privacy_ledger.current.expected_batch_size == 20


@pytest.mark.parametrize("how", ["backup", "file", "same model"])
def test_an_interrupted_run_goes_on_with_its_plan_and_the_budget_that_is_left(how, tmp_path):
    backup = [keras.callbacks.BackupAndRestore(tmp_path / "backup")] if how == "backup" else []
    model = compiled(AutoDPOptimizer(2.0, seed=1))
    with pytest.raises(KeyboardInterrupt):
        fit(model, epochs=4, callbacks=[*backup, Dies(2)])
    assert 0.0 < spent(model) < 2.0
    if how == "backup":
        model = compiled(AutoDPOptimizer(2.0, seed=1))
    if how == "file":
        config = model.optimizer.get_config()
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras")
        assert model.optimizer.get_config() == config
        assert model.optimizer.noise_multiplier is None
    fit(model, epochs=4, callbacks=backup, initial_epoch=2 if how == "file" else 0)
    assert_spent(model, 2.0)
    if how != "same model":
        steps = 4 * math.ceil(N / model.privacy_ledger.current.expected_batch_size)
        assert plan_of(model) == (0, steps, steps)
        assert model.privacy_ledger.steps == steps + 1


def test_a_fit_of_no_epoch_does_not_go_back_to_earlier_ones(tmp_path):
    """No noise was planned for them."""
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fit(compiled(AutoDPOptimizer(2.0)), epochs=4, callbacks=[backup, Dies(2)])
    model = compiled(AutoDPOptimizer(2.0))
    with pytest.raises(ValueError, match="Give an `initial_epoch` below `epochs`"):
        fit(model, epochs=4, initial_epoch=4, callbacks=[backup])
    assert spent(model) <= 2.0


def test_steps_are_planned_after_callbacks_have_loaded_another_run(tmp_path):
    finished = compiled(AutoDPOptimizer(0.5))
    fit(finished)
    finished.save_weights(tmp_path / "finished.weights.h5")

    class Loads(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.load_weights(tmp_path / "finished.weights.h5")
            self.start = self.model.get_weights()

    model, loads = compiled(AutoDPOptimizer(2.0)), Loads()
    fit(model, epochs=3, batch_size=20, callbacks=[loads])
    assert spent(model) <= 2.0
    moved = [np.abs(a - b).max() for a, b in zip(loads.start, model.get_weights(), strict=True)]
    assert min(moved) > 1e-3
    first, planned, done = plan_of(model)
    assert first == finished.privacy_ledger.current.steps
    assert done - first <= planned


def test_no_epoch_is_no_error():
    model = compiled(AutoDPOptimizer(1.0))
    fit(model, epochs=0)
    assert model.privacy_ledger.steps == 0
    fit(model)
    steps = model.privacy_ledger.steps
    fit(model, initial_epoch=1)
    assert model.privacy_ledger.steps == steps


def test_what_has_no_plan_is_refused():
    model = compiled(AutoDPOptimizer(1.0))
    endless = (data(8) for _ in iter(int, 1))
    for train, message in (
        (lambda: fit(model, 1, batch_size=1), "Give `delta`"),
        (lambda: fit(model, steps_per_epoch=0), "`steps_per_epoch` must be at least 1"),
        (lambda: model.train_on_batch(*data(8)), "Train with `fit`"),
        (lambda: model.fit(endless, num_examples=N), "the number of steps cannot be known"),
    ):
        with pytest.raises(ValueError, match=message):
            train()
    assert model.privacy_ledger.steps == 0


def test_a_federated_model_refuses():
    model = ka.federate(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))
    optimizer = AutoDPOptimizer(1.0)
    for given in (optimizer, keras.optimizers.serialize(optimizer)):
        with pytest.raises(ValueError, match="plans training on single examples"):
            model.compile(given, client_optimizer="sgd", loss="mse")
    assert not model.compiled
    fit(compiled(optimizer), 20)


def test_a_walk_that_was_set_stays_and_is_saved(tmp_path):
    optimizer = AutoDPOptimizer(1.0)
    for schedule in (keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9), lambda: 0.1):
        with pytest.raises(ValueError, match="`PlannedMomentum` takes no schedule"):
            optimizer.learning_rate = schedule
    assert AutoDPOptimizer.from_config(optimizer.get_config()).plan == {}
    optimizer.learning_rate = 0.5
    model = compiled(optimizer)
    seen = []

    def set_rate(epoch, logs):
        seen.append(AutoDPOptimizer.from_config(optimizer.get_config()).plan)
        optimizer.learning_rate = 0.1 * (1 - epoch)

    fit(model, epochs=2, callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=set_rate)])
    assert seen[0] == {"noise_walk": 0.5}
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").optimizer.plan == {"noise_walk": 0.0}


@pytest.mark.parametrize(
    ("clipping", "name"),
    [
        *((None, "sample_weight"), ("automatic", "class_weight"), ("quantile", "sample_weight")),
        *((ka.clipping.PSAC(), "class_weight"), (ka.clipping.MeanNormClipping(), "class_weight")),
    ],
)
def test_weights_that_a_norm_of_its_own_undoes_are_warned_of(clipping, name):
    weights = {"class_weight": {0: 1.0, 1: 9.0}, "sample_weight": np.linspace(0, 1, N)}
    model = compiled(AutoDPOptimizer(1.0, plan=clipping and {"clipping": clipping}))
    with warns("whatever the weight of an example or its class"):
        fit(model, **{name: weights[name]})


def test_weights_of_classes_choose_the_norm_and_count(recwarn):
    x = np.random.default_rng(0).normal(size=(3_000, 6)).astype("float32")
    score = x[:, :3].sum(axis=1)
    y = (score > np.quantile(score, 0.95)).astype("int32")
    keras.utils.set_random_seed(0)
    model = ka.PrivateSequential([keras.Input((6,)), keras.layers.Dense(2)])
    compile_with(model, AutoDPOptimizer(3.0))
    norms, weights = [], [{0: 0.5, 1: 10.0}, None, {0: 0.25, 1: 5.0}]
    recall = []
    for number, each in enumerate(weights):
        model.optimizer.target_epsilon = 3.0 + 2.0 * number
        model.fit(x, y, epochs=8, verbose=0, class_weight=each)
        recall.append((model.predict(x, verbose=0).argmax(axis=1) == 1)[y == 1].mean())
        # The step that ran is that of the strategy: its norm reaches the noise.
        norms.append(model.optimizer.clip_norm)
        assert type(model.optimizer.clipping).__name__ == (
            "FixedClipping" if each else "AutomaticClipping"
        )
    assert norms == [10.0, 1.0, 5.0]
    assert min(recall[0], recall[2]) > recall[1] + 0.1
    assert not [each for each in recwarn if issubclass(each.category, UserWarning)]
