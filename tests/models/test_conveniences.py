"""Everything of Keras that users expect to go on working: the table of `docs/guides/keras.md`."""

import copy
import pickle
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import callbacks, layers

import keras_adaclip as ka
from tests.models import helpers
from tests.models.test_plain_copy import EXPORTS
from tests.models.test_sampling_in_fit import Batches

PAGE = Path(__file__).parents[2] / "docs/guides/keras.md"
BACKENDS = ("tensorflow", "jax", "torch")
BACKEND = keras.backend.backend()
X, Y = helpers.features(), helpers.labels()
DELTA = 1e-3
INPUTS = keras.Input((helpers.NUM_FEATURES,))


def fit(*data, model=None, **options):
    """Train for eight steps, check them, and return the model."""
    model = model or helpers.compiled(metrics=["accuracy"])
    data = data or (X, Y)
    sizes = {"batch_size": 6} if len(data) == 2 else {}
    history = model.fit(*data, **{"epochs": 2, "verbose": 0, **sizes, **options}).history
    assert np.isfinite(history["loss"]).all()
    assert model.privacy_spent(DELTA).steps == 8
    return model


def fit_stack(*stack):
    fit(model=helpers.compiled(ka.PrivateSequential([INPUTS, *stack, layers.Dense(3)])))


def monitored():
    return [ka.callbacks.PrivacyCallback(DELTA)]


def pandas_frames(_):
    pandas = pytest.importorskip("pandas")
    model = fit(pandas.DataFrame(X), pandas.Series(Y))
    assert model.predict(pandas.DataFrame(X), verbose=0).shape == (24, 3)


def polars_frames(_):
    polars = pytest.importorskip("polars")
    fit(polars.DataFrame(X), polars.Series(Y))


def pyarrow_tables(_):
    pyarrow = pytest.importorskip("pyarrow")
    fit(pyarrow.table({f"column{number}": X[:, number] for number in range(4)}), pyarrow.array(Y))


def strings(_):
    lookup = layers.StringLookup(vocabulary=["ant", "bee"])
    inputs = keras.Input((), dtype="string")
    outputs = layers.Dense(3)(layers.Embedding(3, 4)(lookup(inputs)))
    words = np.array(["ant", "bee"], object)[Y % 2]
    fit(words, Y, model=helpers.compiled(ka.PrivateModel(inputs, outputs)))


def several_inputs(_):
    inputs = {name: keras.Input((4,), name=name) for name in ("a", "b")}
    outputs = layers.Dense(3)(layers.Add()(list(inputs.values())))
    for structure, x in ((inputs, {"a": X, "b": X}), (list(inputs.values()), (X, X))):
        fit(x, Y, model=helpers.compiled(ka.PrivateModel(structure, outputs)))


def several_outputs(_):
    outputs = {name: layers.Dense(1, name=name)(INPUTS) for name in ("a", "b")}
    options = {"loss": {"a": "mse", "b": "mae"}, "loss_weights": {"a": 0.5, "b": 2.0}}
    y = {"a": X[:, :1], "b": X[:, 1:2]}
    fit(X, y, model=helpers.compiled(ka.PrivateModel(INPUTS, outputs), **options))


def generators(_):
    batches = (Batches()[index % 4] for index in range(8))
    fit(batches, steps_per_epoch=4, num_examples=24)


def tf_data(_):
    tensorflow = pytest.importorskip("tensorflow")
    fit(tensorflow.data.Dataset.from_tensor_slices((X, Y)).batch(6))


def data_loader(_):
    torch = pytest.importorskip("torch")
    rows = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    fit(torch.utils.data.DataLoader(rows, batch_size=6))


def validation_data(_):
    history = fit(validation_data=(X, Y), validation_freq=2).history.history
    assert len(history["val_accuracy"]) == 1


def validation_split(_):
    x, y = np.concatenate([X, X[:8]]), np.concatenate([Y, Y[:8]])
    assert "val_loss" in fit(x, y, validation_split=0.25).history.history


def single_batches(_):
    model = helpers.compiled(metrics=["accuracy"])
    model.train_on_batch(X, Y)
    assert len(model.evaluate(X, Y, verbose=0)) == 2
    assert model.predict(X, verbose=0).shape == (24, 3)


def metrics(_):
    logits = keras.metrics.SparseTopKCategoricalAccuracy(2)
    model = helpers.compiled(metrics=["accuracy", logits], weighted_metrics=["accuracy"])
    assert len(fit(model=model).history.history) == 4


def optimizers(_):
    rate = keras.optimizers.schedules.CosineDecay(0.1, 8)
    for inner in (keras.optimizers.AdamW(rate, weight_decay=0.01, use_ema=True), "lion", "muon"):
        fit(model=helpers.compiled(optimizer=inner))


class Subclassed(ka.PrivateModel):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x):
        return self.dense(x)


def kinds_of_models(_):
    functional = keras.Model(INPUTS, layers.Dense(3)(INPUTS))
    sequential = keras.Sequential([layers.Dense(3)])
    sequential.build((None, 4))
    for model in (ka.privatize(functional), ka.privatize(sequential), Subclassed()):
        fit(model=helpers.compiled(model))


def frozen_layers(_):
    frozen = layers.Dense(5, trainable=False)
    frozen.build((None, 4))
    before = frozen.get_weights()
    fit_stack(frozen)
    np.testing.assert_equal(frozen.get_weights(), before)


def lora(_):
    dense = layers.Dense(5)
    dense.build((None, 4))
    dense.enable_lora(2)
    fit_stack(dense)


def mixed_precision(_):
    for policy in ("mixed_float16", "mixed_bfloat16"):
        stack = [layers.Dense(5, dtype=policy), layers.Dense(3, dtype=policy)]
        fit(model=helpers.compiled(ka.PrivateSequential([INPUTS, *stack])))


def plateau(_):
    options = {"monitor": "val_loss", "min_delta": 1e9}
    slow = callbacks.ReduceLROnPlateau(factor=0.5, patience=1, **options)
    model = fit(validation_data=(X, Y), callbacks=[slow])
    assert float(model.optimizer.learning_rate) == pytest.approx(0.05)
    stop = callbacks.EarlyStopping(patience=0, **options)
    options = {"validation_data": (X, Y), "batch_size": 6, "epochs": 3, "verbose": 0}
    assert len(model.fit(X, Y, callbacks=[stop], **options).epoch) < 3


def checkpoint(folder):
    whole = callbacks.ModelCheckpoint(folder / "{epoch}.keras")
    weights = callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True)
    fit(callbacks=[whole, weights])
    assert keras.models.load_model(folder / "1.keras").privacy_spent(DELTA).steps == 4
    model = helpers.compiled()
    model.load_weights(folder / "2.weights.h5")
    assert model.privacy_spent(DELTA).steps == 8


def backup(folder):
    def stop(epoch, logs):
        raise KeyboardInterrupt

    backups = [callbacks.BackupAndRestore(folder / "backup") for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        fit(callbacks=[backups[0], callbacks.LambdaCallback(on_epoch_end=stop)])
    fit(callbacks=[backups[1]])


def schedulers(_):
    seen = []
    rate = callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    note = callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    model = fit(callbacks=[rate, callbacks.TerminateOnNaN(), note])
    assert float(model.optimizer.learning_rate) == pytest.approx(0.05)
    assert seen == [0, 1, 2, 3] * 2


def csv_logger(folder):
    fit(callbacks=[callbacks.CSVLogger(folder / "log.csv"), *monitored()])
    assert "epsilon" in (folder / "log.csv").read_text().splitlines()[0]


def tensorboard(folder):
    pytest.importorskip("tensorboard")
    fit(callbacks=[callbacks.TensorBoard(folder / "logs"), *monitored()])
    assert list((folder / "logs").rglob("events*"))


def swap_ema(_):
    inner = keras.optimizers.SGD(0.1, use_ema=True)
    swap = [callbacks.SwapEMAWeights(swap_on_epoch=True)]
    fit(model=helpers.compiled(optimizer=inner), callbacks=swap)


def keras_file(folder):
    model = fit()
    model.save(folder / "model.keras")
    for compile in (True, False):
        loaded = keras.models.load_model(folder / "model.keras", compile=compile)
        helpers.assert_same_weights(loaded, helpers.weights_of(model))
        assert loaded.privacy_spent(DELTA) == model.privacy_spent(DELTA)


def weights_file(folder):
    model, loaded = fit(), helpers.compiled()
    model.save_weights(folder / "model.weights.h5")
    loaded.load_weights(folder / "model.weights.h5")
    assert loaded.privacy_spent(DELTA) == model.privacy_spent(DELTA)


def copies(_):
    model = fit()
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert copied.privacy_spent(DELTA) == model.privacy_spent(DELTA)


def state_tree(_):
    model, other = fit(), helpers.compiled()
    other.set_state_tree(model.get_state_tree("numpy_array"))
    assert other.privacy_spent(DELTA) == model.privacy_spent(DELTA)


def plain_models(folder):
    plain = fit().to_keras(folder / "model.keras", delta=DELTA)
    assert not isinstance(keras.models.load_model(folder / "model.keras"), ka.PrivateModel)
    for export in EXPORTS[BACKEND]:
        exported = np.asarray(export(plain, str(folder / "exported")))
        np.testing.assert_allclose(exported, plain.predict(X[:8], verbose=0), atol=1e-5)


def keras_tuner(folder):
    library = pytest.importorskip("keras_tuner")
    plan = {"target_epsilon": 3.0, "delta": DELTA, "num_examples": 24, "epochs": 1}
    options = {"batch_sizes": [6], "loss": helpers.sparse_crossentropy(), **plan}
    hypermodel = ka.tuners.ClippingHyperModel(lambda: helpers.dense_model(keras.Model), **options)
    options = {"max_trials": 1, "directory": folder, "project_name": "search"}
    tuner = library.RandomSearch(hypermodel, "val_loss", **options)
    tuner.search(X, Y, validation_data=(X, Y), verbose=0)
    assert tuner.get_best_models()[0].privacy_spent(DELTA).epsilon <= 3.0


# Functions of a folder, by the rows of the page.
CASES = {
    "NumPy arrays": lambda _: fit(X, Y),
    "lists of numbers": lambda _: fit(X.tolist(), Y.tolist()),
    "tensors of the backend": lambda _: fit(*map(keras.ops.convert_to_tensor, (X, Y))),
    "pandas frames and series": pandas_frames,
    "polars frames and series": polars_frames,
    "PyArrow tables and columns": pyarrow_tables,
    "strings": strings,
    "several inputs, as a dict or a tuple": several_inputs,
    "several outputs, losses and loss weights": several_outputs,
    "`PyDataset`": lambda _: fit(Batches()),
    "generators": generators,
    "`tf.data.Dataset`": tf_data,
    "PyTorch's `DataLoader`": data_loader,
    "`PoissonDataset`": lambda _: fit(ka.sampling.PoissonDataset(X, Y, expected_batch_size=6)),
    "`validation_data`, `validation_freq`": validation_data,
    "`validation_split`": validation_split,
    "`class_weight`": lambda _: fit(class_weight={0: 2.0}),
    "`sample_weight`": lambda _: fit(sample_weight=np.linspace(0, 1, 24)),
    "`steps_per_epoch`, `initial_epoch`": lambda _: fit(
        steps_per_epoch=2, epochs=5, initial_epoch=1
    ),
    "`train_on_batch`, `evaluate`, `predict`": single_batches,
    "metrics, `weighted_metrics`": metrics,
    "any Keras optimizer, schedules of the learning rate": optimizers,
    "`run_eagerly`": lambda _: fit(model=helpers.compiled(run_eagerly=True)),
    "`jit_compile`": lambda _: fit(model=helpers.compiled(jit_compile=True)),
    "`steps_per_execution`": lambda _: fit(model=helpers.compiled(steps_per_execution=2)),
    "sequential, functional and subclassed models": kinds_of_models,
    "frozen layers": frozen_layers,
    "LoRA": lora,
    "regularizers, constraints, dropout": lambda _: fit_stack(
        layers.Dense(5, kernel_regularizer="l2", kernel_constraint="max_norm"), layers.Dropout(0.5)
    ),
    "preprocessing and random augmentation in the model": lambda _: fit_stack(
        layers.Normalization(mean=0.0, variance=1.0), layers.GaussianNoise(0.1)
    ),
    "mixed precision: `mixed_float16`, `mixed_bfloat16`": mixed_precision,
    "`EarlyStopping`, `ReduceLROnPlateau` on validation data": plateau,
    "`ModelCheckpoint`": checkpoint,
    "`BackupAndRestore`": backup,
    "`LearningRateScheduler`, `TerminateOnNaN`, `LambdaCallback`": schedulers,
    "`CSVLogger`, with epsilon": csv_logger,
    "`TensorBoard`, with epsilon": tensorboard,
    "`SwapEMAWeights`": swap_ema,
    "`save`, `load_model` of a `.keras` file": keras_file,
    "`save_weights`, `load_weights`": weights_file,
    "`pickle`, `copy.deepcopy`": copies,
    "`get_state_tree`, `set_state_tree`": state_tree,
    "`to_keras`, and `export` of it": plain_models,
    "keras-tuner's tuners, with `ClippingHyperModel`": keras_tuner,
}
ONLY = {"strings": ("tensorflow",)}
ONLY |= dict.fromkeys(("`jit_compile`", "`steps_per_execution`"), ("tensorflow", "jax"))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")  # Keras and exporters warn of their next versions.
def test_what_works_in_keras_works_privately(name, tmp_path):
    if BACKEND not in ONLY.get(name, BACKENDS):
        pytest.skip("Keras has no such thing on this backend")
    CASES[name](tmp_path)


def test_the_page_says_what_was_tested():
    rows = re.findall(r"^\| (.+?) \| (yes|no) \| (yes|no) \| (yes|no) \|", PAGE.read_text(), re.M)
    assert {name: tuple(cells) for name, *cells in rows} == {
        name: tuple("yes" if each in ONLY.get(name, BACKENDS) else "no" for each in BACKENDS)
        for name in CASES
    }
