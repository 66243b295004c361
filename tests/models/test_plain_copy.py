"""`to_keras`: a plain Keras model with the same layers, weights and predictions."""

import hashlib
import json
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from tests.models import helpers

BACKEND = keras.backend.backend()
X = helpers.features(8)
Y = helpers.labels(8)
ATOL = 1e-6
HALF_PRECISION = 3e-3


def tempered(**options):
    return ka.activations.TemperedSigmoid(scale=1.5, inverse_temperature=0.7, **options)


def stack(*parts, cls=ka.PrivateSequential, **options):
    return cls([keras.Input((4,)), *parts], **options)


def sequential():
    """A frozen layer, dropout with a state, an activation of this package, names."""
    frozen = layers.Dense(3, activation=tempered(), name="a", trainable=False)
    return stack(frozen, layers.Dropout(0.5, seed=3), layers.Dense(2), name="net")


def branches():
    """Layers that are called twice, private models inside, several inputs and outputs."""
    first, second = keras.Input((4,), name="first"), keras.Input((4,), name="second")
    shared, twins = layers.Dense(4), [layers.Dense(4), layers.Dense(4)]
    inner = helpers.compiled(stack(layers.Dense(4, activation=tempered())))
    steps = layers.Reshape((2, 2))(shared(second))
    each = layers.TimeDistributed(ka.PrivateSequential([keras.Input((2,)), layers.Dense(2)]))
    outputs = {
        "sum": layers.Add()([twins[1](first), inner(inner(shared(first))), twins[0](second)]),
        "sequence": layers.LSTM(3, activation=tempered(offset=0.1))(each(steps)),
    }
    return ka.PrivateModel({"first": first, "second": second}, outputs)


def normalized():
    normalization = layers.Normalization()
    normalization.adapt(X + 3)
    plain = stack(normalization, layers.Dense(2), cls=keras.Sequential)
    return ka.federate(plain, public_preprocessing=True)


def quantized():
    model = stack(layers.Dense(8, activation=tempered()))
    model.layers[0].quantize("int8")
    return model


MODELS = {
    "sequential": sequential,
    "branches": branches,
    "mixed": lambda: stack(
        layers.Dense(3, activation=tempered(), dtype="mixed_float16"), layers.Dense(2)
    ),
    "normalized": normalized,
    "quantized": quantized,
    "federated": lambda: stack(
        layers.Dense(2), cls=ka.federated.FederatedSequential, name="rounds"
    ),
}


def inputs_of(name):
    return {"first": X, "second": X[::-1]} if name == "branches" else X


def flat(predictions):
    return [np.asarray(each, "float32") for each in keras.tree.flatten(predictions)]


def assert_same_predictions(found, expected, name=""):
    for each, other in zip(flat(found), flat(expected), strict=True):
        np.testing.assert_allclose(each, other, atol=HALF_PRECISION if name == "mixed" else ATOL)


@pytest.mark.parametrize("name", MODELS)
def test_the_copy_is_a_plain_model_that_computes_the_same(name, tmp_path):
    model = MODELS[name]()
    plain = model.to_keras()
    assert type(plain).__module__.startswith("keras.")
    assert "keras_adaclip" not in plain.to_json()
    assert not plain.compiled
    for attribute in ("name", "trainable", "dtype_policy"):
        found, expected = (
            [getattr(layer, attribute) for layer in (each, *each.layers)] for each in (plain, model)
        )
        assert found == expected
    if name == "sequential":
        model(X, training=True)
        states = [each.layers[1].seed_generator.state for each in (model.to_keras(), model)]
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, states))
    before = model.predict(inputs_of(name), verbose=0)
    assert_same_predictions(plain.predict(inputs_of(name), verbose=0), before, name)
    # The file names no class of this package, as `to_json` shows.
    plain.save(tmp_path / "plain.keras")
    loaded = keras.models.load_model(tmp_path / "plain.keras")
    assert_same_predictions(loaded.predict(inputs_of(name), verbose=0), before, name)
    plain.set_weights([np.zeros_like(weight) for weight in plain.get_weights()])
    assert_same_predictions(model.predict(inputs_of(name), verbose=0), before)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="strings are TensorFlow's")
def test_vocabularies_are_copied():
    words, kinds = layers.TextVectorization(output_sequence_length=3), layers.StringLookup()
    words.adapt(["a b c", "d e"])
    kinds.adapt(["p", "q"])
    inputs = [keras.Input((1,), dtype="string") for _ in range(2)]
    numbers = [words(inputs[0]), kinds(inputs[1])]
    vectors = [layers.Flatten()(layers.Embedding(9, 2)(each)) for each in numbers]
    outputs = layers.Concatenate()(vectors)
    model = ka.PrivateModel(inputs, outputs, public_preprocessing=True)
    texts = [keras.ops.convert_to_tensor([[each], ["e z"]]) for each in ("a b", "q")]
    assert_same_predictions(model.to_keras()(texts), model(texts))


class Body:
    """What a private model and a plain one of the user have in common."""

    def __init__(self, **options):
        super().__init__(**options)
        self.body = layers.Dense(2)

    def call(self, x):
        return self.body(x)


class PrivateBody(Body, ka.PrivateModel):
    pass


class PlainBody(Body, keras.Model):
    pass


def test_a_class_of_the_users_is_refused_with_a_way_that_works(tmp_path):
    model, plain = PrivateBody(), PlainBody()
    assert np.abs(model.predict(X, verbose=0) - plain.predict(X, verbose=0)).max() > ATOL
    inner = stack(PrivateBody(name="inside"))
    for each, message in ((model, "load the weights"), (inner, "model 'inside' of type")):
        with pytest.raises(TypeError, match=message):
            each.to_keras()
    model.save_weights(tmp_path / "model.weights.h5")
    plain.load_weights(tmp_path / "model.weights.h5")
    assert_same_predictions(plain.predict(X, verbose=0), model.predict(X, verbose=0))


class Dense(layers.Dense):
    """Called as a class of Keras."""

    def call(self, inputs):
        return 2 * super().call(inputs)


def test_classes_of_one_name_are_told_apart():
    model = stack(Dense(4), layers.Dense(4))
    copy = model.to_keras()
    assert [type(layer) for layer in copy.layers] == [Dense, layers.Dense]
    assert_same_predictions(copy.predict(X, verbose=0), model.predict(X, verbose=0))
    model.add(type("Dense", (layers.Dense,), {})(4))
    with pytest.raises(TypeError, match="cannot tell two classes of layers apart"):
        model.to_keras()


def test_the_ledger_goes_on_where_the_copy_is_made_private():
    model = helpers.compiled()
    copies = []
    take = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: copies.append(ka.privatize(model.to_keras()))
    )
    helpers.quiet_fit(model, X, Y, batch_size=4, callbacks=[take])
    copies.append(ka.privatize(model.to_keras()))
    for each in copies:
        helpers.assert_same_weights(each, model.get_weights())
    assert copies[0].privacy_ledger == model.privacy_ledger
    assert copies[0].privacy_spent(1e-3).weights_unchanged is True
    copies[1].layers[1].bias.assign(np.ones(5))
    with helpers.warns("something outside of it has changed"):
        copies[1].privacy_spent(1e-3)
    helpers.quiet_fit(helpers.compiled(copies[0]), X, Y, batch_size=4)
    assert [each.privacy_ledger.steps for each in (copies[0], model)] == [4, 2]


def test_a_file_comes_with_the_report_of_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    helpers.quick_groups(monkeypatch)
    model = helpers.compiled()
    helpers.quiet_fit(model, X, Y, batch_size=4)
    for arguments, message in (
        ({"delta": 1e-5}, "or leave it out"),
        ({"filepath": "model.h5", "delta": 1e-5}, r"must end in `\.keras`"),
        ({"filepath": "model.keras", "delta": 2.0}, "delta"),
    ):
        with pytest.raises(ValueError, match=message):
            model.to_keras(**arguments)
        assert not list(tmp_path.iterdir())
    path = tmp_path / "model.keras"
    model.to_keras(path, delta=1e-3)
    files = {each.name for each in tmp_path.iterdir()}
    assert files == {"model.keras", "model.privacy.html", "model.privacy.json"}
    report = json.loads((tmp_path / "model.privacy.json").read_text(encoding="utf-8"))
    assert report["epsilon_pld"] == model.privacy_spent(1e-3).epsilon
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for ending in (".html", ".json"):
        assert digest in path.with_suffix(f".privacy{ending}").read_text(encoding="utf-8")
    model.to_keras(path)
    report = json.loads((tmp_path / "model.privacy.json").read_text(encoding="utf-8"))
    assert report["delta"] == model.privacy_spent().delta != 1e-3


def exported_to_tensorflow(plain, path):
    import tensorflow as tf

    plain.export(path, verbose=False)
    loaded = tf.saved_model.load(path)
    return loaded.serve(X)


def exported_to_litert(plain, path):
    import tensorflow as tf

    plain.export(f"{path}.tflite", format="litert", verbose=False)
    run = tf.lite.Interpreter(f"{path}.tflite").get_signature_runner()
    (name,) = run.get_input_details()
    (output,) = run(**{name: X}).values()
    return output


def exported_to_onnx(plain, path):
    onnxruntime = pytest.importorskip("onnxruntime")
    plain.predict(X, verbose=0)  # Keras wants a model that was called before.
    plain.export(f"{path}.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(f"{path}.onnx")
    return session.run(None, {session.get_inputs()[0].name: X})[0]


def exported_to_torch(plain, path):
    import torch

    signature = [keras.InputSpec(shape=X.shape, dtype="float32")]
    plain.export(f"{path}.pt2", format="torch", verbose=False, input_signature=signature)
    return torch.export.load(f"{path}.pt2").module()(torch.from_numpy(X)).detach()


EXPORTS = {
    "tensorflow": (exported_to_tensorflow, exported_to_litert),
    "jax": (exported_to_tensorflow,),
    "torch": (exported_to_onnx, exported_to_torch),
}


# Each of them warns of its own next version.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("export", EXPORTS[BACKEND])
def test_exports_compute_the_same(export, tmp_path):
    model = sequential()
    found = export(model.to_keras(), str(Path(tmp_path) / "exported"))
    assert_same_predictions(found, model.predict(X, verbose=0))
