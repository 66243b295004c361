"""Everything of Keras that users expect to go on working: the table of `docs/guides/keras.md`."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import callbacks, layers

import keras_adaclip as ka
from tests.models import helpers

PAGE = Path(__file__).parents[2] / "docs/guides/keras.md"
BACKENDS = ("tensorflow", "jax", "torch")
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


def polars_frames(_):
    polars = pytest.importorskip("polars")
    fit(polars.DataFrame(X), polars.Series(Y))


def pyarrow_tables(_):
    pyarrow = pytest.importorskip("pyarrow")
    fit(pyarrow.table({f"column{number}": X[:, number] for number in range(4)}), pyarrow.array(Y))


def several_inputs(_):
    for take, x in ((dict, {"a": X, "b": X}), (lambda inputs: list(inputs.values()), (X, X))):
        inputs = {name: keras.Input((4,), name=name) for name in ("a", "b")}
        outputs = layers.Dense(3)(layers.Add()(list(inputs.values())))
        fit(x, Y, model=helpers.compiled(ka.PrivateModel(take(inputs), outputs)))


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


def optimizers(_):
    rate = keras.optimizers.schedules.CosineDecay(0.1, 8)
    for inner in (keras.optimizers.AdamW(rate, weight_decay=0.01, use_ema=True), "lion", "muon"):
        fit(model=helpers.compiled(optimizer=inner))


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


def plateau(_):
    options = {"monitor": "val_loss", "min_delta": 1e9}
    slow = callbacks.ReduceLROnPlateau(factor=0.5, patience=1, **options)
    model = fit(validation_data=(X, Y), callbacks=[slow])
    assert float(model.optimizer.learning_rate) == pytest.approx(0.05)
    stop = callbacks.EarlyStopping(patience=0, **options)
    options = {"validation_data": (X, Y), "batch_size": 6, "epochs": 3, "verbose": 0}
    assert len(model.fit(X, Y, callbacks=[stop], **options).epoch) < 3


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


# By the rows of the page: functions of a folder, or the test elsewhere that shows it.
LIKE_KERAS = "models/test_like_keras.py::test_private_training_without_noise_is_keras_training"
LIKE_ARRAYS = (
    "models/test_sampling_in_fit.py::"
    "test_tensors_lists_and_frames_are_arrays_whose_last_rows_may_validate"
)
SAMPLED = "models/test_sampling_in_fit.py::test_the_ledger_says_how_examples_were_sampled"
IN_EVERY_MODE = "soundness/test_rules_schedules.py::test_each_epoch_has_the_noise_of_its_first_step"
SAVED = "models/test_saving.py::test_a_model_and_its_layers_bring_the_whole_ledger"
RESUMED = (
    "soundness/test_rules_survival.py::test_an_interrupted_run_never_ends_with_a_lower_epsilon"
)
CASES = {
    "NumPy arrays": LIKE_ARRAYS,
    "lists of numbers": LIKE_ARRAYS,
    "tensors of the backend": LIKE_ARRAYS,
    "pandas frames and series": LIKE_ARRAYS,
    "polars frames and series": polars_frames,
    "PyArrow tables and columns": pyarrow_tables,
    "strings": "models/test_strings.py::test_strings_train_as_their_numbers_do",
    "several inputs, as a dict or a tuple": several_inputs,
    "several outputs, losses and loss weights": LIKE_KERAS,
    "`PyDataset`": SAMPLED,
    "generators": SAMPLED,
    "`tf.data.Dataset`": tf_data,
    "PyTorch's `DataLoader`": data_loader,
    "`PoissonDataset`": "models/test_sampling_in_fit.py::"
    "test_seeds_of_noise_and_draws_are_remembered",
    "`validation_data`, `validation_freq`": validation_data,
    "`validation_split`": LIKE_ARRAYS,
    "`class_weight`": LIKE_KERAS,
    "`sample_weight`": LIKE_KERAS,
    "`steps_per_epoch`, `initial_epoch`": lambda _: fit(
        steps_per_epoch=2, epochs=5, initial_epoch=1
    ),
    "`train_on_batch`, `evaluate`, `predict`": "models/test_sampling_in_fit.py::"
    "test_train_on_batch_is_one_release",
    "metrics, `weighted_metrics`": LIKE_KERAS,
    "any Keras optimizer, schedules of the learning rate": optimizers,
    "`run_eagerly`": IN_EVERY_MODE,
    "`jit_compile`": IN_EVERY_MODE,
    "`steps_per_execution`": IN_EVERY_MODE,
    "sequential, functional and subclassed models": "models/test_kinds_of_models.py::"
    "test_models_of_all_kinds_beside_each_other_are_trained_counted_saved_and_loaded",
    "frozen layers": frozen_layers,
    "LoRA": lora,
    "regularizers, constraints, dropout": lambda _: fit_stack(
        layers.Dense(5, kernel_regularizer="l2", kernel_constraint="max_norm"), layers.Dropout(0.5)
    ),
    "preprocessing and random augmentation in the model": lambda _: fit_stack(
        layers.Normalization(mean=0.0, variance=1.0), layers.GaussianNoise(0.1)
    ),
    "`keras.remat` (private steps compute nothing again)": "gradients/test_architectures.py::"
    "test_layers_that_compute_results_again_train_as_others_do",
    "mixed precision: `mixed_float16`, `mixed_bfloat16`": "soundness/test_rules_noise_scale.py::"
    "test_norms_and_sums_are_float32_in_every_precision",
    "`EarlyStopping`, `ReduceLROnPlateau` on validation data": plateau,
    "`ModelCheckpoint`": RESUMED,
    "`BackupAndRestore`": RESUMED,
    "`LearningRateScheduler`, `TerminateOnNaN`, `LambdaCallback`": schedulers,
    "`CSVLogger`, with epsilon": csv_logger,
    "`TensorBoard`, with epsilon": tensorboard,
    "`SwapEMAWeights`": swap_ema,
    "`save`, `load_model` of a `.keras` file": SAVED,
    "`save_weights`, `load_weights`": SAVED,
    "`pickle`, `copy.deepcopy`": SAVED,
    "`get_state_tree`, `set_state_tree`": SAVED,
    "`to_keras`, and `export` of it": "models/test_plain_copy.py::test_exports_compute_the_same",
    "keras-tuner's tuners, with `ClippingHyperModel`": "tuners/test_clipping_hypermodel.py::"
    "test_every_trial_spends_the_target_at_its_batch_size",
}
ONLY = {"strings": ("tensorflow",)}
ONLY |= dict.fromkeys(("`jit_compile`", "`steps_per_execution`"), ("tensorflow", "jax"))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if callable(case)])
@pytest.mark.filterwarnings("ignore")  # Keras warns of its next versions.
def test_what_works_in_keras_works_privately(name, tmp_path):
    CASES[name](tmp_path)


def test_the_page_says_what_was_tested():
    rows = re.findall(r"^\| (.+?) \| (yes|no) \| (yes|no) \| (yes|no) \|", PAGE.read_text(), re.M)
    assert {name: tuple(cells) for name, *cells in rows} == {
        name: tuple("yes" if each in ONLY.get(name, BACKENDS) else "no" for each in BACKENDS)
        for name in CASES
    }
    for elsewhere in (case for case in CASES.values() if not callable(case)):
        file, _, test = elsewhere.partition("::")
        assert f"def {test}(" in (Path(__file__).parents[1] / file).read_text()
