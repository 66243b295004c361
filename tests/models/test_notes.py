"""What passes for private and is not: preprocessing adapted to data, and training metrics."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers
from tests.models.helpers import compiled, features, labels

X, Y = features(), labels()
LAYERS = keras.layers


def adapted(layer, data):
    layer.adapt(data)
    return layer


def sequential(*layers, shape=(4,), dtype="float32"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers, LAYERS.Dense(3)])


def of_feature_space():
    tf = pytest.importorskip("tensorflow")
    kinds = {"age": "float_normalized", "visits": "integer_categorical"}
    kinds["size"] = keras.utils.FeatureSpace.float_discretized(4)
    space = keras.utils.FeatureSpace(kinds, output_mode="concat")
    parts = {"age": X[:, 0], "size": X[:, 1], "visits": Y}
    space.adapt(tf.data.Dataset.from_tensors(parts))
    encoded = space.get_encoded_features()
    return keras.Model(space.get_inputs(), LAYERS.Dense(3)(encoded))


def table(layer, given=(), **options):
    """A model with a lookup of integers, which every backend takes."""
    return sequential(layer, LAYERS.Embedding(9, 2), LAYERS.Flatten(), dtype="int64", **options)


# By name: a model, and whether one of its layers was adapted.
MODELS = {
    "moments": (lambda: sequential(adapted(LAYERS.Normalization(name="made"), X)), True),
    "moments given": (lambda: sequential(LAYERS.Normalization(mean=0.5, variance=2.0)), False),
    "not adapted yet": (lambda: sequential(LAYERS.Normalization()), False),
    "bins": (
        *(lambda: sequential(adapted(LAYERS.Discretization(num_bins=3, name="made"), X)), True),
    ),
    "bins given": (lambda: sequential(LAYERS.Discretization([0.0, 1.0])), False),
    "ids": (lambda: table(adapted(LAYERS.IntegerLookup(name="made"), np.arange(4))), True),
    "ids given": (lambda: table(LAYERS.IntegerLookup(vocabulary=[1, 2])), False),
    "inside of a model": (
        *(lambda: sequential(sequential(adapted(LAYERS.Normalization(name="made"), X))), True),
    ),
}
TEXTS = {
    "words": (lambda: adapted(LAYERS.StringLookup(name="made"), ["a", "b"]), True),
    "words given": (lambda: LAYERS.StringLookup(vocabulary=["a", "b"]), False),
    "texts": (lambda: adapted(LAYERS.TextVectorization(name="made"), ["a b"]), True),
    "texts given": (lambda: LAYERS.TextVectorization(vocabulary=["a", "b"]), False),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("convert", [ka.privatize, ka.federate])
def test_layers_that_were_adapted_are_named(name, convert, tmp_path):
    make, is_adapted = MODELS[name]
    plain = make()
    for each in (plain, convert(plain)):
        notes = ka.check(each)
        assert [(note.layer, note.is_note) for note in notes] == [("made", True)] * is_adapted
    model = convert(plain)
    assert ("tables were made from data: made" in str(model.privacy_report(1e-3))) == is_adapted
    stated = convert(make(), public_preprocessing=True)
    assert not ka.check(stated)
    stated.to_keras()
    stated.save(tmp_path / "model.keras")
    assert not ka.check(keras.models.load_model(tmp_path / "model.keras"))
    model.save(tmp_path / "model.keras")
    report = ka.accounting.PrivacyReport.from_file(tmp_path / "model.keras", 1e-3)
    assert ("tables were made from data: made" in str(report)) == is_adapted
    if is_adapted:
        with helpers.warns("`adapt` has made from data: made"):
            model.to_keras()
    else:
        model.to_keras()


@pytest.mark.parametrize("name", TEXTS)
def test_tables_of_words_that_were_adapted_are_named(name):
    make, is_adapted = TEXTS[name]
    layer = make()
    model = keras.Sequential([layer])
    assert [note.layer for note in ka.check(model)] == ["made"] * is_adapted


def test_feature_spaces_are_looked_into():
    assert [note.is_note for note in ka.check(of_feature_space())] == [True] * 3


def test_constructors_take_the_word_that_data_were_public():
    layer = adapted(LAYERS.Normalization(), X)
    inputs = keras.Input((4,))
    word = {"public_preprocessing": True}
    for sequential_class, functional in (
        (ka.PrivateSequential, ka.PrivateModel),
        (ka.federated.FederatedSequential, ka.FederatedModel),
    ):
        for options, num_notes in (({}, 1), (word, 0)):
            models = [sequential_class([inputs, layer, LAYERS.Dense(3)], **options)]
            models.append(functional(inputs, LAYERS.Dense(3)(layer(inputs)), **options))
            assert [len(ka.check(model)) for model in models] == [num_notes] * 2


def test_fit_prints_notes_and_trains(capsys):
    model = ka.privatize(sequential(adapted(LAYERS.Normalization(name="made"), X)))
    compiled(model).fit(X, Y, verbose=2)
    assert "Note on made: `adapt` has made" in capsys.readouterr().out
    assert model.privacy_ledger.steps > 0


def halved(x):
    return keras.ops.softmax(x) / 2 + 1 / 6


@pytest.mark.parametrize(
    ("activation", "loss", "is_noted"),
    [
        ("softmax", "sparse_categorical_crossentropy", False),
        (halved, "sparse_categorical_crossentropy", True),
        (halved, "mse", False),
        (None, helpers.sparse_crossentropy(), False),
    ],
    ids=["softmax", "own layer", "no cross-entropy", "logits"],
)
def test_a_loss_of_probabilities_without_logits_is_noted(activation, loss, is_noted, capsys):
    model = ka.PrivateSequential([keras.Input((4,)), LAYERS.Dense(3, activation)])
    compiled(model, loss=loss)
    assert [note.is_note for note in ka.check(model)] == [True] * is_noted
    model.fit(X, np.eye(3)[Y] if loss == "mse" else Y, verbose=2)
    assert ("Note on" in capsys.readouterr().out) == is_noted
    assert [note.is_note for note in ka.check(model)] == [True] * is_noted


def test_training_metrics_can_be_left_out(tmp_path, capsys):
    model = compiled(metrics=["accuracy"], report_training_metrics=False)
    seen = set()
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.update(logs),
        on_epoch_end=lambda epoch, logs: seen.update(logs),
        on_train_end=lambda logs: seen.update(logs),
    )
    callbacks = [ka.callbacks.PrivacyCallback(1e-3), look]
    history = model.fit(X, Y, validation_data=(X, Y), callbacks=callbacks, verbose=1)
    expected = {"epsilon", "val_loss", "val_accuracy"}
    assert set(history.history) == expected == seen
    assert " loss" not in capsys.readouterr().out
    assert set(model.evaluate(X, Y, verbose=0, return_dict=True)) == {"loss", "accuracy"}
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not loaded.fit(X, Y, verbose=0).history
    loaded.compile(helpers.dp_optimizer(), helpers.sparse_crossentropy())
    assert "loss" in loaded.fit(X, Y, verbose=0).history
