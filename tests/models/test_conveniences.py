"""Everything of Keras that users expect to go on working: the table of `docs/guides/keras.md`."""

import copy
import importlib.util
import pickle
import re
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers
from tests.models.test_plain_copy import EXPORTS
from tests.models.test_sampling_in_fit import Batches

PAGE = Path(__file__).parents[2] / "docs/guides/keras.md"
BACKEND = keras.backend.backend()
BACKENDS = ("tensorflow", "jax", "torch")
COMPILED = ("tensorflow", "jax")
X, Y = helpers.features(), helpers.labels()
DELTA = 1e-3
CASES = {}


def case(name, backends=BACKENDS, needs=None):
    """Register a function of `tmp_path` as the test of the row with this name."""

    def register(function):
        CASES[name] = (function, backends, needs)
        return function

    return register


def fit(*data, model=None, **options):
    """Train for eight steps, check them, and return the model."""
    model = model or helpers.compiled(metrics=["accuracy"])
    sizes = {"batch_size": 6} if len(data) == 2 else {}
    history = model.fit(*data, **{"epochs": 2, "verbose": 0, **sizes, **options}).history
    assert np.isfinite(history["loss"]).all()
    assert model.privacy_spent(DELTA).steps == 8
    return model


def compiled(*layers, inputs=helpers.NUM_FEATURES, **options):
    stack = [keras.Input((inputs,) if isinstance(inputs, int) else inputs), *layers]
    return helpers.compiled(ka.PrivateSequential(stack), **options)


# ---- data ---------------------------------------------------------------------------------------


@case("NumPy arrays")
def arrays(_):
    fit(X, Y)


@case("lists of numbers")
def lists(_):
    fit(X.tolist(), Y.tolist())


@case("tensors of the backend")
def tensors(_):
    fit(*map(keras.ops.convert_to_tensor, (X, Y)))


@case("pandas frames and series", needs="pandas")
def pandas_frames(_):
    import pandas

    model = fit(pandas.DataFrame(X), pandas.Series(Y))
    assert model.predict(pandas.DataFrame(X), verbose=0).shape == (24, 3)


@case("polars frames and series", needs="polars")
def polars_frames(_):
    import polars

    fit(polars.DataFrame(X), polars.Series(Y))


@case("PyArrow tables and columns", needs="pyarrow")
def pyarrow_tables(_):
    import pyarrow

    table = pyarrow.table({f"column{number}": X[:, number] for number in range(X.shape[1])})
    fit(table, pyarrow.array(Y))


@case("strings", backends=("tensorflow",))
def strings(_):
    words = np.array(["ant", "bee"], object)[Y % 2]
    lookup = keras.layers.StringLookup(vocabulary=["ant", "bee"])
    inputs = keras.Input((), dtype="string")
    hidden = keras.layers.Embedding(3, 4)(lookup(inputs))
    fit(words, Y, model=helpers.compiled(ka.PrivateModel(inputs, keras.layers.Dense(3)(hidden))))


@case("several inputs, as a dict or a tuple")
def several_inputs(_):
    inputs = {name: keras.Input((4,), name=name) for name in ("a", "b")}
    joined = keras.layers.Add()(list(inputs.values()))
    for structure, x in ((inputs, {"a": X, "b": X}), (list(inputs.values()), (X, X))):
        model = ka.PrivateModel(structure, keras.layers.Dense(3)(joined))
        fit(x, Y, model=helpers.compiled(model))


@case("several outputs, losses and loss weights")
def several_outputs(_):
    inputs = keras.Input((4,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
    options = {"loss": {"a": "mse", "b": "mae"}, "loss_weights": {"a": 0.5, "b": 2.0}}
    y = {"a": X[:, :1], "b": X[:, 1:2]}
    fit(X, y, model=helpers.compiled(ka.PrivateModel(inputs, outputs), **options))


@case("`PyDataset`")
def py_dataset(_):
    fit(Batches())


@case("generators")
def generators(_):
    batches = (Batches()[index % 4] for index in range(8))
    fit(batches, steps_per_epoch=4, num_examples=24)


@case("`tf.data.Dataset`", needs="tensorflow")
def tf_data(_):
    import tensorflow

    fit(tensorflow.data.Dataset.from_tensor_slices((X, Y)).batch(6))


@case("PyTorch's `DataLoader`", needs="torch")
def data_loader(_):
    import torch

    rows = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    fit(torch.utils.data.DataLoader(rows, batch_size=6))


@case("`PoissonDataset`")
def poisson_dataset(_):
    fit(ka.sampling.PoissonDataset(X, Y, expected_batch_size=6))


# ---- arguments of fit ---------------------------------------------------------------------------


@case("`validation_data`, `validation_freq`")
def validation_data(_):
    model = fit(X, Y, validation_data=(X, Y), validation_freq=2)
    assert len(model.history.history["val_accuracy"]) == 1


@case("`validation_split`")
def validation_split(_):
    x, y = np.concatenate([X, X[:8]]), np.concatenate([Y, Y[:8]])
    assert "val_loss" in fit(x, y, validation_split=0.25).history.history


@case("`class_weight`")
def class_weight(_):
    fit(X, Y, class_weight={0: 2.0})


@case("`sample_weight`")
def sample_weight(_):
    fit(X, Y, sample_weight=np.linspace(0, 1, 24))


@case("`steps_per_epoch`, `initial_epoch`")
def steps_and_epochs(_):
    fit(X, Y, steps_per_epoch=2, epochs=5, initial_epoch=1)


@case("`train_on_batch`, `evaluate`, `predict`")
def single_batches(_):
    model = helpers.compiled(metrics=["accuracy"])
    model.train_on_batch(X, Y)
    assert len(model.evaluate(X, Y, verbose=0)) == 2
    assert model.predict(X, verbose=0).shape == (24, 3)


# ---- arguments of compile -----------------------------------------------------------------------


@case("metrics, `weighted_metrics`")
def metrics(_):
    logits = keras.metrics.SparseTopKCategoricalAccuracy(2)
    model = helpers.compiled(metrics=["accuracy", logits], weighted_metrics=["accuracy"])
    assert len(fit(X, Y, model=model).history.history) == 4


@case("any Keras optimizer, schedules of the learning rate")
def optimizers(_):
    rate = keras.optimizers.schedules.CosineDecay(0.1, 8)
    for inner in (keras.optimizers.AdamW(rate, weight_decay=0.01, use_ema=True), "lion", "muon"):
        fit(X, Y, model=helpers.compiled(optimizer=inner))


@case("`run_eagerly`")
def run_eagerly(_):
    fit(X, Y, model=helpers.compiled(run_eagerly=True))


@case("`jit_compile`", backends=COMPILED)
def jit_compile(_):
    fit(X, Y, model=helpers.compiled(jit_compile=True))


@case("`steps_per_execution`", backends=COMPILED)
def steps_per_execution(_):
    fit(X, Y, model=helpers.compiled(steps_per_execution=2))


# ---- models -------------------------------------------------------------------------------------


class Subclassed(ka.PrivateModel):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)


@case("sequential, functional and subclassed models")
def kinds_of_models(_):
    inputs = keras.Input((4,))
    functional = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    sequential = keras.Sequential([keras.layers.Dense(3)])
    sequential.build((None, 4))
    for model in (ka.privatize(functional), ka.privatize(sequential), Subclassed()):
        fit(X, Y, model=helpers.compiled(model))


@case("frozen layers")
def frozen_layers(_):
    frozen = keras.layers.Dense(5, trainable=False)
    model = compiled(frozen, keras.layers.Dense(3))
    before = keras.ops.convert_to_numpy(frozen.kernel)
    fit(X, Y, model=model)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(frozen.kernel), before)


@case("LoRA")
def lora(_):
    dense = keras.layers.Dense(5)
    dense.build((None, 4))
    dense.enable_lora(2)
    fit(X, Y, model=compiled(dense, keras.layers.Dense(3)))


@case("regularizers, constraints, dropout")
def layer_options(_):
    dense = keras.layers.Dense(5, kernel_regularizer="l2", kernel_constraint="max_norm")
    fit(X, Y, model=compiled(dense, keras.layers.Dropout(0.5), keras.layers.Dense(3)))


@case("preprocessing and random augmentation in the model")
def preprocessing(_):
    normalization = keras.layers.Normalization(mean=0.0, variance=1.0)
    layers = [normalization, keras.layers.GaussianNoise(0.1), keras.layers.Dense(3)]
    fit(X, Y, model=compiled(*layers))


@case("mixed precision: `mixed_float16`, `mixed_bfloat16`")
def mixed_precision(_):
    for policy in ("mixed_float16", "mixed_bfloat16"):
        layers = [keras.layers.Dense(5, dtype=policy), keras.layers.Dense(3, dtype=policy)]
        fit(X, Y, model=compiled(*layers))


# ---- callbacks ----------------------------------------------------------------------------------


@case("`EarlyStopping`, `ReduceLROnPlateau` on validation data")
def plateau(_):
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=1e9)
    slow = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=1e9)
    model = fit(X, Y, validation_data=(X, Y), callbacks=[slow])
    assert float(model.optimizer.learning_rate) == pytest.approx(0.05)
    options = {"validation_data": (X, Y), "batch_size": 6, "epochs": 3, "verbose": 0}
    assert len(model.fit(X, Y, callbacks=[stop], **options).epoch) < 3


@case("`ModelCheckpoint`")
def checkpoint(tmp_path):
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras"),
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True),
    ]
    fit(X, Y, callbacks=callbacks)
    assert keras.models.load_model(tmp_path / "1.keras").privacy_spent(DELTA).steps == 4
    model = helpers.compiled()
    model.load_weights(tmp_path / "2.weights.h5")
    assert model.privacy_spent(DELTA).steps == 8


@case("`BackupAndRestore`")
def backup(tmp_path):
    def stop(epoch, logs):
        raise KeyboardInterrupt

    end = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    model = helpers.compiled()
    backups = [keras.callbacks.BackupAndRestore(tmp_path / "backup") for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        helpers.quiet_fit(model, X, Y, batch_size=6, epochs=2, callbacks=[backups[0], end])
    fit(X, Y, callbacks=[backups[1]])


@case("`LearningRateScheduler`, `TerminateOnNaN`, `LambdaCallback`")
def schedulers(_):
    seen = []
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch)),
    ]
    model = fit(X, Y, callbacks=callbacks)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.05)
    assert seen == [0, 1, 2, 3] * 2


@case("`CSVLogger`, with epsilon")
def csv_logger(tmp_path):
    budget = ka.callbacks.PrivacyCallback(DELTA)
    fit(X, Y, callbacks=[keras.callbacks.CSVLogger(tmp_path / "log.csv"), budget])
    assert "epsilon" in (tmp_path / "log.csv").read_text().splitlines()[0]


@case("`TensorBoard`, with epsilon", needs="tensorboard")
def tensorboard(tmp_path):
    budget = ka.callbacks.PrivacyCallback(DELTA)
    fit(X, Y, callbacks=[keras.callbacks.TensorBoard(tmp_path / "logs"), budget])
    assert list((tmp_path / "logs").rglob("events*"))


@case("`SwapEMAWeights`")
def swap_ema(_):
    inner = keras.optimizers.SGD(0.1, use_ema=True)
    callbacks = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]
    fit(X, Y, model=helpers.compiled(optimizer=inner), callbacks=callbacks)


# ---- saving -------------------------------------------------------------------------------------


@case("`save`, `load_model` of a `.keras` file")
def keras_file(tmp_path):
    model = fit(X, Y)
    model.save(tmp_path / "model.keras")
    for compile in (True, False):
        loaded = keras.models.load_model(tmp_path / "model.keras", compile=compile)
        helpers.assert_same_weights(loaded, helpers.weights_of(model))
        assert loaded.privacy_spent(DELTA) == model.privacy_spent(DELTA)


@case("`save_weights`, `load_weights`")
def weights_file(tmp_path):
    model = fit(X, Y)
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = helpers.compiled()
    loaded.load_weights(tmp_path / "model.weights.h5")
    assert loaded.privacy_spent(DELTA) == model.privacy_spent(DELTA)


@case("`pickle`, `copy.deepcopy`")
def copies(_):
    model = fit(X, Y)
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert copied.privacy_spent(DELTA) == model.privacy_spent(DELTA)


@case("`get_state_tree`, `set_state_tree`")
def state_tree(_):
    model, other = fit(X, Y), helpers.compiled()
    other.set_state_tree(model.get_state_tree("numpy_array"))
    assert other.privacy_spent(DELTA) == model.privacy_spent(DELTA)


@case("`to_keras`, and `export` of it")
def plain_models(tmp_path):
    plain = fit(X, Y).to_keras(tmp_path / "model.keras", delta=DELTA)
    assert not isinstance(keras.models.load_model(tmp_path / "model.keras"), ka.PrivateModel)
    for export in EXPORTS[BACKEND]:
        exported = np.asarray(export(plain, str(tmp_path / "exported")))
        np.testing.assert_allclose(exported, plain.predict(X[:8], verbose=0), atol=1e-5)


# ---- tuners -------------------------------------------------------------------------------------


@case("keras-tuner's tuners, with `ClippingHyperModel`", needs="keras_tuner")
def keras_tuner(tmp_path):
    import keras_tuner

    plan = {"target_epsilon": 3.0, "delta": DELTA, "num_examples": 24, "epochs": 1}
    hypermodel = ka.tuners.ClippingHyperModel(
        lambda: helpers.dense_model(keras.Model),
        batch_sizes=[6],
        loss=helpers.sparse_crossentropy(),
        **plan,
    )
    folder = {"directory": tmp_path, "project_name": "search"}
    tuner = keras_tuner.RandomSearch(hypermodel, "val_loss", max_trials=1, **folder)
    tuner.search(X, Y, validation_data=(X, Y), verbose=0)
    assert tuner.get_best_models()[0].privacy_spent(DELTA).epsilon <= 3.0


# ---- the table ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")  # Keras and exporters warn of their next versions.
def test_what_works_in_keras_works_privately(name, tmp_path):
    function, backends, needs = CASES[name]
    if BACKEND not in backends:
        pytest.skip("Keras has no such thing on this backend")
    if needs is not None and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    function(tmp_path)


def test_the_page_says_what_was_tested():
    rows = re.findall(r"^\| (.+?) \| (yes|no) \| (yes|no) \| (yes|no) \|", PAGE.read_text(), re.M)
    assert {name: tuple(cells) for name, *cells in rows} == {
        name: tuple("yes" if each in backends else "no" for each in BACKENDS)
        for name, (_, backends, _) in CASES.items()
    }
