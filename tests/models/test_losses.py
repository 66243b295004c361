"""Losses: which train by the gradient of one example, and what they make of gaps in targets."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip import examination
from keras_adaclip.backend import keras_private
from keras_adaclip.examination import SampleRows
from keras_adaclip.gradients import Batch
from tests.models import helpers

BACKEND = keras.backend.backend()
NUM_ROWS = 32
X, Y = helpers.features(NUM_ROWS), helpers.labels(NUM_ROWS)
ONE_HOT = np.eye(3, dtype="float32")[Y]
WEIGHTS = np.linspace(0.5, 1.5, NUM_ROWS).astype("float32")
HAS_GAP = np.arange(NUM_ROWS) % 8 == 0
WITH_GAPS = np.where(HAS_GAP, np.nan, Y).astype("float32")


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
    rows = Batch(X[:24], y[:24])
    return examination.examine_loss(model, SampleRows(model, rows, rows), False).issues


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
    for own in (False, True):
        assert bool(probed(loss, y, own)) == isinstance(loss, keras.losses.Circle)


def contrastive(y_true, y_pred):
    """Each row against all others of its batch."""
    products = ops.matmul(y_pred, ops.transpose(y_pred))
    return ops.mean(ops.logsumexp(products, axis=1) - ops.diagonal(products))


def dice(y_true, y_pred):
    """A ratio of sums over the batch."""
    overlap = ops.sum(y_true * ops.sigmoid(y_pred))
    return 1.0 - 2.0 * overlap / (ops.sum(y_true) + ops.sum(ops.sigmoid(y_pred)))


class IgnoresWeights(keras.losses.Loss):
    """Uses no weights."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return ops.mean(ops.square(y_true - y_pred))

    call = __call__


DIVIDED = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
IGNORED = "whatever its weight"
ALONE = "compares examples with each other"
REFUSED = {
    "circle": (keras.losses.Circle(), Y, {}, ALONE),
    "normalized over the batch": (keras.losses.CosineSimilarity(axis=0), ONE_HOT, {}, ALONE),
    "softmax over the batch": (keras.losses.CategoricalCrossentropy(axis=0), ONE_HOT, {}, ALONE),
    "contrastive": (contrastive, ONE_HOT, {}, ALONE),
    "divided weights": (DIVIDED, ONE_HOT, {"sample_weight": WEIGHTS}, IGNORED),
    "divided class weights": (DIVIDED, ONE_HOT, {"class_weight": {0: 2.0}}, IGNORED),
    "ignored weights": (
        IgnoresWeights(),
        ONE_HOT,
        {"sample_weight": WEIGHTS},
        "whatever its weight",
    ),
}


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_would_train_by_noise_alone_is_refused(name, sampling):
    loss, y, options, message = REFUSED[name]
    model = helpers.compiled(loss=loss)
    with pytest.raises(ValueError, match=message):
        helpers.quiet_fit(model, X, y, batch_size=8, sampling=sampling, **options)
    assert model.privacy_ledger.steps == 0
    assert model.gradient_plan is None


def remarks(model, y, capsys, x=X, **options):
    """What `fit` prints before its first step, without the plan."""
    model.fit(x, y, batch_size=8, epochs=1, verbose=2, **options)
    return [
        line for line in capsys.readouterr().out.splitlines()[1:] if line and "/step" not in line
    ]


@pytest.mark.parametrize("loss", [dice, keras.losses.Dice(), "dice"])
def test_fit_says_once_that_a_loss_of_the_batch_becomes_another_objective(loss, capsys):
    model = helpers.compiled(loss=loss)
    assert "another objective" in remarks(model, ONE_HOT, capsys)[0]
    assert remarks(model, ONE_HOT, capsys) == []


class Unused(layers.Layer):
    """Has a weight on which nothing depends."""

    def build(self, shape):
        self.idle = self.add_weight(shape=(3,), name="idle")

    def call(self, x):
        return x + 0.0 * ops.stop_gradient(ops.sum(self.idle))


@pytest.mark.parametrize("gradient_method", ["auto", "layerwise"])
def test_weights_without_a_gradient_are_named(gradient_method, capsys):
    model = helpers.compiled(helpers.model_with(Unused()), gradient_method=gradient_method)
    (line,) = remarks(model, Y, capsys)
    assert "unused/idle: noise alone" in line


def test_a_model_without_any_gradient_is_refused():
    inputs = keras.Input((4,))
    outputs = ops.stop_gradient(layers.Dense(3)(inputs))
    model = helpers.compiled(ka.PrivateModel(inputs, outputs))
    with pytest.raises(ValueError, match="No made-up example has a gradient"):
        helpers.quiet_fit(model, X, Y, batch_size=8)
    assert model.privacy_ledger.steps == 0


@pytest.mark.skipif(BACKEND != "torch", reason="wraps modules of PyTorch")
@pytest.mark.parametrize("convert", [ka.privatize, ka.federate])
def test_weights_of_a_pytorch_module_are_refused_unless_they_are_frozen(convert):
    import torch

    wrapper = layers.TorchModuleWrapper(torch.nn.Linear(4, 4))
    model = convert(keras.Sequential([wrapper, layers.Dense(3)]))
    model.build((None, 4))
    assert "get noise and no gradient" in str(ka.check(model)[0])
    wrapper.trainable = False
    assert ka.check(model) == []


# Gaps in targets


def own_crossentropy(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


def weights_after(loss, y, x, **options):
    keras.utils.set_random_seed(0)
    model = helpers.compiled(noise_multiplier=0.0, loss=loss, metrics=["accuracy"])
    helpers.quiet_fit(model, x, y, batch_size=NUM_ROWS, **options)
    return helpers.weights_of(model)


def with_other_inputs():
    x = X.copy()
    x[HAS_GAP] += 1.0
    return x


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
@pytest.mark.parametrize("kind", ["crossentropy", "own crossentropy", "squares"])
def test_a_row_with_a_gap_in_its_targets_contributes_nothing(kind, sampling):
    losses = {"crossentropy": helpers.sparse_crossentropy(), "own crossentropy": own_crossentropy}
    y = WITH_GAPS if kind in losses else np.where(WITH_GAPS[:, None] >= 0, ONE_HOT, np.nan)
    loss = losses.get(kind, "mse")
    one, other = (weights_after(loss, y, x, sampling=sampling) for x in (X, with_other_inputs()))
    for value, same in zip(one, other, strict=True):
        np.testing.assert_allclose(value, same, atol=1e-7)
    assert np.isfinite(one[0]).all()


def test_clients_leave_out_rows_with_gaps_too():
    found = []
    for x in (X, with_other_inputs()):
        keras.utils.set_random_seed(0)
        model = helpers.compiled(helpers.dense_model(ka.FederatedModel), noise_multiplier=0.0)
        clients = ka.federated.ClientData.from_arrays(x, WITH_GAPS, np.arange(NUM_ROWS) // 4)
        model.fit(clients, cohort_size=8, verbose=0)
        found.append(helpers.weights_of(model))
    assert np.isfinite(found[0][0]).all()
    for value, same in zip(*found, strict=True):
        np.testing.assert_allclose(value, same, atol=1e-7)


def masked_squares(y_true, y_pred):
    """Leaves single numbers out."""
    is_known = ops.logical_not(ops.isnan(y_true))
    squares = ops.square(y_pred - ops.where(is_known, y_true, 0.0))
    number = ops.sum(ops.cast(is_known, squares.dtype), axis=-1)
    return ops.sum(ops.where(is_known, squares, 0.0), axis=-1) / ops.maximum(number, 1.0)


def test_a_loss_that_masks_gaps_keeps_its_rows(capsys):
    y = ONE_HOT.copy()
    y[HAS_GAP, 1] = np.nan
    one, other = (weights_after(masked_squares, y, x) for x in (X, with_other_inputs()))
    assert not np.array_equal(one[0], other[0])
    assert remarks(helpers.compiled(loss=masked_squares), y, capsys) == []


def only_three(y_true, y_pred):
    """Has no value for a fourth class, as ids outside of a table have none."""
    losses = own_crossentropy(ops.minimum(y_true, 2), y_pred)
    return ops.where(ops.reshape(y_true, (-1,)) > 2, np.nan, losses)


def test_the_first_epoch_tells_of_rows_that_were_left_out(capsys):
    y = np.where(HAS_GAP, 3, Y)
    model = helpers.compiled(loss=only_three)
    (line,) = remarks(model, y, capsys, sampling="shuffle")
    assert "left out 4 examples" in line
    x = np.where(HAS_GAP[:, None], np.nan, X)
    (line,) = remarks(helpers.compiled(), Y, capsys, x=x, sampling="shuffle")
    assert "4 of 32 examples hold NaN" in line


@pytest.mark.filterwarnings("ignore:32 of 32 examples hold NaN")
def test_an_epoch_that_left_out_every_row_has_no_loss():
    """A run that has diverged would show a loss of 0, and `TerminateOnNaN` would not end it."""
    model = helpers.compiled()
    stop = keras.callbacks.TerminateOnNaN()
    y = np.full(NUM_ROWS, np.nan, "float32")
    history = helpers.quiet_fit(model, X, y, batch_size=NUM_ROWS, epochs=3, callbacks=[stop])
    assert np.isnan(history["loss"]).all()
    assert model.privacy_ledger.steps == 1
