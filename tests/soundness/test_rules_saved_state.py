"""Rules 16, 18 and 19: nothing that leaves a model holds the key of its noise, or loses the ledger.

One table holds every form in which Keras and the frameworks take state out of a model.
"""

import copy
import io
import itertools
import pickle
import zipfile

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.accounting import Ledger, read_ledger
from tests.soundness.setups import dp_sgd, key_of, line_data, line_model, minus_output

BACKEND = keras.backend.backend()
X, Y = line_data([1.0, 2.0, -1.0, 0.5])
STEPS = 2


def trained(model=None, callbacks=None):
    model = line_model(dp_sgd()) if model is None else model
    model.fit(X, Y, batch_size=2, epochs=1, verbose=0, callbacks=callbacks)
    return model


@pytest.fixture
def drawn_keys(monkeypatch):
    keys, optimizer = [], ka.optimizers.DPOptimizer
    set_noise = optimizer._set_noise

    def recording(self, *arguments):
        set_noise(self, *arguments)
        keys.append(key_of(self))

    monkeypatch.setattr(optimizer, "_set_noise", recording)
    return keys


def file_bytes(folder):
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def saved_to(name, **options):
    def take(model, folder):
        save = model.save_weights if ".weights." in name else model.save
        save(folder / name, **options)

    return take


def of_tree(value_format):
    def take(model, folder):
        leaves = keras.tree.flatten(model.get_state_tree(value_format))
        return [np.asarray(keras.ops.convert_to_numpy(leaf)).tobytes() for leaf in leaves]

    return take


def configs(model, folder):
    found = (model.get_config(), model.get_compile_config(), model.optimizer.get_config())
    return [repr(found).encode()]


def legacy_file(model, folder):
    with pytest.raises(ValueError, match=r"HDF5 file of the whole model"):
        model.save(folder / "model.h5")
    assert not list(folder.iterdir())
    path = folder / "model.hdf5"
    for include_optimizer in (True, False):
        with pytest.raises(ValueError, match=r"HDF5 file of the whole model"):
            keras.saving.save_model(model, path, include_optimizer=include_optimizer)


def tensorflow_checkpoint(model, folder):
    import tensorflow as tf

    for tracked in ({"model": model}, {"optimizer": model.optimizer}):
        with pytest.raises(ValueError, match="TensorFlow's own checkpoints"):
            tf.train.Checkpoint(**tracked).save(str(folder / "checkpoint"))


def saved_model(model, folder):
    import tensorflow as tf

    tf.saved_model.save(model, str(folder / "saved"))


def torch_file(part):
    def take(model, folder):
        import torch

        torch.save(part(model), folder / "model.pt")

    return take


# Each returns bytes or writes files into a folder.
FORMS = {
    "keras file": saved_to("model.keras"),
    "keras folder": saved_to("model", zipped=False),
    "weights": saved_to("run.weights.h5"),
    "weights in shards": saved_to("run.weights.json", max_shard_size=1e-4),
    "HDF5 file": legacy_file,
    "state tree": of_tree("backend_tensor"),
    "state tree of arrays": of_tree("numpy_array"),
    "pickle": lambda model, folder: [pickle.dumps(model), pickle.dumps(model.optimizer)],
    "config": configs,
    "plain file": lambda model, folder: model.to_keras().save(folder / "plain.keras"),
}
if BACKEND == "tensorflow":
    FORMS |= {
        "export": lambda model, folder: model.export(folder / "exported", verbose=False),
        "saved model": saved_model,
        "TensorFlow checkpoint": tensorflow_checkpoint,
    }
if BACKEND == "torch":
    FORMS |= {
        "torch.save": torch_file(lambda model: model),
        "state_dict": torch_file(lambda model: model.state_dict()),
    }


def unpacked(data):
    """The bytes, and those of each file in each archive somewhere in them."""
    yield data
    start = data.find(b"PK\x03\x04")
    if start < 0:
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data[start:])) as archive:
            for name in archive.namelist():
                yield from unpacked(archive.read(name))
    except zipfile.BadZipFile:
        return


def assert_holds_no_key(parts, keys):
    assert keys
    for part in parts:
        for data, key in itertools.product(unpacked(part), keys):
            assert key not in data
            assert not all(str(word).encode() in data for word in np.frombuffer(key, np.int32))


class LabelSums(keras.metrics.Metric):
    """Sums of labels, which no other number of a run resembles."""

    def __init__(self, **options):
        super().__init__(**options)
        self.sums = self.add_weight(shape=(2,), initializer="zeros", name="sums")

    def update_state(self, y_true, y_pred, sample_weight=None):
        weights = 1.0 if sample_weight is None else keras.ops.reshape(sample_weight, (-1, 1))
        weighted = weights * y_true
        self.sums.assign_add(keras.ops.stack([keras.ops.sum(weighted), 0.7310585]))

    def result(self):
        return self.sums[0]


class Tracked(keras.layers.Dense):
    def __init__(self, units, **options):
        super().__init__(units, **options)
        self.tracker = LabelSums(name="of_layer")


def watched():
    """A model with metrics of `compile`, of a layer and as attributes."""
    inputs = keras.Input((1,))
    model = ka.PrivateModel(inputs, Tracked(1, activation="sigmoid")(inputs))
    model.trackers = {"one": [LabelSums(name="one")]}
    metrics = {"metrics": [LabelSums(name="labels"), keras.metrics.AUC(name="auc")]}
    metrics["weighted_metrics"] = [keras.metrics.BinaryAccuracy(name="accuracy")]
    model.compile(optimizer=dp_sgd(), loss="binary_crossentropy", **metrics)
    return model


def values_of_metrics(model):
    """What tells of labels, as bytes; not numbers such as 1.5, which are anywhere."""
    if BACKEND == "jax":
        model.jax_state_sync()
    (tracker,) = model.trackers["one"]
    tracker.sums.assign(tracker.sums + 0.1234567)
    model.layers[-1].tracker.sums.assign([0.7654321, 7.6543210])
    values = [np.asarray(keras.ops.convert_to_numpy(v)) for v in model.metrics_variables]
    values = [value.tobytes() for value in values if value.any()]
    found = [data for data in values if len(data) > 4 or 0 not in data]
    assert len(found) >= 2
    return found


# Orbax says on JAX that it takes the sharding from the file.
@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
def test_nothing_that_leaves_a_model_holds_a_key_or_the_values_of_metrics(drawn_keys, tmp_path):
    """Each form is taken after a batch, after an epoch and after the run."""
    model, taken, leaks = watched(), [], set()

    def take_all(when):
        values = values_of_metrics(model)
        for name, take in FORMS.items():
            folder = tmp_path / f"{when} {len(taken)}" / name
            folder.mkdir(parents=True)
            parts = [*(take(model, folder) or []), *file_bytes(folder)]
            assert_holds_no_key(parts, drawn_keys)
            parts = [data for part in parts for data in unpacked(part)]
            leaks.update(name for data in parts if any(value in data for value in values))
        taken.append(when)

    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: taken or take_all("batch"),
        on_epoch_end=lambda epoch, logs: epoch or take_all("epoch"),
    )
    y = np.array([1.0, 0.0, 1.0, 1.0], "float32")[:, None]
    model.fit(X, y, batch_size=3, epochs=2, verbose=0, callbacks=[callback])
    take_all("run")
    assert taken == ["batch", "epoch", "run"]
    assert not leaks


def test_a_checkpoint_as_hdf5_is_refused_before_training(tmp_path):
    model = line_model(dp_sgd())
    with pytest.raises(ValueError, match=r"ModelCheckpoint.*\.keras.*model\.h5"):
        trained(model, [keras.callbacks.ModelCheckpoint(tmp_path / "model.h5")])


@pytest.mark.parametrize("seed", [None, 5])
def test_the_key_is_gone_when_the_run_ends(seed, drawn_keys):
    model = trained(line_model(dp_sgd(seed=seed)))
    model.train_on_batch(X, Y)
    values = [np.asarray(keras.ops.convert_to_numpy(v.value)) for v in model.optimizer.variables]
    assert_holds_no_key([value.tobytes() for value in values], drawn_keys)
    assert len(set(drawn_keys)) >= 2


# Orbax says on JAX that it takes the sharding from the file.
@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
def test_checkpoints_of_callbacks_hold_no_key_and_keep_the_ledger(drawn_keys, tmp_path):
    pytest.importorskip("orbax.checkpoint")
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
    trained(callbacks=[backup, keras.callbacks.OrbaxCheckpoint(tmp_path / "orbax")])
    assert_holds_no_key(file_bytes(tmp_path), drawn_keys)
    loaded = line_model(dp_sgd())
    loaded.load_weights(tmp_path / "orbax")
    assert loaded.privacy_ledger.steps == STEPS


# What comes back


@pytest.mark.parametrize("copied", [copy.copy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_model_have_its_ledger_and_go_on_as_runs_of_their_own(copied):
    model = trained()
    with keras.saving.custom_object_scope({"minus_output": minus_output}):
        copies = [copied(model) for _ in range(2)]
    assert len({key_of(each.optimizer) for each in (model, *copies)}) == 3
    assert copies[0].privacy_ledger == model.privacy_ledger
    first, second = (trained(each).privacy_ledger for each in copies)
    assert first.merge(second).steps == 3 * STEPS


def test_files_and_state_trees_hold_what_a_run_has_pledged(tmp_path):
    """Without counting twice what ran before, in this process or another."""
    model, path, other = trained(), tmp_path / "run.weights.h5", line_model(dp_sgd())
    for resumed in (model, other):
        if resumed is other:
            other.load_weights(path)
        row = model.privacy_ledger.current
        pledged = row.advance(100)
        resumed.pledged_ledger = Ledger((pledged,))
        resumed.save_weights(path)
        tree = resumed.get_state_tree()
        resumed.pledged_ledger = None
        for part in ("optimizer_variables", "non_trainable_variables"):
            again = line_model(dp_sgd())
            again.set_state_tree({part: tree[part]})
            assert again.privacy_ledger.steps == pledged.steps
        assert read_ledger(path).steps == pledged.steps


def test_an_earlier_state_tree_lowers_nothing():
    model = trained()
    early = model.get_state_tree("numpy_array")
    trained(trained(model))
    for keys in (("optimizer_variables",), ("non_trainable_variables",), early):
        model.set_state_tree({key: early[key] for key in keys})
        assert model.privacy_ledger.steps == 3 * STEPS
    assert trained(model).privacy_ledger.steps == 4 * STEPS


def test_a_state_tree_that_was_set_never_brings_a_key(drawn_keys):
    """Not even one that somebody has written into it."""
    model, written = trained(), np.array([7, 8], np.int32)
    tree = model.get_state_tree("numpy_array")
    folder, name = model.optimizer.secret_variables[0].path.split("/")
    assert name not in tree["optimizer_variables"][folder]
    tree["optimizer_variables"][folder][name] = written
    model.set_state_tree(tree)
    assert key_of(model.optimizer) != written.tobytes()
    drawn_keys.clear()
    trained(model)
    assert written.tobytes() not in drawn_keys
