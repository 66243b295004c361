"""Data, models and callbacks that plain Keras takes: they train, or an error says what to do."""

import warnings

import keras
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from keras.wrappers import SKLearnClassifier

import keras_adaclip as ka
from keras_adaclip.callbacks import ClippingMonitor, PrivacyCallback
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()
IS_EAGER = keras.backend.backend() == "torch"
FORMATS = ("csr_matrix", "csr_array", "coo_matrix", "csc_matrix")


def steps_of(model, x=X, y=Y, **options):
    helpers.quiet_fit(model, x, y, **options)
    return model.privacy_ledger.steps


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_without_a_batch_size_few_rows_are_one_batch(sampling):
    model = helpers.compiled()
    assert steps_of(model, X[:10], Y[:10], sampling=sampling) == 1
    assert model.privacy_ledger.current.expected_batch_size == 10
    model = helpers.compiled()
    assert steps_of(model, validation_split=0.25) == 1
    with pytest.raises(ValueError, match="must lie between 1 and 18"):
        model.fit(X, Y, batch_size=20, validation_split=0.25)
    assert model.privacy_ledger.steps == 1


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_sparse_matrices_train_as_their_arrays(name, sampling):
    dense = np.where(np.abs(X) < 0.5, 0.0, X).astype("float64")
    dense[:, 1] = np.arange(len(X))
    sparse = getattr(scipy.sparse, name)(dense)
    options = {"batch_size": 24, "sampling": sampling, "shuffle": False, "validation_split": 0.0}
    models = [helpers.compiled(noise_multiplier=0.0) for _ in range(2)]
    models[1].set_weights(models[0].get_weights())
    histories = [
        helpers.quiet_fit(model, x, Y, validation_data=(x, Y), **options)
        for model, x in zip(models, (dense, sparse), strict=True)
    ]
    for one, other in zip(*map(helpers.weights_of, models), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert histories[0]["val_loss"] == pytest.approx(histories[1]["val_loss"], rel=1e-4)
    dense = dense.astype("float32")
    assert np.allclose(models[1].predict(sparse, verbose=0), models[0].predict(dense, verbose=0))
    assert models[1].train_on_batch(sparse, Y) == pytest.approx(models[0].train_on_batch(dense, Y))


def test_a_sparse_matrix_is_written_out_by_rows(monkeypatch):
    written = []
    matrix = scipy.sparse.random(500, 4, 0.3, format="csr", dtype="float32", random_state=0)
    toarray = type(matrix).toarray
    monkeypatch.setattr(
        type(matrix), "toarray", lambda self: written.append(self.shape[0]) or toarray(self)
    )
    data = ka.sampling.PoissonDataset(matrix, np.arange(500) % 3, expected_batch_size=5)
    helpers.quiet_fit(helpers.compiled(), data, steps_per_epoch=3)
    assert 0 < max(written) < 50
    rows = ka.sampling.SparseRows(matrix)
    np.testing.assert_array_equal(rows.extremes()[1], toarray(matrix).max(axis=0))
    matrix.data[0] = np.nan
    assert rows.are_finite().all() != ka.sampling.SparseRows(matrix).are_finite().all()


@pytest.mark.parametrize("is_function", [False, True])
def test_scikit_learn_wraps_private_models(is_function):
    def make(X=None, y=None):  # noqa: N803
        return helpers.compiled(loss=keras.losses.CategoricalCrossentropy(from_logits=True))

    estimator = SKLearnClassifier(make if is_function else make(), fit_kwargs={"verbose": 0})
    estimator.fit(X, Y, batch_size=6, epochs=2)
    assert estimator.model_.privacy_ledger.steps == 8
    assert estimator.predict(X).shape == Y.shape


def test_the_clone_of_a_functional_model_is_private_and_that_of_a_sequential_one_says_how():
    model = helpers.compiled()
    steps_of(model, batch_size=6)
    clone = keras.models.clone_model(model)
    assert isinstance(clone, ka.PrivateModel)
    assert clone.privacy_ledger.steps == 0
    assert steps_of(clone, batch_size=6) == 4
    model = helpers.compiled(ka.PrivateSequential([keras.Input((4,)), *helpers.dense_layers()]))
    with pytest.raises(ValueError, match="and `SKLearnRegressor` a function that builds and comp"):
        keras.models.clone_model(model)


class Batches(keras.utils.PyDataset):
    """Batches of a dict with the names that this package uses, in an order made for each epoch."""

    def __init__(self):
        super().__init__()
        self.order = None

    def on_epoch_begin(self):
        self.order = np.arange(24).reshape(4, 6)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = self.order[index]
        return {"x": X[rows], "mask": np.ones((6, 4), "float32")}


class Reconstruction(ka.PrivateModel):
    def __init__(self):
        super().__init__()
        self.outputs_of = keras.layers.Dense(4)

    def call(self, inputs, training=False):
        return self.outputs_of(inputs["x"] * inputs["mask"])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y_pred - x["x"]), axis=-1)


def test_a_data_set_prepares_itself_and_its_inputs_may_have_any_name():
    model = Reconstruction()
    model.compile(helpers.dp_optimizer())
    assert steps_of(model, Batches(), None, num_examples=24) == 4
    # Draws of this package still say which rows are padding.
    x = {"x": X, "mask": np.zeros((24, 4), "float32")}
    assert steps_of(model, x, None, batch_size=6) == 8


@pytest.mark.parametrize("thaws", [False, True])
@pytest.mark.parametrize(
    ("when", "steps"),
    # Compiled steps go on as they were in the middle of an epoch.
    [("train", 0), ("epoch", 4), *([("train_batch", 1)] if IS_EAGER else [])],
)
def test_a_callback_that_freezes_a_layer_is_told_to_compile_again(when, steps, thaws):
    model = helpers.dense_model()
    model.layers[1].trainable = not thaws
    helpers.compiled(model)

    def change(*place, logs=None):
        if place[:1] != (0,):
            model.layers[1].trainable = thaws

    callback = keras.callbacks.LambdaCallback(**{f"on_{when}_begin": change})
    with pytest.raises(ValueError, match="a layer was frozen or unfrozen"):
        helpers.quiet_fit(model, X, Y, batch_size=6, epochs=3, callbacks=[callback])
    model.compile(helpers.dp_optimizer(), helpers.sparse_crossentropy())
    assert steps_of(model, batch_size=6) == steps + 4


def test_layers_with_lora_say_nothing_of_changed_weights_after_loading(tmp_path):
    model = helpers.dense_model()
    model.layers[1].enable_lora(2)
    steps_of(helpers.compiled(model), batch_size=6)
    assert model.privacy_spent(helpers.DELTA).weights_unchanged
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        assert loaded.privacy_spent(helpers.DELTA).weights_unchanged is None
    assert steps_of(loaded, batch_size=6) == 8


def test_missing_values_and_rows_of_several_lengths_are_named():
    model = helpers.compiled()
    column = pd.array([1, None, *range(22)], dtype="Int64")
    frame = pd.DataFrame({"age": column, **dict.fromkeys("abc", X[:, 0])})
    with pytest.raises(TypeError, match=r"1 of 4 columns without numbers.*'age' \(missing val"):
        model.fit(frame, Y)
    with pytest.raises(ValueError, match=r"must all have the same shape\. Pad or cut"):
        model.fit([[1, 2, 3, 4], [1, 2]], [0, 1])
    assert model.privacy_ledger.steps == 0


class Columns:
    """What `datasets.Dataset` has: columns, rows by number, and an iterator over rows."""

    column_names = ("x", "y")

    def __len__(self):
        return 24

    def __getitem__(self, number):
        return {"x": X[number], "y": Y[number]}

    def __iter__(self):
        return map(self.__getitem__, range(24))


def test_a_data_set_of_single_examples_gets_the_advice_for_its_kind():
    with pytest.raises(TypeError, match=r"PoissonDataset.from_source.*x of type Columns"):
        helpers.compiled().fit(Columns(), num_examples=24)


def test_the_warning_of_private_diagnostics_points_at_the_call_of_fit():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        helpers.quiet_fit(helpers.compiled(), X, Y, batch_size=6, callbacks=[ClippingMonitor(True)])
    (told,) = [each for each in caught if "raw gradient norms" in str(each.message)]
    assert told.filename == helpers.__file__


def test_the_line_of_an_early_end_counts_epochs_and_executions_as_they_are(capsys):
    together = 1 if keras.backend.backend() == "torch" else 3
    model = helpers.compiled(**({} if together == 1 else {"steps_per_execution": together}))
    target = helpers.planned(14) * (1 + 1e-9)
    callbacks = [PrivacyCallback(helpers.DELTA, target)]
    model.fit(X, Y, batch_size=6, epochs=2, verbose=0)

    class Resumed(keras.callbacks.Callback):
        """As `BackupAndRestore` does."""

        def on_train_begin(self, logs=None):
            self.model._initial_epoch = 2

    model.fit(X, Y, batch_size=6, epochs=5, verbose=0, callbacks=[*callbacks, Resumed()])
    ending = model.history.ended_early
    more = "one more would" if together == 1 else "3 more (`steps_per_execution`) would"
    assert f": {more} pass the target" in ending
    # Three more steps of the fourth epoch would be one too many.
    assert f"(epoch {4 if together == 1 else 3} of 5)" in ending
