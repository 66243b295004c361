"""Saved, loaded, resumed or compiled again: the ledger is kept, and never lowered."""

import contextlib
import copy
import pickle
import warnings
import zipfile

import h5py
import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    RandomSelection,
    RunBounds,
    Sampling,
    read_ledger,
)
from keras_adaclip.training import weights
from tests.models import helpers
from tests.models.helpers import DELTA, planned

X, Y = helpers.features(), helpers.labels()


def epsilon(model):
    return model.privacy_spent(DELTA).epsilon


def quantile_model():
    return helpers.compiled(clipping=ka.clipping.QuantileClipping(count_noise_stddev=5.0))


def trained(model=None, steps=3, **options):
    model = quantile_model() if model is None else model
    helpers.quiet_fit(model, X, Y, batch_size=6, steps_per_epoch=steps, **options)
    return model


PARTS_OF_TREES = {
    "optimizer variables": ("optimizer_variables",),
    "variables of layers": ("trainable_variables", "non_trainable_variables"),
}


def brought_back(model, how, folder, **options):
    """The model, out of a file, a state tree or a copy."""
    if how == "pickle":
        return pickle.loads(pickle.dumps(model))
    if how == "copy":
        return copy.deepcopy(model)
    other = helpers.dense_model()
    if how == "weights" or how in PARTS_OF_TREES:
        helpers.compiled(other, **{"clipping": model.optimizer.clipping, **options})
    if how == "state tree":
        other.set_state_tree(model.get_state_tree())
    elif how in PARTS_OF_TREES:
        tree = model.get_state_tree("numpy_array")
        other.set_state_tree({part: tree[part] for part in PARTS_OF_TREES[how]})
    elif "weights" in how:
        shards = {"max_shard_size": 1.5e-5} if "shards" in how else {}
        path = folder / f"run.weights.{'json' if shards else 'h5'}"
        model.save_weights(path, **shards)
        other.load_weights(path)
    else:
        model.save(folder / "model.keras")
        return keras.models.load_model(folder / "model.keras", compile=how == "compiled")
    return other


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
def test_every_strategy_comes_back_as_it_was(name, tmp_path):
    """State, config and read-outs; training goes on from there."""
    model = trained(helpers.compiled(clipping=STRATEGIES[name]()))
    how = "weights" if name in ("mean", "adaclip") else "compiled"
    loaded = brought_back(model, how, tmp_path, clipping=STRATEGIES[name]())
    helpers.assert_same_weights(loaded, model.get_weights())
    optimizer, other = model.optimizer, loaded.optimizer
    assert int(other.iterations) == 3
    assert other.clipping.get_config() == optimizer.clipping.get_config()
    np.testing.assert_array_equal(other.clip_norm, optimizer.clip_norm)
    found, expected = (
        keras.tree.map_structure(keras.ops.convert_to_numpy, each.current_clipping.state)
        for each in (other, optimizer)
    )
    np.testing.assert_equal(found, expected)
    assert epsilon(loaded) == epsilon(model)
    trained(loaded, 2)
    assert epsilon(loaded) == pytest.approx(planned(5), rel=1e-6)


@pytest.mark.parametrize("how", ["weights", "copy"])
def test_a_model_that_was_never_fitted_can_be_saved_and_copied(how, tmp_path):
    model = helpers.compiled()
    other = brought_back(model, how, tmp_path, clipping=0.1)
    helpers.assert_same_weights(other, helpers.weights_of(model))
    assert other.privacy_ledger.steps == 0
    trained(other)
    # A threshold that never moves is the compiled one.
    assert other.optimizer.clip_norm == pytest.approx(0.1 if how == "weights" else 1.0)
    assert epsilon(other) == pytest.approx(planned(3), rel=1e-6)


def test_a_layer_is_frozen_and_thawed_by_compiling_again():
    model = trained()
    model.get_layer("hidden").trainable = False
    trained(helpers.compiled(model, noise_multiplier=2.0), 1)
    model.get_layer("hidden").trainable = True
    with pytest.raises(ValueError, match="frozen or unfrozen"):
        trained(model, 1)
    trained(helpers.compiled(model), 2)
    assert model.privacy_spent(DELTA).steps == 6
    assert epsilon(model) > planned(5)


# Weights carry their ledger


def of_search():
    """The ledger of a model that a private search has released."""
    row = LedgerRow.open(Sampling.POISSON, 6, 24, noise_multiplier=4.0).advance(8)
    return RunBounds((Ledger((row,)),)).selected(RandomSelection(10)).owned_by(7)


ROUTES = (
    *("compiled", "not compiled", "weights", "weights alone", "weights in shards"),
    *("state tree", *PARTS_OF_TREES, "pickle", "copy"),
)


@pytest.mark.parametrize("how", ROUTES)
def test_a_model_and_its_layers_bring_the_whole_ledger(how, tmp_path):
    """Steps, the cost of a search, and the delta that was promised."""
    budget = ka.callbacks.PrivacyCallback(1e-8, target_epsilon=1e6)
    model = trained(steps=5, callbacks=[budget])
    model.optimizer.include_ledger(of_search())
    ledger = model.privacy_ledger
    assert (ledger.steps, ledger.promised_delta) == (5 + 8, 1e-8)
    loaded = brought_back(model, how, tmp_path)
    assert loaded.privacy_ledger == ledger
    assert (before := epsilon(loaded)) == epsilon(model)
    if how != "optimizer variables":
        assert unchanged(loaded) is True
    inputs = keras.Input((helpers.NUM_FEATURES,))
    head = keras.layers.Dense(helpers.NUM_CLASSES, name="other")
    model = ka.PrivateModel(inputs, head(loaded.get_layer("hidden")(inputs)))
    assert (model.privacy_ledger.steps, model.privacy_ledger.promised_delta) == (13, 1e-8)
    helpers.compiled(model)
    assert epsilon(model) == pytest.approx(before, rel=1e-6)
    trained(model, 2)
    assert model.privacy_ledger.steps == 15
    assert epsilon(model) > before
    # Frozen layers too, and what a plain model around them is made into.
    wrapped = ka.privatize(keras.Sequential([inputs, model.get_layer("hidden")]))
    assert wrapped.privacy_ledger.steps == 15


# Weights that something outside of private training has changed


def unchanged(model):
    if weights.weights_are_unchanged(model.weights) is False:
        with helpers.warns("something outside of it has changed"):
            spent = model.privacy_spent(DELTA)
        assert "changed outside of private training" in str(spent)
    else:
        spent = model.privacy_spent(DELTA)
    return spent.weights_unchanged


def in_report(model):
    return model.privacy_report(DELTA, group_sizes=()).weights


def test_weights_that_moved_outside_are_said_to_have(tmp_path):
    plain = helpers.dense_model(keras.Model)
    model = helpers.compiled(ka.privatize(plain))
    assert unchanged(model) is None
    trained(model)
    model.evaluate(X, Y, verbose=0)
    helpers.compiled(model)
    assert unchanged(model) is True
    assert "those that private training left" in in_report(model)
    plain.layers[1].bias.assign(np.full(5, 1e-9))
    assert unchanged(model) is False
    assert "NOT those that private training left" in in_report(model)
    model.save(tmp_path / "model.keras")
    for compile_it in (True, False):
        loaded = keras.models.load_model(tmp_path / "model.keras", compile=compile_it)
        assert unchanged(loaded) is False
    # More private training describes what it added, not what was changed before it.
    trained(model, 1)
    assert unchanged(model) is False


def test_weights_that_private_runs_have_moved_are_those_that_they_left(tmp_path):
    """Those of a file from the middle of a run, and those that another model has trained."""
    saver = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras")
    model = helpers.compiled()
    helpers.quiet_fit(model, X, Y, batch_size=6, epochs=2, callbacks=[saver])
    early = keras.models.load_model(tmp_path / "1.keras")
    assert unchanged(early) is True
    assert early.privacy_ledger.steps == 4
    other = helpers.compiled(ka.PrivateModel(model.input, model.output))
    trained(other, 2)
    assert unchanged(other) is unchanged(model) is True
    # `train_on_batch` takes no digest.
    model.train_on_batch(X, Y)
    assert unchanged(model) is None
    trained(model, 1)
    assert unchanged(model) is None


@pytest.mark.parametrize("digest", [2, 6], ids=["before the steps", "behind them"])
def test_an_interruption_while_digests_are_taken_hides_no_change(digest, monkeypatch):
    model = helpers.compiled()
    trained(model, 1)
    digests = iter(range(1, 9))
    take = weights._digest

    def interrupted(variable):
        if next(digests) == digest:
            raise KeyboardInterrupt
        return take(variable)

    monkeypatch.setattr(weights, "_digest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(model, 1)
    monkeypatch.undo()
    last = model.weights[-1]
    last.assign(last + 1.0)
    assert not unchanged(model)
    trained(model, 1)
    assert not unchanged(model)


# What does not fit, is damaged or of an earlier version


def load_what_fits(model, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what does not fit
        model.load_weights(path, skip_mismatch=True)


def with_other_head():
    inputs = keras.Input((helpers.NUM_FEATURES,))
    hidden, _ = helpers.dense_layers()
    model = ka.PrivateModel(inputs, keras.layers.Dense(7, name="logits")(hidden(inputs)))
    return helpers.compiled(model)


def test_weights_that_do_not_fit_a_file_keep_what_is_known_of_them(tmp_path):
    trained().save_weights(tmp_path / "run.weights.h5")
    models = [with_other_head(), trained(with_other_head()), trained(with_other_head())]
    models[2].get_layer("logits").set_weights([np.ones((5, 7)), np.ones(7)])
    found = []
    for model in models:
        load_what_fits(model, tmp_path / "run.weights.h5")
        found.append((unchanged(model), model.privacy_ledger.steps))
    # The head of the first is what it was, which no private run has trained.
    assert found == [(None, 3), (True, 6), (False, 6)]


def test_the_state_of_another_optimizer_is_refused_and_its_ledger_is_not():
    tree = trained(helpers.compiled()).get_state_tree("numpy_array")
    # Keras numbers the names of optimizers.
    same, model = helpers.compiled(), helpers.dense_model()
    same.set_state_tree(tree)
    inner = [each.value for each in same.optimizer.inner_optimizer.variables]
    assert np.abs(keras.ops.convert_to_numpy(inner[-1])).max() > 0  # a momentum
    model.compile(helpers.dp_optimizer(name="other"), loss=helpers.sparse_crossentropy())
    before = helpers.weights_of(model)
    with pytest.raises(ValueError, match=r"'dp_optimizer/.*'other' of this model does not have"):
        model.set_state_tree(tree)
    helpers.assert_same_weights(model, before)
    assert model.privacy_ledger.steps == 3


LEDGER, ROWS = "ledger_in_files/vars", "ledger_in_files/vars/privacy_ledger"


@pytest.mark.parametrize("damage", ["impossible", "without rows", "no group"])
def test_a_ledger_that_cannot_be_taken_over_is_not_taken_for_none(damage, tmp_path):
    path, other = tmp_path / "run.weights.h5", quantile_model()
    trained().save_weights(path)
    with h5py.File(path, "r+") as file:
        if damage == "impossible":
            file[ROWS][0] = 0
        else:
            place = ROWS if damage == "without rows" else LEDGER
            del file[place]
            if damage == "no group":
                file[LEDGER] = np.zeros(3)
    if damage == "no group":
        with pytest.raises(ValueError, match="expected Group"):
            other.load_weights(path)
    else:
        load_what_fits(other, path)
    assert_unknown(other, "is not known")
    with pytest.raises(RuntimeError, match="is not known"):
        trained(other)


BUILT_ON = {
    "the same layers": lambda model: ka.PrivateModel(model.inputs, model.outputs),
    "the model": lambda model: ka.PrivateSequential([keras.Input((helpers.NUM_FEATURES,)), model]),
    "a plain model": lambda model: ka.privatize(keras.Model(model.inputs, model.layers[1].output)),
}


@pytest.mark.parametrize("form", BUILT_ON)
def test_what_is_built_on_weights_of_an_unknown_ledger_does_not_know_it_either(form, tmp_path):
    """Keras only warns of what it could not load past a mismatch, the ledger included."""
    path, whole, model = tmp_path / "run.weights.h5", tmp_path / "whole.weights.h5", trained()
    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        del file[ROWS]
    other = quantile_model()
    load_what_fits(other, path)
    np.testing.assert_array_equal(other.layers[1].kernel, model.layers[1].kernel)
    new = BUILT_ON[form](other)
    assert_unknown(new, "is not known")
    if form == "the same layers":
        helpers.dense_model().save_weights(whole)
        new.load_weights(whole)
        assert_unknown(new, "Build the model again")


class WithAttribute(ka.PrivateSequential):
    ledger_in_files = True


def test_an_attribute_in_the_place_of_the_ledger_is_refused(tmp_path):
    model = WithAttribute([keras.Input((3,)), keras.layers.Dense(2)])
    for path in ("model.keras", "model.weights.h5"):
        with pytest.raises(TypeError, match="Give yours another name"):
            (model.save if path.endswith("keras") else model.save_weights)(tmp_path / path)


def assert_unknown(model, message):
    with pytest.raises(RuntimeError, match=message):
        model.privacy_spent(DELTA)


def test_weights_that_were_loaded_before_an_interruption_bring_their_ledger(tmp_path, monkeypatch):
    """The ledger of a file is read before any of its weights."""
    path, model, other = tmp_path / "run.weights.h5", trained(), quantile_model()
    model.save_weights(path)
    monkeypatch.setattr(other.layers[2], "load_own_variables", interrupted)
    with pytest.raises(KeyboardInterrupt):
        other.load_weights(path)
    np.testing.assert_array_equal(other.layers[1].kernel, model.layers[1].kernel)
    assert other.privacy_ledger.steps == 3


def test_weights_from_elsewhere_than_a_file_of_keras_are_those_of_an_unknown_ledger():
    model = helpers.dense_model()
    with pytest.raises(ValueError, match="from HDF5 files"):
        model.load_own_variables({})
    assert_unknown(model, "from HDF5 files")
    model.summary(print_fn=(lines := []).append)
    assert "is not known" in lines[-1]


def interrupted(store):
    raise KeyboardInterrupt


# Where the ledger stands in files


@pytest.mark.parametrize("place", ["vars", "ledger_in_files/vars"])
def test_files_of_earlier_versions_are_refused(place, tmp_path):
    """The ledger of the first stood among the model's own variables."""
    model, path = trained(), tmp_path / "old.weights.h5"
    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        file.move(f"{LEDGER}/privacy_ledger", f"{place}/privacy_ledger_rows")
        if place == "vars":
            del file["ledger_in_files"]
    with pytest.raises(ValueError, match=r"versions 0\.1 and 0\.2 are not read"):
        read_ledger(path)
    with zipfile.ZipFile(tmp_path / "old.keras", "w") as archive:
        archive.writestr("config.json", model.to_json())
        archive.writestr("metadata.json", '{"keras_version": "3.12.0"}')
        archive.write(path, "model.weights.h5")
    with pytest.raises(ValueError, match=r"saved by version 0\.1 or 0\.2"):
        keras.models.load_model(tmp_path / "old.keras", compile=False)
    for options in ({}, {"skip_mismatch": True}):
        other = helpers.dense_model()
        with contextlib.suppress(ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other.load_weights(path, **options)
        assert_unknown(other, r"saved by version 0\.1 or 0\.2")


def test_a_private_model_inside_another_keeps_its_ledger(tmp_path):
    path = tmp_path / "outer.keras"
    inputs = keras.Input((helpers.NUM_FEATURES,))
    inner, outer = trained(), helpers.dense_model()
    for cls, steps in ((keras.Model, 3), (ka.PrivateModel, 6)):
        if cls is ka.PrivateModel:
            inner = trained(helpers.compiled(ka.PrivateModel(inputs, inner(inputs))))
        outer = cls(inputs, keras.layers.Dense(2)(inner(inputs)))
        outer.save(path)
        loaded = keras.models.load_model(path, compile=False)
        assert loaded.layers[1].privacy_ledger.steps == steps
        loaded.load_weights(path)
        assert loaded.layers[1].privacy_ledger.steps == steps


def test_weights_of_a_private_model_and_of_a_plain_one_fit_each_other(tmp_path):
    path, edited = str(tmp_path / "run.weights.h5"), str(tmp_path / "edited.weights.h5")
    model, plain = trained(), helpers.dense_model(keras.Model)
    model.save_weights(path)
    plain.load_weights(path)
    helpers.assert_same_weights(plain, model.get_weights())
    # Keras's editor keeps the ledger; what a plain model saves has none.
    keras.saving.KerasFileEditor(path).save(edited)
    for written, steps in ((edited, 3), (path, 0)):
        other = helpers.dense_model()
        other.load_weights(written)
        helpers.assert_same_weights(other, model.get_weights())
        assert other.privacy_ledger.steps == steps
        plain.save_weights(path)


def test_two_loaded_models_in_one_and_a_later_state_of_the_first(tmp_path):
    """10 + 10 steps of two models, then 20 of the first one, are 30."""
    first, second = trained(steps=10), trained(steps=10)
    towers = [brought_back(model, "not compiled", tmp_path) for model in (first, second)]
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


def test_nothing_else_is_trained_or_compiled_in_the_middle_of_a_run():
    model = trained()
    other = helpers.compiled(ka.PrivateModel(model.inputs[0], model.outputs[0]))
    for message, function in (
        ("shares weights with a private model", lambda epoch, logs: trained(other)),
        ("in the middle of a private `fit`", lambda epoch, logs: helpers.compiled(model)),
    ):
        with pytest.raises(RuntimeError, match=message):
            trained(model, 1, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=function)])
    assert model.privacy_ledger.steps == other.privacy_ledger.steps == 5


class WithOwnLoading(ka.PrivateModel):
    """Loads its own weights by itself."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(helpers.NUM_CLASSES)

    def build(self, shape):
        self.scale = self.add_weight((), "ones", name="scale")
        self.dense.build(shape)

    def call(self, x):
        return self.scale * self.dense(x)

    def load_own_variables(self, store):
        self.scale.assign(store["0"])


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_model_that_loads_its_own_weights_has_their_ledger(is_damaged, tmp_path):
    path, other = tmp_path / "model.weights.h5", WithOwnLoading()
    trained(helpers.compiled(WithOwnLoading())).save_weights(path)
    other.build((None, helpers.NUM_FEATURES))
    if is_damaged:
        with h5py.File(path, "r+") as file:
            file[ROWS][0] = 0
        with contextlib.suppress(ValueError):
            other.load_weights(path)
        with pytest.raises(RuntimeError, match="is not known"):
            other.privacy_ledger  # noqa: B018
        return
    other.load_weights(path)
    assert other.privacy_ledger.steps == 3
