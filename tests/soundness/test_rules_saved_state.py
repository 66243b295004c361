"""Rules 16, 18 and 19: nothing that leaves a model holds the key of its noise, or loses the ledger.

Every way in which Keras and the frameworks take state out of a model, in one table.
"""

import copy
import io
import pickle
import zipfile

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.optimizers.noise_state import NoiseState
from tests.soundness.setups import dp_sgd, line_data, line_model

BACKEND = keras.backend.backend()
X, Y = line_data([1.0, 2.0, -1.0, 0.5])
STEPS = 2


def trained(model=None, callbacks=None, **options):
    model = line_model(dp_sgd(), **options) if model is None else model
    model.fit(X, Y, batch_size=2, epochs=1, verbose=0, callbacks=callbacks)
    return model


@pytest.fixture
def drawn_keys(monkeypatch):
    """The keys under which noise is drawn, as bytes."""
    keys, configure = [], NoiseState.configure

    def recording(variables, *arguments):
        configure(variables, *arguments)
        keys.append(np.array(keras.ops.convert_to_numpy(variables.key.value)).tobytes())

    monkeypatch.setattr(NoiseState, "configure", recording)
    return keys


def file_bytes(folder):
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def saved_to(name, **options):
    def take(model, folder):
        path = folder / name
        save = model.save_weights if ".weights." in name else model.save
        save(path, **options)
        return file_bytes(folder)

    return take


def of_tree(value_format):
    def take(model, folder):
        leaves = keras.tree.flatten(model.get_state_tree(value_format))
        return [np.asarray(keras.ops.convert_to_numpy(leaf)).tobytes() for leaf in leaves]

    return take


def exported(model, folder):
    model.export(folder / "exported", verbose=False)
    return file_bytes(folder)


def legacy_file(model, folder):
    with pytest.raises(ValueError, match=r"HDF5 file of the whole model"):
        model.save(folder / "model.h5")
    assert not list(folder.iterdir())
    for include_optimizer in (True, False):
        with pytest.raises(ValueError, match=r"HDF5 file of the whole model"):
            keras.saving.save_model(
                model, folder / "model.hdf5", include_optimizer=include_optimizer
            )
    return file_bytes(folder)


def tensorflow_checkpoint(model, folder):
    import tensorflow as tf

    for tracked in ({"model": model}, {"optimizer": model.optimizer}):
        with pytest.raises(ValueError, match="TensorFlow's own checkpoints"):
            tf.train.Checkpoint(**tracked).save(str(folder / "checkpoint"))
    return file_bytes(folder)


def saved_model(model, folder):
    import tensorflow as tf

    tf.saved_model.save(model, str(folder / "saved"))
    return file_bytes(folder)


def torch_file(part):
    def take(model, folder):
        import torch

        torch.save(part(model), folder / "model.pt")
        return file_bytes(folder)

    return take


WAYS = {
    "keras file": saved_to("model.keras"),
    "keras folder": saved_to("model", zipped=False),
    "weights": saved_to("run.weights.h5"),
    "weights in shards": saved_to("run.weights.json", max_shard_size=1e-4),
    "HDF5 file": legacy_file,
    "state tree": of_tree("backend_tensor"),
    "state tree of arrays": of_tree("numpy_array"),
    "pickle": lambda model, folder: [pickle.dumps(model)],
    "pickle of the optimizer": lambda model, folder: [pickle.dumps(model.optimizer)],
    "config": lambda model, folder: [
        repr(
            (model.get_config(), model.get_compile_config(), model.optimizer.get_config())
        ).encode()
    ],
}
if BACKEND == "tensorflow":
    WAYS |= {
        "export": exported,
        "saved model": saved_model,
        "TensorFlow checkpoint": tensorflow_checkpoint,
    }
if BACKEND == "torch":
    WAYS |= {
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
        for data in unpacked(part):
            for key in keys:
                words = np.frombuffer(key, np.int32)
                assert key not in data
                assert not all(str(word).encode() in data for word in words)


class Takes(keras.callbacks.Callback):
    """Takes state out of a model in the middle of its training."""

    def __init__(self, take, folder):
        super().__init__()
        self.take, self.folder, self.parts = take, folder, []

    def on_epoch_end(self, epoch, logs=None):
        self.parts = self.take(self.model, self.folder)


@pytest.mark.parametrize("name", WAYS)
def test_no_state_holds_the_key_of_noise_that_was_drawn(name, drawn_keys, tmp_path):
    folders = [tmp_path / "during", tmp_path / "after"]
    for folder in folders:
        folder.mkdir()
    callback = Takes(WAYS[name], folders[0])
    model = trained(callbacks=[callback])
    assert_holds_no_key(callback.parts, drawn_keys)
    assert_holds_no_key(WAYS[name](model, folders[1]), drawn_keys)


@pytest.mark.parametrize("seed", [None, 5])
def test_the_key_is_gone_when_the_run_ends(seed, drawn_keys):
    model = trained(line_model(dp_sgd(seed=seed)))
    model.train_on_batch(X, Y)
    values = [np.asarray(keras.ops.convert_to_numpy(v.value)) for v in model.optimizer.variables]
    assert_holds_no_key([value.tobytes() for value in values], drawn_keys)
    assert len(set(drawn_keys)) >= 2


def test_checkpoints_of_callbacks_hold_no_key(drawn_keys, tmp_path):
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "whole.keras"),
        keras.callbacks.ModelCheckpoint(tmp_path / "run.weights.h5", save_weights_only=True),
        keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False),
    ]
    trained(callbacks=callbacks)
    parts = file_bytes(tmp_path)
    assert len(parts) >= 3
    assert_holds_no_key(parts, drawn_keys)


def test_a_checkpoint_as_hdf5_is_refused_before_training(tmp_path):
    model = line_model(dp_sgd())
    with pytest.raises(ValueError, match=r"ModelCheckpoint.*\.keras.*model\.h5"):
        trained(model, [keras.callbacks.ModelCheckpoint(tmp_path / "model.h5")])
    assert model.privacy_ledger.steps == 0


# Orbax says on JAX that it takes the sharding from the file.
@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
def test_orbax_checkpoints_hold_no_key_and_keep_the_ledger(drawn_keys, tmp_path):
    pytest.importorskip("orbax.checkpoint")
    model = trained(callbacks=[keras.callbacks.OrbaxCheckpoint(tmp_path)])
    assert_holds_no_key(file_bytes(tmp_path), drawn_keys)
    loaded = line_model(dp_sgd())
    loaded.load_weights(tmp_path)
    assert loaded.privacy_ledger.steps == model.privacy_ledger.steps == STEPS


# What comes back


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_a_copy_has_the_ledger_and_noise_of_its_own(copied):
    model = trained()
    with keras.saving.custom_object_scope({"minus_output": model.loss}):
        other = copied(model)
    assert other.privacy_ledger == model.privacy_ledger
    keys = [
        keras.ops.convert_to_numpy(each.optimizer.secret_variables[0].value).tobytes()
        for each in (model, other)
    ]
    assert keys[0] != keys[1]


@pytest.mark.parametrize("parts", [None, ("trainable_variables", "non_trainable_variables")])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_state_tree_brings_its_ledger(parts, is_compiled):
    tree = trained().get_state_tree()
    other = (
        line_model(dp_sgd()) if is_compiled else ka.PrivateSequential(line_model(dp_sgd()).layers)
    )
    other.set_state_tree({key: tree[key] for key in parts or tree})
    assert other.privacy_ledger.steps == STEPS


def test_an_earlier_state_tree_lowers_nothing():
    model = trained()
    early = model.get_state_tree("numpy_array")
    trained(trained(model))
    for key in ("optimizer_variables", "non_trainable_variables"):
        model.set_state_tree({key: early[key]})
        assert model.privacy_ledger.steps == 3 * STEPS
    model.set_state_tree(early)
    assert model.privacy_ledger.steps == 3 * STEPS
    trained(model)
    assert model.privacy_ledger.steps == 4 * STEPS


def test_a_state_tree_that_was_set_never_brings_a_key(drawn_keys):
    """Not even one that somebody has written into it."""
    model = trained()
    tree = model.get_state_tree("numpy_array")
    (secret,) = model.optimizer.secret_variables
    folder, name = secret.path.split("/")
    assert name not in tree["optimizer_variables"][folder]
    tree["optimizer_variables"][folder][name] = np.array([7, 8], np.int32)
    model.set_state_tree(tree)
    assert keras.ops.convert_to_numpy(secret.value).tolist() != [7, 8]
    drawn_keys.clear()
    trained(model)
    assert np.array([7, 8], np.int32).tobytes() not in drawn_keys
