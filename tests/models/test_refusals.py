"""What would not be private, or cannot be trained, is refused by name before anything changes."""

from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()


class MeanOverBatch(keras.layers.Layer):
    def call(self, x):
        return x - ops.mean(x, axis=0, keepdims=True)


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


def with_layer(layer):
    inputs = keras.Input((helpers.NUM_FEATURES,))
    return ka.PrivateModel(inputs, keras.layers.Dense(3)(layer(inputs)))


def contrastive(y_true, y_pred):
    """Pushes every row away from the others of its batch: zero for a row alone."""
    similarity = ops.matmul(y_pred, ops.transpose(y_pred))
    return -ops.diagonal(ops.log_softmax(similarity, axis=-1))


def inner_option(name, value):
    inner = keras.optimizers.SGD(0.1)
    model = helpers.compiled(optimizer=inner)
    setattr(inner, name, value)
    return model


def other_weights():
    optimizer = helpers.dp_optimizer()
    first = helpers.compiled()
    first.compile(optimizer=optimizer, loss=helpers.sparse_crossentropy())
    helpers.quiet_fit(first, X, Y, batch_size=6, steps_per_epoch=1)
    second = helpers.dense_model()
    second.compile(optimizer=optimizer, loss=helpers.sparse_crossentropy())
    return second


def without_trainable_weights():
    model = helpers.dense_model()
    model.trainable = False
    return helpers.compiled(model)


def greedy_quantile():
    return helpers.compiled(
        noise_multiplier=1.0, clipping=ka.clipping.QuantileClipping(count_noise_stddev=0.5)
    )


class Case(NamedTuple):
    """A model that `fit(X, Y, batch_size=6, **fit)` must refuse with `message`."""

    build: Any
    message: str
    fit: dict = {}  # noqa: RUF012


def layer_case(layer, message):
    return Case(lambda: helpers.compiled(with_layer(layer())), message)


PARTS = {
    "batch normalization": layer_case(
        lambda: keras.layers.BatchNormalization(name="norm"),
        "norm: BatchNormalization .* replace_batch_normalization=True",
    ),
    "activity regularizer": layer_case(
        lambda: keras.layers.Dense(3, activity_regularizer="l2", name="active"),
        "active: Activity regularization .* Remove `activity_regularizer`",
    ),
    "mean over the batch": layer_case(
        lambda: MeanOverBatch(name="centre"), "centre: It mixes examples.*LayerNormalization"
    ),
    "mean over the batch in training": layer_case(
        lambda: MeanOverBatchInTraining(name="centre"), "centre: It mixes examples"
    ),
    "state from data": layer_case(
        lambda: KeepsRunningMean(name="running"), "running.*: It is assigned in the forward pass"
    ),
    "add_loss": layer_case(lambda: AddsLoss(name="adds"), "adds: It adds a loss of its own"),
    "metric without weights": Case(
        lambda: helpers.compiled(metrics=[WithoutWeights()]),
        "without_weights: The metric takes no `sample_weight`",
    ),
    "contrastive loss": Case(
        lambda: helpers.compiled(loss=contrastive),
        "contrastive: The loss of a batch is neither a mean nor a sum",
    ),
    "clipnorm set later": Case(lambda: inner_option("clipnorm", 1.0), "clipnorm.*Remove"),
    "clipvalue set later": Case(lambda: inner_option("clipvalue", 1.0), "clipvalue.*Remove"),
    "global_clipnorm set later": Case(
        lambda: inner_option("global_clipnorm", 1.0), "global_clipnorm.*Remove"
    ),
    "gradient accumulation set later": Case(
        lambda: inner_option("gradient_accumulation_steps", 2),
        "gradient_accumulation_steps.*microbatch_size",
    ),
    "optimizer of other weights": Case(other_weights, "built for other trainable weights"),
    "nothing trainable": Case(without_trainable_weights, "has no trainable weights"),
    "quantile noise too small": Case(greedy_quantile, "Raise `count_noise_stddev` above 0.5"),
}
DATA = {
    "lengths differ": ({"y": Y[:-1]}, ValueError, "x: \\[24\\], y: \\[23\\]"),
    "weights of another length": (
        {"sample_weight": np.ones(3)},
        ValueError,
        "sample_weight: \\[3\\]",
    ),
    "batch larger than the data": ({"batch_size": 25}, ValueError, "batch_size=25"),
    "batch of none": ({"batch_size": 0}, ValueError, "batch_size=0"),
    "batch of a fraction": ({"batch_size": 1.5}, TypeError, "batch_size=1.5"),
    "unknown sampling": ({"sampling": "uniform"}, ValueError, "sampling='uniform'"),
    "no data": ({"x": X[:0], "y": Y[:0]}, ValueError, "at least one example"),
    "objects": ({"x": np.array([[None]] * 24)}, TypeError, "`x` must be a dense array"),
    "a number": ({"x": np.float32(1.0)}, TypeError, "`x` must be a dense array"),
    "plain lists": ({"x": X.tolist()}, TypeError, "np.asarray"),
    "nothing": ({"x": None, "y": None, "batch_size": None}, TypeError, "must be arrays"),
    "whole split": ({"validation_split": 1.0}, ValueError, "validation_split=1.0"),
    "negative split": ({"validation_split": -0.5}, ValueError, "validation_split=-0.5"),
    "both weights": (
        {"class_weight": {0: 2.0}, "sample_weight": np.ones(24)},
        ValueError,
        "exclude each other",
    ),
}


def refused(model, error, message, **options):
    """Asserts that `fit` raises and leaves weights, steps and ledger as they were."""
    before = helpers.weights_of(model)
    steps, ledger = model.privacy_spent(1e-3).steps, model.privacy_ledger
    options = {"x": X, "y": Y, "batch_size": 6, **options}
    x, y = options.pop("x"), options.pop("y")
    with pytest.raises(error, match=f"(?s){message}"):
        model.fit(x, y, verbose=0, **options)
    if before:
        helpers.assert_same_weights(model, before)
    assert model.privacy_spent(1e-3).steps == steps
    assert [row for row in model.privacy_ledger if row.steps] == [r for r in ledger if r.steps]


@pytest.mark.parametrize("name", PARTS)
def test_a_model_is_refused(name):
    case = PARTS[name]
    refused(case.build(), ValueError, case.message, **case.fit)


def test_bad_data_is_refused():
    model = helpers.compiled()
    for name, (options, error, message) in DATA.items():
        try:
            refused(model, error, message, **options)
        except BaseException as failure:
            failure.add_note(name)
            raise
    # And good data is not.
    helpers.quiet_fit(model, X, Y, batch_size=6, steps_per_epoch=1)


def test_sparse_arrays_are_refused():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    refused(
        helpers.compiled(),
        TypeError,
        "`x` must be a dense array.*csr",
        x=scipy_sparse.csr_matrix(X),
    )


def test_not_compiled():
    with pytest.raises(ValueError, match="Call `compile"):
        helpers.dense_model().fit(X, Y)


@pytest.mark.parametrize("optimizer", ["sgd", keras.optimizers.Adam, None])
def test_a_plain_optimizer_is_refused(optimizer):
    optimizer = optimizer() if callable(optimizer) else optimizer
    with pytest.raises((ValueError, TypeError), match="DPOptimizer"):
        helpers.dense_model().compile(optimizer, loss="mse")


def test_a_loss_scaling_optimizer_is_refused():
    with pytest.raises(ValueError, match="loss-scaling"):
        helpers.dp_optimizer(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    outside = keras.optimizers.LossScaleOptimizer(helpers.dp_optimizer())
    with pytest.raises(ValueError, match="DPOptimizer"):
        helpers.dense_model().compile(outside, loss="mse")


def test_a_plain_model_with_a_dp_optimizer_is_refused():
    model = helpers.dense_model(keras.Model)
    model.compile(helpers.dp_optimizer(), loss=helpers.sparse_crossentropy())
    before = helpers.weights_of(model)
    with pytest.raises(ValueError, match="PrivateModel"):
        model.fit(X, Y, verbose=0)
    helpers.assert_same_weights(model, before)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch only")
def test_jit_compile_on_torch_is_refused():
    refused(helpers.compiled(jit_compile=True), ValueError, "jit_compile=False")


def test_train_step_on_its_own_is_refused():
    model = helpers.compiled()
    with pytest.raises(ValueError, match="fit"):
        model.train_step((X, Y)) if keras.backend.backend() != "jax" else model.train_step(None, X)


@pytest.mark.parametrize("cls", [ka.PrivateModel, ka.federated.FederatedModel])
def test_an_own_function_that_trains_is_refused(cls):
    """Nothing would clip, noise or count what it does."""

    class Own(cls):
        def make_train_function(self, force=False):
            self.train_function = lambda iterator: {}

        def compute_loss_and_updates(self, *args, **kwargs):
            raise AssertionError

    expected = ["make_train_function"]
    if keras.backend.backend() == "jax":
        expected.append("compute_loss_and_updates")
    model = helpers.compiled(helpers.dense_model(Own))
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


def test_a_train_step_of_the_instance_is_refused():
    """Keras calls it in the place of the class's, and nothing would clip, noise or count."""
    model = helpers.compiled()
    model.train_step = lambda *args: {}
    assert [issue.layer for issue in ka.check(model)] == ["train_step"]
    refused(model, ValueError, "Remove the override")


def test_a_frozen_batch_normalization_is_fine():
    norm = keras.layers.BatchNormalization()
    model = with_layer(norm)
    norm.trainable = False
    assert ka.check(model) == []
    helpers.compiled(model)
    before = [ops.convert_to_numpy(weight.value).copy() for weight in norm.weights]
    helpers.quiet_fit(model, X, Y, batch_size=6, steps_per_epoch=1)
    for now, then in zip(norm.weights, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(now.value), then)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_batch_normalization_that_is_thawed_meanwhile_never_mixes(run_eagerly):
    """It has no weights that would tell the optimizer."""

    def trained(thaws):
        keras.utils.set_random_seed(3)
        norm = keras.layers.BatchNormalization(center=False, scale=False, name="norm")
        model = with_layer(norm)
        norm.trainable = False
        helpers.compiled(model, seed=1, run_eagerly=run_eagerly, jit_compile=False)
        thaw = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: setattr(norm, "trainable", thaws and batch > 1)
        )
        arguments = {"batch_size": 6, "sampling": "shuffle", "shuffle": False, "callbacks": [thaw]}
        helpers.quiet_fit(model, X, Y, **arguments)
        return helpers.weights_of(model)

    frozen = trained(thaws=False)
    if run_eagerly or keras.backend.backend() != "tensorflow":
        with pytest.raises(ValueError, match="norm: BatchNormalization"):
            trained(thaws=True)
    else:
        # What was traced goes on as it was; JAX traces its second step again.
        for now, then in zip(trained(thaws=True), frozen, strict=True):
            np.testing.assert_allclose(now, then, atol=1e-6)


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_numbers_that_are_not_finite_count_as_zero(sampling):
    x = X.copy()
    x[3, 1], x[7, 0] = np.nan, np.inf
    model = helpers.compiled(clipping=1.0)
    found = helpers.quiet_fit(model, x, Y, batch_size=12, epochs=2, sampling=sampling)
    assert np.isfinite(found["loss"]).all()
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def masked_mean(y_true, y_pred):
    """Leaves out the rows of class 0: a weighted mean over the batch."""
    values = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
    counted = ops.cast(ops.reshape(y_true, (-1,)) > 0, values.dtype)
    return ops.sum(values * counted) / (ops.sum(counted) + 1e-6)


def noisy(y_true, y_pred):
    return ops.mean(ops.square(y_pred)) + np.random.default_rng().uniform()


LOSSES_OF_KERAS = [
    keras.losses.BinaryCrossentropy(from_logits=True),
    keras.losses.BinaryFocalCrossentropy(from_logits=True),
    keras.losses.CategoricalCrossentropy(from_logits=True),
    keras.losses.CategoricalFocalCrossentropy(from_logits=True),
    keras.losses.CategoricalGeneralizedCrossEntropy(),
    keras.losses.CategoricalHinge(),
    keras.losses.Circle(),
    keras.losses.CosineSimilarity(),
    keras.losses.Dice(),
    keras.losses.Hinge(),
    keras.losses.Huber(),
    keras.losses.KLDivergence(),
    keras.losses.LogCosh(),
    keras.losses.MeanAbsoluteError(reduction="sum"),
    keras.losses.MeanAbsolutePercentageError(),
    keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
    keras.losses.MeanSquaredLogarithmicError(),
    keras.losses.Poisson(),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    keras.losses.SquaredHinge(),
    keras.losses.Tversky(),
]


def probed(loss, y, own=False):
    """What the probe of losses finds, on a model built for `y`."""
    from keras_adaclip.backend import keras_private
    from keras_adaclip.gradients import Batch
    from keras_adaclip.training.preflight import loss_issues

    if own:  # as if it were the user's
        loss = type(
            f"Users{type(loss).__name__}", (type(loss),), {"__module__": "users"}
        ).from_config(loss.get_config())
        if hasattr(loss, "fn"):
            function = loss.fn
            loss.fn = lambda *args, **options: function(*args, **options)
    model = helpers.compiled(loss=loss)
    keras_private.build_for_training(model, X[:3], y[:3], None)
    return loss_issues(model, Batch(X[:3], y[:3]))


@pytest.mark.parametrize("loss", LOSSES_OF_KERAS, ids=lambda loss: type(loss).__name__)
def test_no_loss_of_keras_is_taken_for_a_mixing_one(loss):
    one_hot = np.eye(3, dtype="float32")[Y]
    y = (
        Y
        if isinstance(loss, (keras.losses.SparseCategoricalCrossentropy, keras.losses.Circle))
        else one_hot
    )
    assert probed(loss, y) == []
    # Nor is a user's copy of it, but for the one that compares rows.
    found = probed(loss, y, own=True)
    assert bool(found) == isinstance(loss, keras.losses.Circle)


@pytest.mark.parametrize("loss", [masked_mean, noisy, "mse"])
def test_other_losses_of_single_examples_pass(loss):
    assert probed(loss, Y if callable(loss) else np.eye(3, dtype="float32")[Y]) == []


def spread(y_true, y_pred):
    return ops.std(y_pred, axis=0)


def per_batch_rank(y_true, y_pred):
    return ops.max(y_pred, axis=0) - ops.min(y_pred, axis=0)


@pytest.mark.parametrize("loss", [contrastive, spread, per_batch_rank])
def test_losses_that_compare_rows_are_found(loss):
    (issue,) = probed(loss, Y)
    assert issue.layer == loss.__name__


def test_a_stateful_recurrent_layer_is_refused_by_name():
    layers = [
        keras.Input(batch_shape=(8, 4, 2)),
        keras.layers.LSTM(3, stateful=True, name="remembers"),
        keras.layers.Dense(3),
    ]
    model = helpers.compiled(ka.PrivateSequential(layers))
    assert [issue.layer for issue in ka.check(model)] == ["remembers"]
    x = helpers.features(24, (4, 2))
    with pytest.raises(ValueError, match="remembers: A stateful recurrent layer"):
        model.fit(x, helpers.labels(), batch_size=8, verbose=0)


def test_quantization_to_float8_is_refused_by_name():
    model = helpers.compiled()
    model.get_layer("hidden").quantize("float8")
    helpers.compiled(model)
    with pytest.raises(ValueError, match="hidden: Quantization to float8"):
        model.fit(helpers.features(), helpers.labels(), batch_size=6, verbose=0)
