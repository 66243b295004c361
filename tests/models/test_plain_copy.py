"""`to_keras`: a plain Keras model with the same layers, weights and predictions."""

import hashlib
import json
import os
import subprocess
import sys
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


def sequential():
    """A frozen layer, dropout with a state, an activation of this package, names."""
    parts = [keras.Input((4,)), layers.Dense(3, activation=tempered(), name="a", trainable=False)]
    return ka.PrivateSequential([*parts, layers.Dropout(0.5, seed=3), layers.Dense(2)], name="net")


def branches():
    """Layers that are called twice, private models inside, several inputs and outputs."""
    first, second = keras.Input((4,), name="first"), keras.Input((4,), name="second")
    shared, twins = layers.Dense(4), [layers.Dense(4), layers.Dense(4)]
    inner = ka.PrivateSequential([keras.Input((4,)), layers.Dense(4, activation=tempered())])
    helpers.compiled(inner)
    steps = layers.Reshape((2, 2))(shared(second))
    each = layers.TimeDistributed(ka.PrivateSequential([keras.Input((2,)), layers.Dense(2)]))
    outputs = {
        "sum": layers.Add()([twins[1](first), inner(inner(shared(first))), twins[0](second)]),
        "sequence": layers.LSTM(3, activation=tempered(offset=0.1))(each(steps)),
    }
    return ka.PrivateModel({"first": first, "second": second}, outputs)


def mixed():
    parts = [layers.Dense(3, activation=tempered(), dtype="mixed_float16"), layers.Dense(2)]
    return ka.PrivateSequential([keras.Input((4,)), *parts])


def normalized():
    normalization = layers.Normalization()
    normalization.adapt(X + 3)
    return ka.federate(keras.Sequential([keras.Input((4,)), normalization, layers.Dense(2)]))


def quantized():
    model = ka.PrivateSequential([keras.Input((4,)), layers.Dense(8, activation=tempered())])
    model.layers[0].quantize("int8")
    return model


def federated():
    inputs = keras.Input((4,))
    return ka.FederatedModel(inputs, layers.Dense(2)(inputs), name="rounds")


MODELS = {
    "sequential": sequential,
    "branches": branches,
    "mixed": mixed,
    "normalized": normalized,
    "quantized": quantized,
    "federated": federated,
}


def inputs_of(name):
    return {"first": X, "second": X[::-1]} if name == "branches" else X


def flat(predictions):
    return [np.asarray(each, "float32") for each in keras.tree.flatten(predictions)]


def assert_same_predictions(found, expected, name=""):
    for each, other in zip(flat(found), flat(expected), strict=True):
        np.testing.assert_allclose(each, other, atol=HALF_PRECISION if name == "mixed" else ATOL)


@pytest.mark.parametrize("name", MODELS)
def test_the_copy_is_a_plain_model_that_computes_the_same(name):
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
    before = model.predict(inputs_of(name), verbose=0)
    assert_same_predictions(plain.predict(inputs_of(name), verbose=0), before, name)
    plain.set_weights([np.zeros_like(weight) for weight in plain.get_weights()])
    assert_same_predictions(model.predict(inputs_of(name), verbose=0), before)


def test_the_states_of_seed_generators_are_copied():
    model = sequential()
    model(X, training=True)
    plain = model.to_keras()
    found, expected = (each.layers[1].seed_generator.state for each in (plain, model))
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (found, expected)))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="strings are TensorFlow's")
def test_vocabularies_are_copied():
    words, kinds = layers.TextVectorization(output_sequence_length=3), layers.StringLookup()
    words.adapt(["a b c", "d e"])
    kinds.adapt(["p", "q"])
    inputs = [keras.Input((1,), dtype="string") for _ in range(2)]
    numbers = [words(inputs[0]), kinds(inputs[1])]
    vectors = [layers.Flatten()(layers.Embedding(9, 2)(each)) for each in numbers]
    model = ka.PrivateModel(inputs, layers.Concatenate()(vectors))
    texts = [keras.ops.convert_to_tensor([[each], ["e z"]]) for each in ("a b", "q")]
    assert_same_predictions(model.to_keras()(texts), model(texts))


# In a process of its own: what was saved loads without this package.
_LOAD = """
import sys
sys.modules["keras_adaclip"] = None
import keras, numpy as np
from pathlib import Path

folder = Path(sys.argv[1])
for path in folder.glob("*.keras"):
    data = dict(np.load(path.with_suffix(".npz")))
    expected = [data[key] for key in sorted(data) if key.startswith("output")]
    x = data["x"] if "x" in data else {key: data[key] for key in ("first", "second")}
    model = keras.models.load_model(path)
    weights = path.with_suffix(".weights.h5")
    for load in (False, True):
        if load and not weights.exists():
            continue
        if load:
            model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
            model.load_weights(weights)
        found = keras.tree.flatten(model.predict(x, verbose=0))
        for each, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(each, "float32"), other, atol=data["atol"])
        print(path.stem, "weights" if load else "model")
"""


def test_models_and_weights_load_where_this_package_cannot_be_imported(tmp_path):
    for name, build in MODELS.items():
        model, x = build(), inputs_of(name)
        if name == "sequential":
            model.layers[0].trainable = True
            helpers.quiet_fit(helpers.compiled(model), X, Y % 2, batch_size=4)
        model.to_keras().save(tmp_path / f"{name}.keras")
        # Keras looks for the weights of inner models under the names of their classes.
        if name != "branches":
            model.save_weights(tmp_path / f"{name}.weights.h5")
        outputs = enumerate(flat(model.predict(x, verbose=0)))
        data = {f"output{number}": each for number, each in outputs}
        data["atol"] = HALF_PRECISION if name == "mixed" else ATOL
        np.savez(tmp_path / f"{name}.npz", **data, **(x if isinstance(x, dict) else {"x": x}))
    run = subprocess.run(
        [sys.executable, "-c", _LOAD, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": BACKEND},
    )
    assert run.returncode == 0, run.stderr
    expected = [f"{name} model" for name in MODELS]
    expected += [f"{name} weights" for name in MODELS if name != "branches"]
    assert sorted(run.stdout.split("\n")[:-1]) == sorted(expected)


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
    inner = ka.PrivateSequential([keras.Input((4,)), PrivateBody(name="inside")])
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
    model = ka.PrivateSequential([keras.Input((4,)), Dense(4), layers.Dense(4)])
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"filepath": "model.keras"}, "`delta` must be given"),
        ({"delta": 1e-5}, "leave both out"),
        ({"filepath": "model.h5", "delta": 1e-5}, r"must end in `\.keras`"),
        ({"filepath": "model.keras", "delta": 2.0}, "delta"),
    ],
)
def test_a_file_comes_with_its_report(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        sequential().to_keras(**arguments)
    assert not list(tmp_path.iterdir())


def test_the_report_beside_the_file_is_that_of_the_model(tmp_path):
    model = helpers.compiled()
    helpers.quiet_fit(model, X, Y, batch_size=4)
    path = tmp_path / "model.keras"
    model.to_keras(path, delta=1e-3)
    files = {each.name for each in tmp_path.iterdir()}
    assert files == {"model.keras", "model.privacy.html", "model.privacy.json"}
    report = json.loads((tmp_path / "model.privacy.json").read_text(encoding="utf-8"))
    assert report["epsilon_pld"] == model.privacy_spent(1e-3).epsilon
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for ending in (".html", ".json"):
        assert digest in path.with_suffix(f".privacy{ending}").read_text(encoding="utf-8")


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
