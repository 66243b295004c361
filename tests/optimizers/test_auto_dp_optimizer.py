"""AutoDPOptimizer: the plan, the end at the target, its bookkeeping; PlannedMomentum's formula."""

import math

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models.helpers import warns

AutoDPOptimizer = ka.optimizers.AutoDPOptimizer
N, DELTA = 300, 300**-1.1


def data(num_examples=N):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_examples, 4)).astype("float32")
    return x, (x[:, 0] > 0).astype("int32")


def compiled(optimizer, layers=None):
    layers = layers or [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)]
    model = ka.PrivateSequential([keras.Input((4,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def spent(model, delta=DELTA):
    return model.privacy_spent(delta).epsilon


@pytest.mark.parametrize("target", [0.5, 8.0])
@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_all_planned_steps_run_and_end_at_the_target(target, sampling):
    model = compiled(AutoDPOptimizer(target))
    history = model.fit(*data(), epochs=3, sampling=sampling, verbose=0)
    (row,) = model.privacy_ledger
    assert row.noise_multiplier == model.optimizer.noise_multiplier
    assert row.steps == 3 * math.ceil(N / row.expected_batch_size)
    assert history.ended_early is None
    assert 0.998 * target <= history.history["epsilon"][-1] <= target
    assert 0.998 * target <= spent(model) <= target


@pytest.mark.parametrize("max_batch_size", [None, 60, "auto"])
def test_a_data_set_brings_its_batch_size(max_batch_size):
    model = compiled(AutoDPOptimizer(2.0, delta=1e-4))
    options = {"expected_batch_size": 40, "max_batch_size": max_batch_size}
    model.fit(ka.sampling.PoissonDataset(*data(), **options), epochs=2, verbose=0)
    (row,) = model.privacy_ledger
    assert row.expected_batch_size == 40
    assert (row.max_batch_size > 0) is (max_batch_size is not None)
    assert 0.998 * 2.0 <= spent(model, 1e-4) <= 2.0


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


def test_steps_of_an_epoch_are_at_least_one():
    with pytest.raises(ValueError, match="`steps_per_epoch` must be at least 1"):
        compiled(AutoDPOptimizer(1.0)).fit(*data(), steps_per_epoch=0, verbose=0)


def test_a_spent_budget_is_refused_and_nothing_is_trained():
    model = compiled(AutoDPOptimizer(1.0))
    model.fit(*data(), epochs=1, verbose=0)
    weights, ledger = model.get_weights(), model.privacy_ledger
    with pytest.raises(ValueError, match=r"The budget is spent: epsilon is 0\.999"):
        model.fit(*data(), epochs=1, verbose=0)
    with pytest.raises(ValueError, match="Train with `fit`"):
        model.train_on_batch(*data(8))
    assert model.privacy_ledger == ledger
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_larger_target_pays_for_what_was_spent_under_another_optimizer():
    model = compiled(ka.optimizers.DPOptimizer("sgd", noise_multiplier=2.0))
    model.fit(*data(), batch_size=30, epochs=2, verbose=0)
    before = spent(model)
    model.compile(AutoDPOptimizer(before + 1.0), "sparse_categorical_crossentropy")
    model.fit(*data(), epochs=2, verbose=0)
    assert 0.998 * (before + 1.0) <= spent(model) <= before + 1.0


class Interrupts(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 4:
            raise KeyboardInterrupt


def test_an_interrupted_fit_leaves_the_rest_of_the_budget_to_the_next():
    model = compiled(AutoDPOptimizer(1.0))
    with pytest.raises(KeyboardInterrupt):
        model.fit(*data(), epochs=2, verbose=0, callbacks=[Interrupts()])
    assert 0.0 < spent(model) < 1.0
    model.fit(*data(), epochs=2, verbose=0)
    assert 0.998 <= spent(model) <= 1.0


def test_a_part_of_the_plan_that_is_given_is_used_and_the_target_still_ends_training(capsys):
    plan = {"noise_multiplier": 0.8, "batch_size": 50, "clipping": "quantile", "noise_walk": 0.5}
    model = compiled(AutoDPOptimizer(3.0, plan=plan))
    history = model.fit(*data(), epochs=50, verbose=2)
    (row,) = model.privacy_ledger
    assert (row.noise_multiplier, row.expected_batch_size) == (np.float32(0.8), 50)
    assert isinstance(model.optimizer.clipping, ka.clipping.QuantileClipping)
    assert history.ended_early is not None
    assert row.steps < 50 * 6
    assert spent(model) <= 3.0
    words = "given: noise multiplier, batch size, clipping, noise walk"
    assert words in capsys.readouterr().out
    assert words in str(model.privacy_report(DELTA))


def test_the_batch_size_of_fit_goes_before_the_plan():
    model = compiled(AutoDPOptimizer(3.0, plan={"batch_size": 50}))
    model.fit(*data(), batch_size=20, epochs=1, verbose=0)
    assert model.privacy_ledger.rows[0].expected_batch_size == 20


def test_the_delta_of_a_callback_is_that_of_the_plan():
    model = compiled(AutoDPOptimizer(3.0))
    callbacks = [ka.callbacks.PrivacyCallback(delta=1e-6)]
    model.fit(*data(), epochs=1, verbose=0, callbacks=callbacks)
    assert 0.998 * 3.0 <= spent(model, 1e-6) <= 3.0


def test_a_saved_model_goes_on_with_the_budget_that_is_left(tmp_path):
    model = compiled(AutoDPOptimizer(2.0, plan={"noise_walk": 1.5}, delta=1e-4))
    model.fit(*data(), epochs=1, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert loaded.optimizer.noise_multiplier is None
    with pytest.raises(ValueError, match="The budget is spent"):
        loaded.fit(*data(), epochs=1, verbose=0)


class Dies(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def test_a_killed_run_is_resumed_with_the_same_plan(tmp_path):
    def train(*callbacks):
        model = compiled(AutoDPOptimizer(2.0, seed=1))
        backup = keras.callbacks.BackupAndRestore(tmp_path)
        model.fit(*data(), epochs=4, verbose=0, callbacks=[backup, *callbacks])
        return model

    with pytest.raises(KeyboardInterrupt):
        train(Dies())
    model = train()
    (row,) = model.privacy_ledger
    assert row.steps == 4 * math.ceil(N / row.expected_batch_size)
    assert 0.998 * 2.0 <= spent(model) <= 2.0
    assert plan_of(model) == (0, row.steps, row.steps)


def test_a_fit_of_no_epoch_does_not_go_back_to_earlier_ones(tmp_path):
    """No noise was planned for them."""
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        compiled(AutoDPOptimizer(2.0)).fit(*data(), epochs=4, verbose=0, callbacks=[backup, Dies()])
    model = compiled(AutoDPOptimizer(2.0))
    with pytest.raises(ValueError, match="Give an `initial_epoch` below `epochs`"):
        model.fit(*data(), epochs=4, initial_epoch=4, verbose=0, callbacks=[backup])
    assert spent(model) <= 2.0


def plan_of(model):
    """First step, number of steps and steps done of the plan of `PlannedMomentum`."""
    inner = model.optimizer.inner_optimizer
    values = {each.name: keras.ops.convert_to_numpy(each.value) for each in inner.variables}
    return tuple(int(values[name]) for name in ("first_step", "num_steps", "iteration"))


def test_steps_are_planned_after_callbacks_have_loaded_another_run(tmp_path):
    finished = compiled(AutoDPOptimizer(0.5))
    finished.fit(*data(), epochs=1, verbose=0)
    finished.save_weights(tmp_path / "finished.weights.h5")

    class Loads(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.load_weights(tmp_path / "finished.weights.h5")
            self.start = self.model.get_weights()

    model, loads = compiled(AutoDPOptimizer(2.0)), Loads()
    model.fit(*data(), epochs=3, batch_size=20, verbose=0, callbacks=[loads])
    assert spent(model) <= 2.0
    moved = [np.abs(a - b).max() for a, b in zip(loads.start, model.get_weights(), strict=True)]
    assert min(moved) > 1e-3
    first, planned, done = plan_of(model)
    assert first == finished.privacy_ledger.steps
    assert done - first <= planned


def test_the_steps_that_a_given_noise_allows_are_those_that_are_planned():
    plan = {"noise_multiplier": 1.0, "batch_size": 30}
    model = compiled(AutoDPOptimizer(2.0, plan=plan))
    model.fit(*data(), epochs=300, verbose=0)
    first, planned, done = plan_of(model)
    assert (first, planned) == (0, done)
    assert done == model.privacy_ledger.steps < 3000


def test_no_epoch_is_no_error():
    model = compiled(AutoDPOptimizer(1.0))
    model.fit(*data(), epochs=0, verbose=0)
    assert model.privacy_ledger.steps == 0
    model.fit(*data(), epochs=1, verbose=0)
    steps = model.privacy_ledger.steps
    model.fit(*data(), epochs=1, initial_epoch=1, verbose=0)
    assert model.privacy_ledger.steps == steps


def test_a_loaded_model_goes_on_with_the_plan_of_its_run(tmp_path):
    model = compiled(AutoDPOptimizer(2.0))
    with pytest.raises(KeyboardInterrupt):
        model.fit(*data(), epochs=4, verbose=0, callbacks=[Dies()])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.fit(*data(), epochs=4, initial_epoch=2, verbose=0)
    first, planned, done = plan_of(loaded)
    assert (first, planned) == (0, done)
    assert {row.expected_batch_size for row in loaded.privacy_ledger} == {
        model.privacy_ledger.rows[0].expected_batch_size
    }
    assert 0.998 * 2.0 <= spent(loaded) <= 2.0


def test_one_example_has_no_delta():
    with pytest.raises(ValueError, match="Give `delta`"):
        compiled(AutoDPOptimizer(3.0)).fit(*data(1), batch_size=1, verbose=0)


def test_single_steps_and_endless_data_have_no_plan():
    model = compiled(AutoDPOptimizer(1.0))
    x, y = data()
    with pytest.raises(ValueError, match="Train with `fit`"):
        model.train_on_batch(x[:8], y[:8])
    assert model.privacy_ledger.steps == 0

    def batches():
        while True:
            yield x[:8], y[:8]

    with pytest.raises(ValueError, match="the number of steps cannot be known"):
        model.fit(batches(), num_examples=N, epochs=1, verbose=0)
    assert model.privacy_ledger.steps == 0


def test_a_federated_model_refuses():
    model = ka.federate(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))
    optimizer = AutoDPOptimizer(1.0)
    for given in (optimizer, keras.optimizers.serialize(optimizer)):
        with pytest.raises(ValueError, match="plans training on single examples"):
            model.compile(given, client_optimizer="sgd", loss="mse")
    assert not model.compiled
    compiled(optimizer).fit(*data(20), verbose=0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"target_epsilon": 0}, ValueError, "`target_epsilon` must be positive"),
        ({"delta": 1.0}, ValueError, "`delta`"),
        ({"plan": 3}, TypeError, "`plan` must be a dict"),
        ({"plan": {"norm": 1.0}}, ValueError, "unknown parts: norm"),
        ({"plan": {"batch_size": 0}}, ValueError, "batch_size"),
        ({"plan": {"noise_walk": -1}}, ValueError, "`noise_walk` must not be negative"),
        ({"plan": {"noise_multiplier": -1}}, ValueError, "`noise_multiplier` must not be negative"),
        ({"plan": {"noise_multiplier": 0}}, ValueError, "must be positive"),
        ({"plan": {"noise_walk": 1.0}, "optimizer": "sgd"}, ValueError, "another `optimizer`"),
    ],
)
def test_arguments_out_of_range(arguments, error, message):
    with pytest.raises(error, match=message):
        AutoDPOptimizer(**{"target_epsilon": 1.0, **arguments})


def test_the_noise_multiplier_cannot_be_set_by_hand():
    with pytest.raises(AttributeError):
        AutoDPOptimizer(1.0).noise_multiplier = 0.1


def test_a_given_optimizer_keeps_its_learning_rate():
    model = compiled(AutoDPOptimizer(3.0, optimizer=keras.optimizers.Adam(0.01)))
    model.fit(*data(), epochs=1, verbose=0)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)
    assert 0.998 * 3.0 <= spent(model) <= 3.0


def test_a_walk_that_was_set_stays_and_is_in_the_config():
    optimizer = AutoDPOptimizer(1.0)
    assert AutoDPOptimizer.from_config(optimizer.get_config()).plan == {}
    optimizer.learning_rate = 0.5
    compiled(optimizer).fit(*data(), epochs=1, verbose=0)
    assert AutoDPOptimizer.from_config(optimizer.get_config()).plan == {"noise_walk": 0.5}


def test_a_walk_of_zero_is_saved_and_loaded(tmp_path):
    model = compiled(AutoDPOptimizer(1.0))
    callback = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * (1 - epoch))
    model.fit(*data(), epochs=2, verbose=0, callbacks=[callback])
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").optimizer.plan == {"noise_walk": 0.0}


def test_a_walk_is_no_schedule():
    optimizer = AutoDPOptimizer(1.0)
    for schedule in (keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9), lambda: 0.1):
        with pytest.raises(ValueError, match="`PlannedMomentum` takes no schedule"):
            optimizer.learning_rate = schedule
    model = compiled(optimizer)
    model.fit(*data(), verbose=0)
    assert optimizer.plan == {}


@pytest.mark.parametrize("clipping", [None, "automatic", ka.clipping.PSAC()])
@pytest.mark.parametrize("name", ["class_weight", "sample_weight"])
def test_weights_that_normalizing_undoes_are_warned_of(clipping, name):
    weights = {"class_weight": {0: 1.0, 1: 9.0}, "sample_weight": np.linspace(0, 1, N)}
    model = compiled(AutoDPOptimizer(1.0, plan=clipping and {"clipping": clipping}))
    with warns("whatever the weight of an example or its class"):
        model.fit(*data(), verbose=0, **{name: weights[name]})


def test_weights_with_a_norm_work_without_a_warning():
    model = compiled(AutoDPOptimizer(8.0, plan={"clipping": 10.0}), [keras.layers.Dense(2)])
    x, _ = data()
    y = (np.arange(N) % 10 == 0).astype("int32")
    model.fit(x, y, epochs=20, verbose=0, class_weight={0: 0.1, 1: 10.0})
    assert np.mean(model.predict(x, verbose=0).argmax(-1)) > 0.9


def test_planned_momentum_under_any_private_optimizer():
    optimizer = ka.optimizers.DPOptimizer(ka.optimizers.PlannedMomentum(), noise_multiplier=1.0)
    model = compiled(optimizer)
    model.fit(*data(), epochs=2, batch_size=30, verbose=0)
    assert plan_of(model) == (0, 20, 20)
    with pytest.raises(ValueError, match="a single batch has no plan"):
        model.train_on_batch(*data(8))


def test_planned_momentum_needs_a_plan_and_the_noise():
    weight = keras.Variable(np.ones((2, 2)))
    optimizer = ka.optimizers.PlannedMomentum()
    optimizer.build([weight])
    gradients = [keras.ops.ones((2, 2))]
    with pytest.raises(ValueError, match=r"call `begin\(num_steps\)` first"):
        optimizer.apply_noised(gradients, [1.0])
    optimizer.begin(3)
    with pytest.raises(ValueError, match="only a `DPOptimizer` knows"):
        optimizer.apply(gradients)


class Rescaled(ka.clipping.FixedClipping):
    """Gradients in other units than the noise."""

    def gradients(self, state, means):
        return [2.0 * mean for mean in means]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_multiplier": 0.0}, "there is none"),
        ({"noise_multiplier": 1.0, "clipping": ka.clipping.AdaClip()}, "`AdaClip` rescales"),
        ({"noise_multiplier": 1.0, "clipping": Rescaled(1.0)}, "`Rescaled` rescales"),
    ],
)
def test_planned_momentum_is_refused_before_training(arguments, message):
    model = compiled(
        ka.optimizers.DPOptimizer(ka.optimizers.PlannedMomentum(), seed=1, **arguments)
    )
    with pytest.raises(ValueError, match=message):
        model.fit(*data(), epochs=1, batch_size=30, verbose=0)
    assert model.privacy_ledger.steps == 0


def test_planned_momentum_is_its_formula():
    """Each variable has its noise and its energy; the last two steps are beyond the plan."""
    rng = np.random.default_rng(1)
    variables = [keras.Variable(rng.normal(size=shape)) for shape in ((3, 2), (2,), (2, 4, 5))]
    optimizer = ka.optimizers.PlannedMomentum(noise_walk=2.0, momentum=0.8)
    optimizer.build(variables)
    optimizer.begin(6)
    values = [np.array(keras.ops.convert_to_numpy(v.value), np.float64) for v in variables]
    velocities, energies, stddevs = [0.0] * 3, np.zeros(3), [0.1, 3.0, 0.5]
    for step in range(8):
        gradients = [rng.normal(size=v.shape) + 1.0 for v in values]
        given = [keras.ops.convert_to_tensor(g, "float32") for g in gradients]
        optimizer.apply_noised(given, stddevs)
        ratios = [g / s for g, s in zip(gradients, stddevs, strict=True)]
        energies = 0.99 * energies + 0.01 * np.array([np.mean(r**2) for r in ratios])
        of_signal = np.maximum(energies / (1 - 0.99 ** (step + 1)) - 1, 0)
        rates = 2.0 * np.sqrt(3 / 6) * max(1 - step / 6, 0) / np.sqrt(1 + of_signal / 4)
        moves = [0.2 * rate * r for rate, r in zip(rates, ratios, strict=True)]
        velocities = [0.8 * v - m for v, m in zip(velocities, moves, strict=True)]
        values = [w + v for w, v in zip(values, velocities, strict=True)]
        for variable, value in zip(variables, values, strict=True):
            found = keras.ops.convert_to_numpy(variable.value)
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("num_weights", "walk"), [(9, 0.5), (10_000, 0.34), (160_000, 0.17)])
def test_the_walk_falls_with_the_number_of_weights(num_weights, walk):
    optimizer = ka.optimizers.PlannedMomentum()
    optimizer.build([keras.Variable(np.ones((num_weights,)))])
    assert float(optimizer.learning_rate) == pytest.approx(walk)


@pytest.mark.parametrize(("num_kernels", "walk"), [(1, 0.34), (4, 0.34), (16, 0.17)])
def test_the_walk_is_shorter_in_deep_networks(num_kernels, walk):
    """The first variable is a bias of two axes, as that of a GRU."""
    shape = (10_000 // (num_kernels + 1), 1)
    names = ["bias", *["kernel"] * num_kernels]
    optimizer = ka.optimizers.PlannedMomentum()
    optimizer.build([keras.Variable(np.ones(shape), name=name) for name in names])
    assert float(optimizer.learning_rate) == pytest.approx(walk, rel=1e-3)


def test_the_walk_with_short_floats():
    before = keras.config.floatx()
    keras.config.set_floatx("bfloat16")
    try:
        optimizer = ka.optimizers.PlannedMomentum()
        optimizer.build([keras.Variable(np.ones((10_000,)))])
        assert float(keras.ops.cast(optimizer.learning_rate, "float32")) == pytest.approx(
            0.34, rel=0.01
        )
        assert optimizer.get_config()["noise_walk"] is None
    finally:
        keras.config.set_floatx(before)


def test_planned_momentum_needs_the_number_of_steps():
    model = compiled(ka.optimizers.DPOptimizer(ka.optimizers.PlannedMomentum(), noise_multiplier=1))
    x, y = data()
    batches = ((x[:20], y[:20]) for _ in range(10))
    with pytest.raises(ValueError, match=r"fit\(steps_per_epoch="):
        model.fit(batches, num_examples=len(x), epochs=1, verbose=0)
    assert model.privacy_ledger.steps == 0


@pytest.mark.parametrize("walk", [None, 2.0])
def test_the_noise_moves_a_weight_by_the_planned_walk(walk):
    weights = keras.Variable(np.full((100, 100), 0.3))
    optimizer = ka.optimizers.PlannedMomentum(walk)
    optimizer.build([weights])
    optimizer.begin(200)
    rng = np.random.default_rng(2)
    for _ in range(200):
        noise = rng.normal(scale=7.0, size=weights.shape).astype("float32")
        optimizer.apply_noised([keras.ops.convert_to_tensor(noise)], [7.0])
    moved = keras.ops.convert_to_numpy(weights.value) - 0.3
    assert moved.std() == pytest.approx(walk or 0.34, rel=0.03)
    assert optimizer.get_config()["noise_walk"] == walk
