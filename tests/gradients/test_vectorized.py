"""The whole model differentiated for all examples at once, and the choice of a way by the user."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from keras_adaclip.gradients import Batch, make_plan
from tests import oracles
from tests.gradients.architectures import stack
from tests.gradients.cases import case, check_against_rows
from tests.gradients.support import assert_close, built, row_gradients, runner

# Embeddings, masks, several inputs and outputs, convolutions, attention, shared weights, and
# three models that do not go layer by layer.
NAMES = [
    "embedding_masked_mean",
    "inputs_and_outputs",
    "convolution_groups",
    "attention_masked",
    "own_attention",
    "shared_dense",
    "tied_decoder",
    "kernel_used_elsewhere",
    "reshaped_rows",
]


def vectorized_plan(model, x, y):
    return make_plan(model, Batch(x, y), method="vectorized")


def private(optimizer_arguments, *made):
    inputs = keras.Input((3,))
    outputs = inputs
    for layer in made:
        outputs = layer(outputs)
    model = ka.PrivateModel(inputs, outputs)
    optimizer = ka.optimizers.DPOptimizer(
        "sgd", clipping=0.5, noise_multiplier=0.0, **optimizer_arguments
    )
    model.compile(optimizer=optimizer, loss="mse")
    return model


def data(rows=6):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 3)).astype("float32"), rng.normal(size=(rows, 1)).astype(
        "float32"
    )


@pytest.mark.parametrize("name", NAMES)
def test_vectorized_sums_are_those_of_plain_gradients(name):
    _, model, x, y = case(name)
    plan = vectorized_plan(model, x, y)
    assert plan.is_vectorized
    assert not plan.is_layerwise
    check_against_rows(model, x, y, plan)


def test_copies_of_an_example_are_averaged():
    _, model, x, y = case("shared_dense")
    x, y = np.concatenate([x, x[::-1]]), np.concatenate([y, y[::-1]])
    each = row_gradients(model, x, y)
    mean = [(part[0::2] + part[1::2]) / 2 for part in each]
    found = runner(model, vectorized_plan(model, x, y), clip_norm=0.1, num_copies=2)(x, y)
    np.testing.assert_allclose(found.norms, oracles.gradient_norms(mean), rtol=1e-5)
    assert_close(found.gradients, oracles.clipped_sums(mean, 0.1))


def test_an_example_that_is_not_finite_leaves_the_others_alone():
    model = built(stack(layers.Dense(4, activation="tanh"), layers.Dense(1), shape=(3,)), *data())
    x, y = data()
    plan = vectorized_plan(model, x, y)
    x[2] = np.nan
    found = runner(model, plan, clip_norm=0.5)(x, y)
    rows = [0, 1, 3, 4, 5]
    expected = oracles.clipped_sums(row_gradients(model, x[rows], y[rows]), 0.5)
    assert list(found.finite) == [True, True, False, True, True, True]
    assert_close(found.gradients, expected)


@pytest.mark.parametrize("microbatch_size", [None, 4])
def test_the_way_does_not_change_what_is_learned(microbatch_size):
    x, y = data(12)
    weights = {}
    for method in ("auto", "layerwise", "vectorized"):
        keras.utils.set_random_seed(3)
        model = private(
            {"gradient_method": method, "microbatch_size": microbatch_size},
            layers.Dense(4, activation="tanh"),
            layers.Dense(1),
        )
        model.fit(x, y, batch_size=6, epochs=2, sampling="shuffle", shuffle=False, verbose=0)
        assert model.gradient_plan.is_vectorized == (method == "vectorized")
        weights[method] = model.get_weights()
    for method in ("layerwise", "vectorized"):
        assert_close(weights[method], weights["auto"])


def test_vectorized_refuses_a_model_that_draws_random_numbers():
    model = private({"gradient_method": "vectorized"}, layers.Dropout(0.5), layers.Dense(1))
    with pytest.raises(ValueError, match=r"draws random numbers.*gradient_method=\"auto\""):
        model.fit(*data(), batch_size=2, verbose=0)
    assert model.privacy_ledger.steps == 0
    assert model.gradient_plan is None


class Penalty(layers.Layer):
    """Multiplies by a norm of a kernel that another layer owns."""

    def __init__(self, dense):
        super().__init__()
        self.dense = dense

    def call(self, inputs):
        return inputs * keras.ops.sum(keras.ops.square(self.dense.kernel))


def test_layerwise_refuses_a_model_that_does_not_go_layer_by_layer():
    dense = layers.Dense(1)
    model = private({"gradient_method": "layerwise"}, dense, Penalty(dense))
    with pytest.raises(ValueError, match=r"gradient_method='layerwise'.*differ from plain"):
        model.fit(*data(), batch_size=2, verbose=0)
    assert model.privacy_ledger.steps == 0


def test_neither_is_there_for_a_model_that_is_not_repeatable():
    model = built(stack(layers.Dense(1), shape=(3,)), *data())
    for method in ("layerwise", "vectorized"):
        with pytest.raises(ValueError, match="without a Keras seed generator"):
            make_plan(model, Batch(*data()), method, is_repeatable=False)
    assert make_plan(model, Batch(*data()), is_repeatable=False).is_one_by_one


def test_the_method_is_checked_and_saved():
    with pytest.raises(ValueError, match="gradient_method='fast'"):
        ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0, gradient_method="fast")
    optimizer = ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0, gradient_method="vectorized")
    restored = ka.optimizers.DPOptimizer.from_config(optimizer.get_config())
    assert restored.gradient_method == "vectorized"


def test_another_method_is_another_plan():
    model = private({}, layers.Dense(1))
    model.fit(*data(), batch_size=2, verbose=0)
    model.optimizer.gradient_method = "vectorized"
    model.fit(*data(), batch_size=2, verbose=0)
    assert model.gradient_plan.is_vectorized
    with pytest.raises(ValueError, match="gradient_method='fast'"):
        model.optimizer.gradient_method = "fast"


class TurnsRandom(layers.Layer):
    """Draws from a generator that Keras does not know, once it is told to."""

    is_random = False

    def call(self, inputs):
        if not self.is_random:
            return inputs
        return inputs + float(np.random.default_rng().normal())


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="is drawn once, when JAX compiles")
def test_a_plan_that_does_not_hold_any_more_is_not_kept():
    layer = TurnsRandom()
    model = private({"gradient_method": "layerwise"}, layer, layers.Dense(1))
    model.compile(optimizer=model.optimizer, loss="mse", run_eagerly=True)
    x, y = data()
    model.fit(x, y, batch_size=2, verbose=0)
    layer.is_random = True
    with pytest.raises(ValueError, match="outside of the framework"):
        model.fit(x, y, batch_size=2, verbose=0)
    assert model.gradient_plan is None
    with pytest.raises(ValueError, match="outside of the framework"):
        model.train_on_batch(x, y)
