"""None among inputs, targets and weights means what it means to Keras."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers
from tests.soundness.setups import without_xla

X, Y = helpers.features(), helpers.features(shape=(1,), seed=3)
WEIGHTS = np.linspace(0.1, 2.0, len(X), dtype="float32")


class AddOptional(keras.layers.Layer):
    def call(self, one, other=None):
        return one if other is None else one + other

    def compute_output_spec(self, one, other=None):
        return keras.KerasTensor(one.shape, one.dtype)


def two_outputs(as_dict):
    def build(cls):
        inputs = keras.Input((helpers.NUM_FEATURES,))
        outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in "ab"}
        return cls(inputs, outputs if as_dict else list(outputs.values()))

    return build


def optional_input(cls):
    shape = (helpers.NUM_FEATURES,)
    inputs = {
        "one": keras.Input(shape, name="one"),
        "other": keras.Input(shape, optional=True, name="other"),
    }
    return cls(inputs, keras.layers.Dense(1)(AddOptional()(inputs["one"], inputs["other"])))


BOTH = {"a": "mse", "b": "mse"}
# The model, the arguments of `compile` and those of `fit`.
CASES = {
    "weights": (
        two_outputs(as_dict=True),
        {"loss": BOTH, "weighted_metrics": {"a": ["mae"], "b": ["mae"]}},
        (X, {"a": Y, "b": Y}, {"a": WEIGHTS, "b": None}),
    ),
    "weights in a list": (
        two_outputs(as_dict=False),
        {"loss": ["mse", "mse"]},
        (X, [Y, Y], [None, WEIGHTS]),
    ),
    "targets": (
        two_outputs(as_dict=False),
        {"loss": ["mse", None], "metrics": [["mae"], None]},
        (X, [Y, None], None),
    ),
    "inputs": (optional_input, {"loss": "mse"}, ({"one": X, "other": None}, Y, None)),
}


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.parametrize("sampling", ["poisson", "shuffle", "chunks"])
@pytest.mark.parametrize("name", CASES)
def test_training_with_absent_parts_is_keras_training(name, sampling):
    build, options, (x, y, weights) = CASES[name]
    plain, model = build(keras.Model), build(ka.PrivateModel)
    model.set_weights(plain.get_weights())
    given = {"x": x, "y": y, "sample_weight": weights, "batch_size": len(X), "verbose": 0}
    plain.compile(keras.optimizers.SGD(0.1), **options)
    expected = plain.fit(**given, epochs=2).history
    of_steps = {"microbatch_size": 5} if sampling == "chunks" else {}
    optimizer = helpers.dp_optimizer(0.0, 1e6, keras.optimizers.SGD(0.1), **of_steps)
    model.compile(optimizer, **options, **without_xla({}))
    given["sampling"] = "shuffle" if sampling == "shuffle" else "poisson"
    found = model.fit(**given, epochs=2).history
    assert set(found) == set(expected)
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-4, err_msg=key)
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
