"""What would not be private, or cannot be trained, is refused by name before anything changes."""

from functools import partial

import keras
import numpy as np
import pytest
import scipy.sparse
from keras import ops

import keras_adaclip as ka
from keras_adaclip.backend import keras_private
from keras_adaclip.examination import SampleRows, loss_issues
from keras_adaclip.gradients import Batch
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()
BACKEND, ONE_HOT = keras.backend.backend(), np.eye(3, dtype="float32")[Y]


class MeanOverBatchInTraining(keras.layers.Layer):
    def call(self, x, training=None):
        return x - ops.mean(x, axis=0, keepdims=True) if training else x


class KeepsRunningMean(keras.layers.Layer):
    def build(self, input_shape):
        self.mean = self.add_weight(shape=input_shape[1:], initializer="zeros", trainable=False)

    def call(self, x, training=None):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
        return x


class RunningSum(keras.layers.Layer):
    """Adds up the rows: row 0 sees only itself."""

    def call(self, x):
        return ops.cumsum(x, axis=0)


class MovesTrainableWeight(keras.layers.Layer):
    def build(self, shape):
        self.centre = self.add_weight(shape=(shape[-1],), name="centre")

    def call(self, x, training=False):
        if training:
            self.centre.assign(self.centre + ops.mean(ops.stop_gradient(x), axis=0))
        return x - self.centre


class UnseededNoise(keras.layers.Layer):
    """Random numbers that no Keras seed generator knows of, nor PyTorch's."""

    def call(self, x):
        if BACKEND == "torch":
            return x + np.random.default_rng().normal()
        import tensorflow as tf

        return x + tf.random.normal((1,))


class AddsLoss(keras.layers.Layer):
    def call(self, x):
        self.add_loss(ops.mean(ops.square(x)))
        return x


class WithoutWeights(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="without_weights")
        self.total = self.add_variable((), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred):
        self.total.assign_add(ops.sum(y_pred))

    def result(self):
        return self.total


def contrastive(y_true, y_pred):
    """Pushes every row away from the others of its batch: zero for a row alone."""
    similarity = ops.matmul(y_pred, ops.transpose(y_pred))
    return -ops.diagonal(ops.log_softmax(similarity, axis=-1))


def other_weights():
    first, second = helpers.compiled(), helpers.dense_model()
    helpers.quiet_fit(first, X, Y, batch_size=6, steps_per_epoch=1)
    second.compile(first.optimizer, loss=helpers.sparse_crossentropy())
    return second


def without_trainable_weights():
    model = helpers.dense_model()
    model.trainable = False
    return helpers.compiled(model)


def stateful():
    remembers = keras.layers.LSTM(3, stateful=True, name="remembers")
    layers = [keras.Input(batch_shape=(8, 4, 2)), remembers, keras.layers.Dense(3)]
    return helpers.compiled(ka.PrivateSequential(layers))


def quantized():
    model = helpers.compiled()
    model.get_layer("hidden").quantize("float8")
    return helpers.compiled(model)


def with_culprit(make):
    return helpers.compiled(helpers.model_with(make(name="culprit")))


# What makes a layer, and the message with which `fit` refuses it.
LAYERS = [
    (keras.layers.BatchNormalization, "BatchNormalization .* replace_batch_normalization=True"),
    (partial(keras.layers.Dense, 3, activity_regularizer="l2"), ".*Remove `activity_regularizer`"),
    (MeanOverBatchInTraining, "It mixes examples.*LayerNormalization"),
    (RunningSum, "It mixes examples"),
    (KeepsRunningMean, "It is assigned in the forward pass"),
    (MovesTrainableWeight, "It is assigned in the forward"),
    (AddsLoss, "It adds a loss of its own"),
    # JAX draws once, while compiling.
    *([] if BACKEND == "jax" else [(UnseededNoise, "A forward.*draws random numbers outside")]),
]
# What makes a model, and the message.
MODELS = [
    *((partial(with_culprit, make), f"culprit.*: {message}") for make, message in LAYERS),
    (stateful, "remembers: A stateful recurrent layer"),
    (quantized, "hidden: Quantization to float8"),
    (partial(helpers.compiled, metrics=[WithoutWeights()]), "without_weights: The metric takes no"),
    (partial(helpers.compiled, loss=contrastive), "contrastive: .* neither a mean nor a sum"),
    (other_weights, "built for other trainable weights"),
    (without_trainable_weights, "has no trainable weights"),
    *([(partial(helpers.compiled, jit_compile=True), "jit_compile")] if BACKEND == "torch" else []),
]
DATA = {
    "batch larger than the data": ({"batch_size": 25}, ValueError, "batch_size=25"),
    "unknown sampling": ({"sampling": "uniform"}, ValueError, "sampling='uniform'"),
    "objects": ({"x": np.array([[None]] * 24)}, TypeError, "`x` must be a dense array"),
    "lists of lists": ({"x": [[1.0, 2.0], [3.0]]}, ValueError, "inhomogeneous"),
    "a list of others": ({"x": [X, None], "y": None, "batch_size": None}, TypeError, "type list"),
    "nothing": ({"x": None, "y": None, "batch_size": None}, TypeError, "must be arrays"),
    "negative split": ({"validation_split": -0.5}, ValueError, "validation_split=-0.5"),
    "both weights": ({"class_weight": {0: 2}, "sample_weight": Y}, ValueError, "exclude each"),
    "sparse": ({"x": scipy.sparse.csr_matrix(X)}, TypeError, "`x` must be a dense array.*csr"),
}


def refused(model, error, message, **options):
    """Asserts that `fit` raises and leaves weights, steps and ledger as they were."""
    before = helpers.weights_of(model)
    steps, ledger = model.privacy_spent(1e-3).steps, model.privacy_ledger
    options = {"x": X, "y": Y, "batch_size": 6, **options}
    x, y = options.pop("x"), options.pop("y")
    with pytest.raises(error, match=f"(?s){message}"):
        model.fit(x, y, verbose=0, **options)
    helpers.assert_same_weights(model, before)
    assert model.privacy_spent(1e-3).steps == steps
    assert [row for row in model.privacy_ledger if row.steps] == [r for r in ledger if r.steps]


@pytest.mark.parametrize(("build", "message"), MODELS)
def test_a_model_is_refused(build, message):
    model = build()
    x = helpers.features(len(Y), model.input_shape[1:])
    refused(model, ValueError, message, x=x)


@pytest.mark.parametrize("name", ["MixUp", "CutMix"])
def test_blending_augmentations_are_found(name):
    model = keras.Sequential([getattr(keras.layers, name)(name="blends")])
    assert [issue.layer for issue in ka.check(model)] == ["blends"]


@pytest.fixture(scope="module")
def model():
    return helpers.compiled()


@pytest.mark.parametrize("name", DATA)
def test_bad_data_is_refused(name, model):
    options, error, message = DATA[name]
    refused(model, error, message, **options)


def test_what_is_not_compiled_and_a_train_step_on_its_own_are_refused():
    with pytest.raises(ValueError, match="Call `compile"):
        helpers.dense_model().fit(X, Y)
    model = helpers.compiled()
    with pytest.raises(ValueError, match="fit"):
        model.train_step((X, Y)) if BACKEND != "jax" else model.train_step(None, X)


@pytest.mark.parametrize("cls", [ka.PrivateModel, ka.federated.FederatedModel])
def test_an_own_function_that_trains_is_refused(cls):
    """Nothing would clip, noise or count what it does."""

    class Own(cls):
        def make_train_function(self, force=False):
            self.train_function = lambda iterator: {}

        def compute_loss_and_updates(self, *args, **kwargs):
            raise AssertionError

    model = helpers.compiled(helpers.dense_model(Own))
    # Keras calls it in the place of the class's.
    model.train_step = lambda *args: {}
    of_jax = ["compute_loss_and_updates"] if BACKEND == "jax" else []
    expected = ["train_step", "make_train_function", *of_jax]
    assert [issue.layer for issue in ka.check(model)] == expected
    if cls is ka.PrivateModel:
        refused(model, ValueError, "Remove the override")


@pytest.mark.parametrize("method", ["compute_loss", "compute_metrics"])
def test_methods_set_on_a_private_model_are_its_own(method):
    model = helpers.compiled(noise_multiplier=0.0)
    seen = []

    def own(x=None, y=None, y_pred=None, sample_weight=None, **options):
        seen.append(x is not None)
        of_class = getattr(ka.PrivateModel, method)
        return of_class(model, x, y, y_pred, sample_weight, **options)

    setattr(model, method, own)
    helpers.quiet_fit(model, X, Y, batch_size=len(X))
    assert seen
    assert all(seen)


def masked_mean(y_true, y_pred):
    """Leaves out the rows of class 0: a weighted mean over the batch."""
    values = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
    counted = ops.cast(ops.reshape(y_true, (-1,)) > 0, values.dtype)
    return ops.sum(values * counted) / (ops.sum(counted) + 1e-6)


def noisy(y_true, y_pred):
    return ops.mean(ops.square(y_pred)) + np.random.default_rng().uniform()


def probed(loss, y, own=False):
    """What the probe of losses finds, on a model built for `y`."""
    if own and isinstance(loss, keras.losses.Loss):  # as if it were the user's
        cls = type("Users", (type(loss),), {"__module__": "users"})
        loss = cls.from_config(loss.get_config())
        if function := getattr(loss, "fn", None):
            loss.fn = lambda *args, **options: function(*args, **options)
    model = helpers.compiled(loss=loss)
    keras_private.build_for_training(model, X[:3], y[:3], None)
    rows = Batch(X, y)
    return loss_issues(model, SampleRows(model, rows, rows))


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        # One of each kind of reduction, shape and sign.
        (keras.losses.CategoricalCrossentropy(from_logits=True), ONE_HOT),
        (keras.losses.Circle(), Y),
        (keras.losses.CosineSimilarity(), ONE_HOT),
        (keras.losses.MeanAbsoluteError(reduction="sum"), ONE_HOT),
        (keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"), ONE_HOT),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), Y),
        (masked_mean, Y),
        (noisy, Y),
    ],
)
def test_no_loss_of_single_examples_is_taken_for_a_mixing_one(loss, y):
    """Nor is a user's copy of it, but for the one that compares rows."""
    assert probed(loss, y) == []
    assert bool(probed(loss, y, own=True)) == isinstance(loss, keras.losses.Circle)
