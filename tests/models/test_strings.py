"""Models that take strings: on TensorFlow as if integers had been given, elsewhere refused."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from keras_adaclip import backend
from keras_adaclip.federated import ClientData
from keras_adaclip.sampling import as_array
from tests.models import helpers
from tests.models.unsafe import Unsafe, centred

IS_TENSORFLOW = keras.backend.backend() == "tensorflow"
on_tensorflow = pytest.mark.skipif(not IS_TENSORFLOW, reason="Keras feeds no strings elsewhere")
WORDS = ["ant", "bee", "cow", "hippopotamus"]
NUM = helpers.NUM_EXAMPLES
Y = helpers.labels()
SINGLE = np.random.default_rng(3).choice([*WORDS, "unknown"], NUM)
TEXTS = np.array([[" ".join(words)] for words in np.random.default_rng(4).choice(WORDS, (NUM, 3))])


def lookup_of(kind):
    if kind == "word":
        return keras.layers.StringLookup(vocabulary=WORDS)
    return keras.layers.TextVectorization(vocabulary=WORDS, output_sequence_length=4)


def stack(inputs, x):
    start = [keras.initializers.RandomNormal(stddev=1.0, seed=seed) for seed in (1, 2)]
    x = keras.layers.Embedding(len(WORDS) + 2, 3, embeddings_initializer=start[0])(x)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(3, kernel_initializer=start[1])(x))


def model_of_strings(kind="word"):
    inputs = keras.Input(() if kind == "word" else (1,), dtype="string")
    return stack(inputs, lookup_of(kind)(inputs))


def model_of_ids(kind="word"):
    inputs = keras.Input(() if kind == "word" else (4,), dtype="int32")
    return stack(inputs, inputs)


def compiled(model, **options):
    """With clipping that acts, and the same draws and noise in every run."""
    options = {"clipping": 0.1, "seed": 5, "metrics": ["accuracy"], **options}
    return helpers.compiled(ka.privatize(model), **options)


def assert_same(one, other):
    for left, right in zip(helpers.weights_of(one), helpers.weights_of(other), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
    assert one.privacy_spent(1e-3) == other.privacy_spent(1e-3)
    assert one.privacy_spent(1e-3).steps > 0


def dataset_of_tensorflow(x):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, Y)).batch(6)


@on_tensorflow
@pytest.mark.parametrize(
    ("kind", "given", "batches"),
    [
        ("word", SINGLE.astype("S"), None),
        ("word", "tensor", None),
        ("text", TEXTS.astype(object), None),
        ("word", SINGLE, lambda x: ka.sampling.PoissonDataset(x, Y, expected_batch_size=6, seed=1)),
        ("word", SINGLE, dataset_of_tensorflow),
    ],
    ids=["bytes", "tensor", "objects", "data set", "tf.data"],
)
def test_strings_train_as_their_numbers_do(kind, given, batches):
    """The same draws, contributions, noise, metrics and ledger."""
    strings = ops.convert_to_tensor(SINGLE) if isinstance(given, str) else given
    ids = np.asarray(ops.convert_to_numpy(lookup_of(kind)(strings)))
    found, models = [], [compiled(make(kind)) for make in (model_of_strings, model_of_ids)]
    for model, x in zip(models, (strings, ids), strict=True):
        data, options = ((batches(x),), {}) if batches else ((x, Y), {"batch_size": 6})
        history = helpers.quiet_fit(model, *data, validation_data=(x, Y), **options)
        model.train_on_batch(x, Y)
        found.append((history, model.predict(x, verbose=0), model.evaluate(x, Y, verbose=0)))
    assert_same(*models)
    for one, other in zip(*map(keras.tree.flatten, found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


class JoinedToTheNext(keras.layers.Layer):
    """Its strings hold the word of another row, of which nothing is looked up."""

    def call(self, x):
        import tensorflow as tf

        return tf.strings.join([x, tf.roll(x, 1, axis=0)])

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, dtype="string")


def mixing(where):
    inputs = keras.Input((), dtype="string")
    x = JoinedToTheNext(name="mixing")(inputs) if where == "strings" else inputs
    x = keras.layers.StringLookup(vocabulary=WORDS, name="lookup")(x)
    x = keras.layers.Embedding(len(WORDS) + 1, 3)(x)
    x = Unsafe(centred, name="mixing")(x) if where == "numbers" else x
    return keras.Model(inputs, keras.layers.Dense(3)(x))


@on_tensorflow
@pytest.mark.parametrize(("where", "word"), [("strings", "ant"), ("numbers", "unknown")])
def test_layers_that_mix_examples_of_strings_are_found(where, word):
    """Also where the data begin with one word, or one that no layer knows."""
    # What a layer does to texts is seen in the numbers behind it.
    found = "lookup" if where == "strings" else "mixing"
    assert [issue.layer for issue in ka.check(mixing(where))] == [found]
    model = helpers.compiled(ka.privatize(mixing(where)))
    with pytest.raises(ValueError, match=f"{found}: It mixes examples"):
        helpers.quiet_fit(model, np.array([word] * NUM), Y, batch_size=6)


@on_tensorflow
def test_strings_that_should_be_numbers_and_other_objects_are_refused_with_what_to_do():
    model = helpers.compiled()
    strings = np.array([["ant"] * helpers.NUM_FEATURES] * NUM, object)
    for x, y in ((strings, Y), (helpers.features(), SINGLE)):
        with pytest.raises(TypeError, match=r"hold strings where .* takes numbers"):
            helpers.quiet_fit(model, x, y, batch_size=6)
    assert model.privacy_ledger.steps == 0
    x = np.array([*SINGLE[:3], None, *SINGLE[4:]], object)
    with pytest.raises(TypeError, match=r"numbers.*on TensorFlow"):
        ka.sampling.PoissonDataset(x, Y, expected_batch_size=6)


@on_tensorflow
def test_rows_that_pad_are_empty_strings():
    dataset = ka.sampling.PoissonDataset(SINGLE, expected_batch_size=1)
    assert dataset.take(np.arange(0))["x"].tolist() == [""]
    assert dataset.take(np.arange(1), 3)["x"].tolist() == [SINGLE[0], "", ""]
    # A client may have no text at all.
    assert as_array(np.array([], object)).shape == (0,)


@on_tensorflow
def test_strings_over_several_processes_are_refused(monkeypatch):
    """Their rows cannot be compared, so that one example could be in two of them."""
    from keras_adaclip.training.processes import as_share

    monkeypatch.setattr(backend, "num_processes", lambda: 2)
    with pytest.raises(TypeError, match="processes compare their rows"):
        as_share(ka.sampling.PoissonDataset(SINGLE, Y, expected_batch_size=1), 6)


@pytest.mark.skipif(IS_TENSORFLOW, reason="strings can be fed there")
def test_elsewhere_strings_are_refused_by_name_with_what_to_do():
    model = helpers.compiled(ka.privatize(model_of_strings()))
    before = helpers.weights_of(model)
    x = SINGLE.astype(object)
    for call in (
        lambda: helpers.quiet_fit(model, SINGLE, Y, batch_size=6),
        lambda: helpers.quiet_fit(model, x, Y, batch_size=6, sampling="shuffle"),
        lambda: ClientData.from_arrays(SINGLE.astype("S"), Y, np.arange(NUM)),
        lambda: model.train_on_batch(x, Y),
        lambda: model.predict(x),
        model.private_summary,
    ):
        with pytest.raises(TypeError, match="Only the TensorFlow backend feeds strings"):
            call()
    assert "Only the TensorFlow backend feeds strings" in ka.check(model).failure
    helpers.assert_same_weights(model, before)
