"""Saved, loaded, resumed or compiled again: the ledger is kept, and never lowered."""

import copy
import pickle
import warnings

import h5py
import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()
DELTA = 1e-3


def epsilon(model):
    return model.privacy_spent(DELTA).epsilon


def expected_epsilon(steps, noise_multiplier=1.0):
    return ka.accounting.compute_epsilon(noise_multiplier, 24, 6, steps=steps, delta=DELTA)


def quantile_model(noise_multiplier=1.0):
    return helpers.compiled(
        noise_multiplier=noise_multiplier,
        clipping=ka.clipping.QuantileClipping(count_noise_stddev=5.0),
    )


def trained(model=None, steps=3, **options):
    model = quantile_model() if model is None else model
    helpers.quiet_fit(model, X, Y, batch_size=6, steps_per_epoch=steps, **options)
    return model


def test_keras_file(tmp_path):
    model = trained()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, ka.PrivateModel)
    assert epsilon(loaded) == epsilon(model) == pytest.approx(expected_epsilon(3), rel=1e-6)
    assert loaded.optimizer.clip_norm == model.optimizer.clip_norm != 0.1
    assert int(loaded.optimizer.iterations) == 3
    for weight, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, other)
    trained(loaded, 2)
    assert epsilon(loaded) == pytest.approx(expected_epsilon(5), rel=1e-6)


@keras.saving.register_keras_serializable(package="tests")
def by_name(variable):
    return variable.name


STRATEGIES = {
    "scheduled": lambda: ka.clipping.ScheduledClipping(ka.schedules.PowerDecay(0.5)),
    "automatic": lambda: ka.clipping.AutomaticClipping(0.4, groups="per_layer"),
    "mean": lambda: ka.clipping.MeanNormClipping(mean_noise_stddev=5.0, groups=by_name),
    "adaclip": lambda: ka.clipping.AdaClip(min_variance=1e-6, max_variance=1e-2),
    "quantile by layer": lambda: ka.clipping.QuantileClipping(
        count_noise_stddev=5.0, groups="per_layer", noise_allocation="optimal"
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("way", ["keras file", "weights file"])
def test_every_strategy_comes_back_as_it_was(name, way, tmp_path):
    """State, config and read-outs; training goes on from there."""
    model = trained(helpers.compiled(clipping=STRATEGIES[name]()))
    if way == "keras file":
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
    else:
        model.save_weights(tmp_path / "run.weights.h5")
        loaded = helpers.compiled(clipping=STRATEGIES[name]())
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(tmp_path / "run.weights.h5")
    optimizer, other = model.optimizer, loaded.optimizer
    assert other.clipping.get_config() == optimizer.clipping.get_config()
    np.testing.assert_array_equal(other.clip_norm, optimizer.clip_norm)
    assert np.shape(other.clip_norm) == (
        (2,) if name in ("automatic", "quantile by layer", "mean") else ()
    )
    states = [
        {key: keras.ops.convert_to_numpy(value) for key, value in o.current_clipping.state.items()}
        for o in (optimizer, other)
    ]
    assert list(states[0]) == list(states[1])
    for key, value in states[0].items():
        np.testing.assert_array_equal(states[1][key], value)
    assert epsilon(loaded) == epsilon(model)
    trained(loaded, 2)
    assert epsilon(loaded) == pytest.approx(expected_epsilon(5), rel=1e-6)


def test_a_threshold_that_never_moves_is_the_compiled_one(tmp_path):
    model = trained(helpers.compiled(clipping=1.0))
    model.save_weights(tmp_path / "run.weights.h5")
    other = helpers.compiled(clipping=0.1)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "run.weights.h5")
    trained(other, 1)
    assert other.optimizer.clip_norm == pytest.approx(0.1)
    assert epsilon(other) == pytest.approx(expected_epsilon(4), rel=1e-6)


def test_sequential_keras_file(tmp_path):
    layers = [keras.Input((helpers.NUM_FEATURES,)), *helpers.dense_layers()]
    model = trained(helpers.compiled(ka.PrivateSequential(layers)))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is ka.PrivateSequential
    assert epsilon(loaded) == epsilon(model)


def test_weights_file_into_a_fresh_model(tmp_path):
    model = trained()
    model.save_weights(tmp_path / "run.weights.h5")
    other = quantile_model()
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "run.weights.h5")
    assert epsilon(other) == epsilon(model)
    assert other.optimizer.clip_norm == model.optimizer.clip_norm


def test_loaded_without_compiling(tmp_path):
    model = trained()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert epsilon(loaded) == epsilon(model)
    helpers.compiled(loaded, noise_multiplier=2.0)
    assert epsilon(loaded) == epsilon(model)
    trained(loaded, 2)
    spent = loaded.privacy_spent(DELTA)
    assert spent.steps == 5
    assert expected_epsilon(3) < spent.epsilon < expected_epsilon(5)


def test_compiling_again_carries_the_ledger_over():
    model = trained()
    before = epsilon(model)
    model.get_layer("hidden").trainable = False
    helpers.compiled(model, noise_multiplier=2.0)
    assert epsilon(model) == before
    trained(model, 1)
    middle = epsilon(model)
    assert middle > before
    model.get_layer("hidden").trainable = True
    with pytest.raises(ValueError, match="frozen or unfrozen"):
        trained(model, 1)
    helpers.compiled(model, noise_multiplier=1.0)
    trained(model, 2)
    assert model.privacy_spent(DELTA).steps == 6
    assert epsilon(model) > max(middle, expected_epsilon(5))


def test_rewinding_does_not_lower_epsilon(tmp_path):
    model = trained()
    model.save_weights(tmp_path / "early.weights.h5")
    trained(model)
    spent = epsilon(model)
    model.load_weights(tmp_path / "early.weights.h5")
    assert epsilon(model) == spent == pytest.approx(expected_epsilon(6), rel=1e-6)
    trained(model)
    assert epsilon(model) == pytest.approx(expected_epsilon(9), rel=1e-6)


def test_another_runs_checkpoint_adds_up(tmp_path):
    other = trained(steps=2)
    other.save_weights(tmp_path / "other.weights.h5")
    model = trained(steps=3)
    model.load_weights(tmp_path / "other.weights.h5")
    assert model.privacy_spent(DELTA).steps == 5


def loaded_from(*paths):
    model = quantile_model()
    model.optimizer.build(model.trainable_variables)
    for path in paths:
        model.load_weights(path)
    return model


def test_checkpoints_that_go_on_from_another_hold_it_once(tmp_path):
    first, copy, second, third, branch = (
        tmp_path / f"{name}.weights.h5" for name in ("first", "copy", "second", "third", "branch")
    )
    trained().save_weights(first)
    loaded_from(first).save_weights(copy)
    trained(loaded_from(first), 2).save_weights(second)
    trained(loaded_from(second), 1).save_weights(third)
    trained(loaded_from(first), 2).save_weights(branch)
    for paths, steps in (
        ([first, copy], 3),
        ([copy, first], 3),
        ([first, second], 5),
        ([second, first], 5),
        ([copy, second], 5),
        ([second, third], 6),
        ([third, second], 6),
        ([third, first], 6),
    ):
        assert loaded_from(*paths).privacy_spent(DELTA).steps == steps, paths
    # Two that went separate ways; what both began with may count twice, but nothing is left out.
    assert loaded_from(second, branch).privacy_spent(DELTA).steps >= 7
    model = trained(loaded_from(first), 4)
    for path in (second, branch):
        before = model.privacy_spent(DELTA).steps
        model.load_weights(path)
        assert model.privacy_spent(DELTA).steps >= before + 2


def test_what_a_file_says_of_others_lowers_nothing(tmp_path):
    """It says that all of the model it is loaded into is among its own one step."""
    model, path = trained(steps=5), tmp_path / "other.weights.h5"
    trained(steps=1).save_weights(path)
    rows, noise = model.privacy_ledger.to_arrays(2)
    with h5py.File(path, "a") as file:
        identity = np.tile(model.optimizer.run.identity, (2, 1))
        del file["vars/privacy_ledger_included"]
        file["vars/privacy_ledger_included"] = np.column_stack([identity, rows, noise])
    model.load_weights(path)
    assert model.privacy_spent(DELTA).steps >= 5


@pytest.mark.parametrize("save_weights_only", [True, False])
def test_model_checkpoint(tmp_path, save_weights_only):
    path = str(tmp_path / ("best.weights.h5" if save_weights_only else "best.keras"))
    checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=save_weights_only)
    model = trained(callbacks=[checkpoint])
    if save_weights_only:
        loaded = quantile_model()
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(path)
    else:
        loaded = keras.models.load_model(path)
    assert epsilon(loaded) == epsilon(model)


class Interrupts(keras.callbacks.Callback):
    """Presses Ctrl-C when an epoch begins."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


def resumable(folder):
    return keras.callbacks.BackupAndRestore(str(folder), delete_checkpoint=False)


def test_a_resumed_run_ends_where_the_uninterrupted_one_does(tmp_path):
    whole = quantile_model()
    helpers.quiet_fit(whole, X, Y, batch_size=6, epochs=3)
    first = quantile_model()
    with pytest.raises(KeyboardInterrupt):
        helpers.quiet_fit(
            first, X, Y, batch_size=6, epochs=3, callbacks=[resumable(tmp_path), Interrupts(1)]
        )
    assert first.privacy_spent(DELTA).steps == 4
    second = quantile_model()
    history = helpers.quiet_fit(
        second,
        X,
        Y,
        batch_size=6,
        epochs=3,
        callbacks=[resumable(tmp_path), ka.callbacks.PrivacyCallback(DELTA)],
    )
    assert second.privacy_ledger == whole.privacy_ledger
    assert history["epsilon"] == pytest.approx([expected_epsilon(8), expected_epsilon(12)])
    assert int(second.optimizer.iterations) == 12


def test_the_budget_of_a_resumed_run_holds_what_was_spent(tmp_path):
    first = quantile_model()
    with pytest.raises(KeyboardInterrupt):
        helpers.quiet_fit(
            first, X, Y, batch_size=6, epochs=9, callbacks=[resumable(tmp_path), Interrupts(2)]
        )
    target = expected_epsilon(11)
    second = quantile_model()
    stop = ka.callbacks.PrivacyCallback(DELTA, target_epsilon=target * (1 + 1e-9))
    helpers.quiet_fit(second, X, Y, batch_size=6, epochs=9, callbacks=[stop, resumable(tmp_path)])
    assert second.privacy_spent(DELTA).steps == 11
    third = quantile_model()
    spent_up = ka.callbacks.PrivacyCallback(DELTA, target_epsilon=expected_epsilon(8) * (1 + 1e-9))
    restored = keras.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False)
    with pytest.raises(ValueError, match="past the target"):
        helpers.quiet_fit(third, X, Y, batch_size=6, epochs=9, callbacks=[spent_up, restored])


def test_a_run_resumed_with_other_settings_accounts_for_them(tmp_path):
    first = quantile_model()
    with pytest.raises(KeyboardInterrupt):
        helpers.quiet_fit(
            first, X, Y, batch_size=6, epochs=3, callbacks=[resumable(tmp_path), Interrupts(1)]
        )
    second = quantile_model(noise_multiplier=0.8)
    helpers.quiet_fit(second, X, Y, batch_size=12, epochs=2, callbacks=[resumable(tmp_path)])
    rows = {
        (row.expected_batch_size, round(row.noise_multiplier, 6)): row.steps
        for row in second.privacy_ledger
        if row.steps
    }
    assert rows == {(6, 1.0): 4, (12, 0.8): 2}


def test_a_seeded_resumed_run_draws_other_rows(tmp_path, monkeypatch):
    seeds = []
    draw = ka.sampling.PoissonDataset.draw

    def recording(dataset):
        rows = draw(dataset)
        seeds.append((dataset._steps_before, tuple(rows)))
        return rows

    def model():
        return helpers.compiled(seed=11)

    first = model()
    with pytest.raises(KeyboardInterrupt):
        helpers.quiet_fit(
            first, X, Y, batch_size=6, epochs=3, callbacks=[resumable(tmp_path), Interrupts(1)]
        )
    monkeypatch.setattr(ka.sampling.PoissonDataset, "draw", recording)
    helpers.quiet_fit(model(), X, Y, batch_size=6, epochs=3, callbacks=[resumable(tmp_path)])
    assert seeds[-1][0] == 4


# A model that was never trained


@pytest.mark.parametrize("made", [quantile_model, helpers.compiled])
def test_a_model_that_was_never_fitted_can_be_saved_and_copied(made, tmp_path):
    model = made()
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "run.weights.h5")
    loaded = made()
    loaded.load_weights(tmp_path / "run.weights.h5")
    copies = [
        keras.models.load_model(tmp_path / "model.keras"),
        pickle.loads(pickle.dumps(model)),
        copy.deepcopy(model),
        loaded,
    ]
    for other in copies:
        helpers.assert_same_weights(other, helpers.weights_of(model))
        assert other.privacy_ledger.steps == 0
        assert other.optimizer.clip_norm == model.optimizer.clip_norm
        trained(other)
        assert epsilon(other) == pytest.approx(expected_epsilon(3), rel=1e-6)


def test_weights_of_a_trained_model_go_into_one_that_was_never_fitted(tmp_path):
    model = trained()
    model.save_weights(tmp_path / "run.weights.h5")
    other = quantile_model()
    other.load_weights(tmp_path / "run.weights.h5")
    assert epsilon(other) == epsilon(model)
    assert other.optimizer.clip_norm == model.optimizer.clip_norm


def test_weights_of_a_model_that_was_never_fitted_lower_nothing(tmp_path):
    quantile_model().save_weights(tmp_path / "new.weights.h5")
    model = trained()
    spent = epsilon(model)
    model.load_weights(tmp_path / "new.weights.h5")
    assert epsilon(model) == spent


# Weights carry their ledger


def brought_back(model, way, folder):
    """The model, out of a file."""
    if way == "weights":
        model.save_weights(folder / "run.weights.h5")
        other = quantile_model()
        other.load_weights(folder / "run.weights.h5")
        return other
    if way == "weights, not compiled":
        model.save_weights(folder / "run.weights.h5")
        other = helpers.dense_model()
        other.load_weights(folder / "run.weights.h5")
        return other
    if way == "state tree":
        other = helpers.dense_model()
        other.set_state_tree(model.get_state_tree())
        return other
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras", compile=way == "compiled")


@pytest.mark.parametrize(
    "way", ["compiled", "not compiled", "weights", "weights, not compiled", "state tree"]
)
def test_layers_of_a_loaded_model_bring_its_ledger(way, tmp_path):
    loaded = brought_back(trained(steps=5), way, tmp_path)
    inputs = keras.Input((helpers.NUM_FEATURES,))
    head = keras.layers.Dense(helpers.NUM_CLASSES, name="other")
    model = ka.PrivateModel(inputs, head(loaded.get_layer("hidden")(inputs)))
    assert model.privacy_ledger.steps == 5
    helpers.compiled(model)
    assert epsilon(model) == pytest.approx(expected_epsilon(5), rel=1e-6)
    trained(model, 2)
    assert epsilon(model) == pytest.approx(expected_epsilon(7), rel=1e-6)
    # Frozen layers too, and what a plain model around them is made into.
    wrapped = ka.privatize(keras.Sequential([inputs, model.get_layer("hidden")]))
    assert wrapped.privacy_ledger.steps >= 7


def test_a_frozen_layer_of_a_loaded_model_brings_its_ledger(tmp_path):
    loaded = brought_back(trained(steps=5), "not compiled", tmp_path)
    loaded.get_layer("hidden").trainable = False
    inputs = keras.Input((helpers.NUM_FEATURES,))
    head = keras.layers.Dense(helpers.NUM_CLASSES, name="other")
    model = helpers.compiled(ka.PrivateModel(inputs, head(loaded.get_layer("hidden")(inputs))))
    trained(model, 1)
    assert model.privacy_ledger.steps == 6


# Weights that something outside of private training has changed


def unchanged(model):
    if model._weights_unchanged() is False:
        with helpers.warns("something outside of it has changed"):
            spent = model.privacy_spent(DELTA)
        assert "changed outside of private training" in str(spent)
    else:
        spent = model.privacy_spent(DELTA)
    return spent.weights_unchanged


def in_report(model):
    return model.privacy_report(DELTA, group_sizes=()).weights


CHANGES = {
    "set_weights": lambda model, plain: model.set_weights([w + 1.0 for w in model.get_weights()]),
    "a plain fit": lambda model, plain: plain.fit(X, Y, verbose=0),
    "one variable": lambda model, plain: model.trainable_variables[0].assign(
        model.trainable_variables[0] * 1.001
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_moved_outside_are_said_to_have(change, tmp_path):
    plain = helpers.dense_model(keras.Model)
    plain.compile("sgd", helpers.sparse_crossentropy())
    model = helpers.compiled(ka.privatize(plain))
    assert unchanged(model) is None
    trained(model)
    assert unchanged(model) is True
    assert "those that private training left" in in_report(model)
    CHANGES[change](model, plain)
    assert unchanged(model) is False
    assert "NOT those that private training left" in in_report(model)
    model.save(tmp_path / "model.keras")
    for compile_it in (True, False):
        loaded = keras.models.load_model(tmp_path / "model.keras", compile=compile_it)
        assert unchanged(loaded) is False
    # More private training describes what it added, not what was changed before it.
    trained(model, 1)
    assert unchanged(model) is False


@pytest.mark.parametrize("way", ["compiled", "not compiled", "weights", "state tree"])
def test_weights_that_come_back_from_a_file_are_those_that_training_left(way, tmp_path):
    loaded = brought_back(trained(), way, tmp_path)
    assert unchanged(loaded) is True
    loaded.set_weights([weight + 1.0 for weight in loaded.get_weights()])
    assert unchanged(loaded) is False


def test_another_private_model_on_the_same_weights_changes_them_rightly():
    model = trained()
    other = helpers.compiled(ka.PrivateModel(model.input, model.output))
    trained(other, 2)
    assert unchanged(other) is True
    assert unchanged(model) is True


def test_a_file_from_the_middle_of_a_run_has_the_weights_of_its_ledger(tmp_path):
    path = tmp_path / "{epoch}.keras"
    saver = keras.callbacks.ModelCheckpoint(path)
    model = helpers.compiled()
    helpers.quiet_fit(model, X, Y, batch_size=6, epochs=2, callbacks=[saver])
    early = keras.models.load_model(tmp_path / "1.keras")
    assert unchanged(early) is True
    assert early.privacy_ledger.steps == 4


def test_of_single_batches_no_digest_is_taken():
    model = trained()
    model.train_on_batch(X, Y)
    assert unchanged(model) is None
    model.set_weights([weight + 1.0 for weight in model.get_weights()])
    assert unchanged(model) is None
    trained(model, 1)
    assert unchanged(model) is None


def test_evaluation_and_compiling_again_change_no_weights():
    model = trained()
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    helpers.compiled(model)
    assert unchanged(model) is True


# What attacks found


class WithTable(ka.PrivateModel):
    """Owns a weight, whose shape depends on the length of its inputs."""

    def __init__(self, length, **kwargs):
        super().__init__(**kwargs)
        self.body = keras.layers.Dense(4, name="body")
        self.table = self.add_weight(shape=(length, 3), name="table")

    def call(self, x):
        return keras.ops.mean(self.body(x + self.table), axis=1)


def load_what_fits(model, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what does not fit
        model.load_weights(path, skip_mismatch=True)


def test_layers_that_are_loaded_past_a_mismatch_bring_their_ledger(tmp_path):
    x = helpers.features(24, (6, 3))
    model = helpers.compiled(WithTable(6))
    helpers.quiet_fit(model, x, Y, batch_size=6, steps_per_epoch=5)
    model.save_weights(tmp_path / "run.weights.h5")
    other = WithTable(9)
    other(np.zeros((1, 9, 3), "float32"))
    load_what_fits(helpers.compiled(other), tmp_path / "run.weights.h5")
    np.testing.assert_array_equal(other.body.kernel, model.body.kernel)
    assert other.privacy_ledger.steps == 5


def with_other_head():
    inputs = keras.Input((helpers.NUM_FEATURES,))
    hidden, _ = helpers.dense_layers()
    model = ka.PrivateModel(inputs, keras.layers.Dense(7, name="logits")(hidden(inputs)))
    return helpers.compiled(model)


def test_weights_that_do_not_fit_a_file_keep_what_is_known_of_them(tmp_path):
    trained().save_weights(tmp_path / "run.weights.h5")
    model = with_other_head()
    load_what_fits(model, tmp_path / "run.weights.h5")
    # The head is what it was, which no private run has trained.
    assert (unchanged(model), model.privacy_ledger.steps) == (None, 3)
    model = trained(with_other_head())
    load_what_fits(model, tmp_path / "run.weights.h5")
    assert (unchanged(model), model.privacy_ledger.steps) == (True, 6)
    model = trained(with_other_head())
    model.get_layer("logits").set_weights([np.ones((5, 7)), np.ones(7)])
    load_what_fits(model, tmp_path / "run.weights.h5")
    assert unchanged(model) is False


def test_a_file_of_other_weights_does_not_hide_that_some_were_changed(tmp_path):
    inputs = keras.Input((helpers.NUM_FEATURES,))
    hidden, logits = helpers.dense_layers()
    deep = keras.layers.Dense(5, name="deep")
    larger = ka.PrivateModel(inputs, logits(deep(hidden(inputs))))
    trained(helpers.compiled(larger)).save_weights(tmp_path / "run.weights.h5")
    model = trained()
    model.get_layer("logits").set_weights([np.ones((5, 3)), np.ones(3)])
    load_what_fits(model, tmp_path / "run.weights.h5")
    assert unchanged(model) is False


def test_the_state_of_another_optimizer_is_refused_and_its_ledger_is_not():
    tree = trained().get_state_tree("numpy_array")
    model = helpers.dense_model()
    optimizer = helpers.dp_optimizer(name="other")
    model.compile(optimizer, loss=helpers.sparse_crossentropy())
    before = helpers.weights_of(model)
    with pytest.raises(ValueError, match=r"'dp_optimizer/.*'other' of this model does not have"):
        model.set_state_tree(tree)
    helpers.assert_same_weights(model, before)
    assert model.privacy_ledger.steps == 3


def test_the_state_of_an_optimizer_that_keras_numbered_anew_comes_back():
    model, other = trained(helpers.compiled()), helpers.compiled()
    other.set_state_tree(model.get_state_tree("numpy_array"))
    for one, two in zip(
        model.optimizer.inner_optimizer.variables,
        other.optimizer.inner_optimizer.variables,
        strict=True,
    ):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two)
        )


def test_a_ledger_that_cannot_be_taken_over_is_not_taken_for_none(tmp_path):
    model = trained()
    model.save_weights(tmp_path / "run.weights.h5")
    with h5py.File(tmp_path / "run.weights.h5", "r+") as file:
        file["vars"]["privacy_ledger_rows"][0] = -1
    other = quantile_model()
    load_what_fits(other, tmp_path / "run.weights.h5")
    for ask in (lambda: other.privacy_spent(DELTA), lambda: trained(other)):
        with pytest.raises(RuntimeError, match="is not known"):
            ask()


def test_two_loaded_models_in_one_and_a_later_state_of_the_first(tmp_path):
    """10 + 10 steps of two models, then 20 of the first one, are 30."""
    first, second = trained(steps=10), trained(steps=10)
    first.save(tmp_path / "first.keras")
    second.save(tmp_path / "second.keras")
    towers = [
        keras.models.load_model(tmp_path / f"{name}.keras", compile=False)
        for name in ("first", "second")
    ]
    inputs = keras.Input((helpers.NUM_FEATURES,))
    joint = ka.PrivateModel(inputs, keras.layers.add([tower(inputs) for tower in towers]))
    assert joint.privacy_ledger.steps == 20
    trained(first, 10)
    first.save_weights(tmp_path / "later.weights.h5")
    towers[0].load_weights(tmp_path / "later.weights.h5")
    assert towers[0].privacy_ledger.steps == 20
    assert joint.privacy_ledger.steps == 30
    trained(helpers.compiled(joint), 1)
    assert joint.privacy_ledger.steps == 31


def test_a_copy_without_an_optimizer_is_no_other_run(tmp_path):
    model = trained()
    model.save(tmp_path / "model.keras")
    copied = keras.models.load_model(tmp_path / "model.keras", compile=False)
    copied.save_weights(tmp_path / "copied.weights.h5")
    load_what_fits(model, tmp_path / "copied.weights.h5")
    assert model.privacy_ledger.steps == 3
    assert model.optimizer.clip_norm != 0.1


class Calls(keras.callbacks.Callback):
    """Calls a function when an epoch ends."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def on_epoch_end(self, epoch, logs=None):
        self.function()


def test_shared_weights_are_trained_by_one_model_at_a_time():
    model = trained()
    other = helpers.compiled(ka.PrivateModel(model.inputs[0], model.outputs[0]))
    with pytest.raises(RuntimeError, match="shares weights with a private model"):
        trained(model, 1, callbacks=[Calls(lambda: trained(other))])
    assert model.privacy_ledger.steps == other.privacy_ledger.steps == 4


def test_a_model_is_not_compiled_in_the_middle_of_its_training():
    model = quantile_model()
    with pytest.raises(RuntimeError, match="in the middle of a private `fit`"):
        trained(model, 1, callbacks=[Calls(lambda: helpers.compiled(model))])
    assert model.privacy_ledger.steps == 1
