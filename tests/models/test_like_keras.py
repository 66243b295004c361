"""With no noise, no clipping and Keras's own batches, private training is Keras's training."""

from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers


class Case(NamedTuple):
    """What `build(cls)` needs for `compile` and `fit`."""

    build: Any
    x: Any
    y: Any
    compile: dict = {}  # noqa: RUF012
    fit: dict = {}  # noqa: RUF012


def regularized(cls):
    inputs = keras.Input((helpers.NUM_FEATURES,))
    hidden = keras.layers.Dense(
        5, "relu", kernel_regularizer=keras.regularizers.L1L2(0.01, 0.05), name="hidden"
    )(inputs)
    return cls(inputs, keras.layers.Dense(3, bias_regularizer="l2", name="logits")(hidden))


def convolutional(cls):
    inputs = keras.Input((6, 6, 2))
    x = keras.layers.Conv2D(3, 3, activation="relu", name="conv")(inputs)
    x = keras.layers.GroupNormalization(1, name="norm")(x)
    x = keras.layers.MaxPooling2D(name="pool")(x)
    return cls(inputs, keras.layers.Dense(3, name="logits")(keras.layers.Flatten(name="flat")(x)))


def nested(cls):
    inner_inputs = keras.Input((helpers.NUM_FEATURES,))
    inner = keras.Model(
        inner_inputs, keras.layers.Dense(5, "tanh", name="inner_dense")(inner_inputs), name="inner"
    )
    inputs = keras.Input((helpers.NUM_FEATURES,))
    # Called twice: the two calls' gradients of one example add up before the norm.
    twice = keras.layers.Add(name="add")([inner(inputs), inner(-inputs)])
    return cls(inputs, keras.layers.Dense(3, name="logits")(twice))


SIZES = {"kind": 3, "size": 1}


def dict_to_dict(cls):
    inputs = {
        "ids": keras.Input((2,), dtype="int32", name="ids"),
        "values": keras.Input((helpers.NUM_FEATURES,), name="values"),
    }
    embedded = keras.layers.Embedding(7, 3, name="table")(inputs["ids"])
    joined = keras.layers.Concatenate(name="join")(
        [keras.layers.Flatten(name="flat")(embedded), inputs["values"]]
    )
    hidden = keras.layers.Dense(5, "tanh", name="hidden")(joined)
    outputs = {name: keras.layers.Dense(size, name=name)(hidden) for name, size in SIZES.items()}
    return cls(inputs, outputs)


def masked(cls):
    inputs = keras.Input((5,), dtype="int32")
    embedded = keras.layers.Embedding(7, 3, mask_zero=True, name="table")(inputs)
    return cls(inputs, keras.layers.Dense(3, name="logits")(embedded))


TEACHER = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def distance(y, y_pred):
    """As in distillation; the teacher is no part of the model and stays what it is."""
    taught = keras.ops.one_hot(keras.ops.cast(keras.ops.reshape(y, (-1,)), "int32"), 3)
    return keras.ops.mean(keras.ops.square(TEACHER(taught) - TEACHER(y_pred)), axis=-1)


X, Y = helpers.features(), helpers.labels()
# As many masked positions in each row: a mean over a row is not one over the positions of a batch.
IDS = np.random.default_rng(8).permuted(np.tile(np.int32([0, 0, 2, 3, 5]), (len(X), 1)), axis=1)
WEIGHTS = np.linspace(0.0, 2.0, helpers.NUM_EXAMPLES).astype("float32")
DICTS = (
    {"ids": helpers.labels(seed=3)[:, None].repeat(2, 1), "values": X},
    {"kind": Y, "size": helpers.features(shape=(1,), seed=4)},
    {
        "loss": {"kind": helpers.sparse_crossentropy(), "size": "mse"},
        "loss_weights": {"kind": 0.5, "size": 2.0},
        "metrics": {"kind": ["accuracy"], "size": ["mae"]},
        "weighted_metrics": {"size": ["mse"]},
    },
    {"sample_weight": {"kind": WEIGHTS, "size": WEIGHTS[::-1].copy()}},
)
METRICS = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}
SUM = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

CASES = {
    "regularized": Case(regularized, X, Y),
    "convolutional": Case(convolutional, helpers.features(shape=(6, 6, 2)), Y),
    "nested": Case(nested, X, Y),
    "masked": Case(masked, IDS, Y[:, None].repeat(5, 1), {"metrics": ["accuracy"]}),
    "dict to dict": Case(dict_to_dict, *DICTS),
    "loss of a teacher": Case(helpers.dense_model, X, Y, {"loss": distance}),
    # Keras's gradient is a sum there: the mean of ours times the batch size.
    "sum reduction": Case(helpers.dense_model, X, Y, {"loss": SUM}),
    "sample weights": Case(helpers.dense_model, X, Y, METRICS, {"sample_weight": WEIGHTS}),
    "class weights": Case(
        helpers.dense_model, X, Y, {}, {"class_weight": {0: 2.0, 1: 1.0, 2: 0.25}}
    ),
}
BATCH_SIZE, EPOCHS = 6, 2


def train(case, model, optimizer):
    model.compile(optimizer=optimizer, **{"loss": helpers.sparse_crossentropy(), **case.compile})
    options = {**case.fit, "batch_size": BATCH_SIZE, "epochs": EPOCHS, "shuffle": False}
    if isinstance(model, ka.PrivateModel):
        options["sampling"] = "shuffle"
    return helpers.quiet_fit(model, case.x, case.y, **options)


@pytest.mark.parametrize("name", CASES)
def test_private_training_without_noise_is_keras_training(name):
    case = CASES[name]
    plain = case.build(keras.Model)
    private = ka.privatize(keras.models.clone_model(plain))
    private.set_weights(plain.get_weights())
    scale = 1.0 / BATCH_SIZE if name == "sum reduction" else 1.0
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    taught = TEACHER.get_weights()
    expected = train(case, plain, keras.optimizers.SGD(0.1 * scale, momentum=0.9))
    found = train(case, private, helpers.dp_optimizer(0.0, 1e6, inner))
    assert private.gradient_plan.is_layerwise
    for weight, other in zip(private.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-4, atol=1e-5)
    helpers.assert_same_weights(TEACHER, taught)
    assert set(found) == set(expected)
    if name == "masked" and keras.backend.backend() == "jax":
        # Keras's own step loses the mask between the forward pass and the metrics there.
        del expected["accuracy"]
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], np.array(values) * scale, rtol=1e-4, err_msg=key)
