"""Recurrent layers: gradients, forward values, and layers without a rule."""

import contextlib
import math
from functools import partial

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import GradientPlan
from keras_adaclip.gradients.layers import rule_for
from keras_adaclip.gradients.layerwise import TapRecorder
from keras_adaclip.gradients.plan import assign_rules
from tests.gradients.architectures import functional
from tests.gradients.support import built, check_against_rows, rules, with_other_weights

RECURRENT = {"lstm": layers.LSTM, "gru": layers.GRU, "simple": layers.SimpleRNN}


def softsign(value):
    return value / (1 + ops.abs(value))


def joined(outputs):
    flat = [ops.reshape(output, (-1, math.prod(output.shape[1:]))) for output in outputs]
    return layers.Dense(2)(layers.Concatenate()(flat))


def masked():
    """Steps that are masked at the beginning, in the middle and at the end."""

    def call(ids):
        steps = layers.Embedding(4, 2, mask_zero=True)(ids)
        both = layers.Bidirectional(layers.LSTM(1, return_sequences=True), merge_mode="sum")
        stacked = layers.SimpleRNN(2, return_sequences=True)(steps)
        stacked = layers.GRU(2, go_backwards=True)(stacked)
        return joined([both(steps), stacked, layers.SimpleRNN(2, zero_output_for_mask=True)(steps)])

    return functional((4,), call, "int32")


def states():
    """States go from layer to layer, and the first steps that take them may be masked."""

    def call(ids):
        steps, mask = layers.Embedding(4, 2)(ids), ops.not_equal(ids, 0)
        encoder = layers.LSTM(2, return_state=True, use_bias=False)
        _, hidden, carry = encoder(layers.Dense(2)(steps))
        decoder = layers.GRU(2, return_sequences=True, return_state=True)
        decoded, state = decoder(steps, initial_state=hidden, mask=mask)
        turned = layers.LSTM(2, go_backwards=True, return_sequences=True)
        turned = turned(steps, initial_state=[state, carry], mask=mask)
        single = layers.SimpleRNN(2, unroll=True)(steps, initial_state=carry, mask=mask)
        return joined([decoded, turned, single])

    return functional((4,), call, "int32")


def options():
    def call(inputs):
        turned = {"return_sequences": True, "go_backwards": True}
        own = {"activation": softsign, "recurrent_activation": "softmax"}
        makes = [
            layers.LSTM(2, **turned, **own),
            layers.GRU(2, **turned, **own),
            layers.GRU(3, use_bias=False),
            layers.SimpleRNN(2, use_bias=False, activation=None, **turned),
        ]
        shared = layers.GRU(3, return_sequences=True)
        return joined([*(make(inputs) for make in makes), shared(shared(inputs))])

    return functional((4, 3), call)


def half_precision():
    return functional(
        (2, 3), lambda inputs: layers.Dense(2)(layers.GRU(2, dtype="mixed_bfloat16")(inputs))
    )


# The model, the shape of its inputs (an int for ids), and the tolerance.
MODELS = {
    "options": (options, (4, 3), 1e-5),
    "masked": (masked, 4, 1e-5),
    "states": (states, 4, 1e-5),
    "half precision": (half_precision, (2, 3), 0.1),
}
IDS = np.array([[0, 1, 0, 3], [2, 3, 1, 1], [0, 0, 2, 0]], np.int32)


def unchecked_plan(model):
    """The rule of each layer, without the comparison on a few rows that a fit starts with."""
    plan = GradientPlan(*assign_rules(model))
    assert "general" not in rules(plan)
    return plan


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_plain_model(name):
    make, shape, tolerance = MODELS[name]
    rng = np.random.default_rng(3)
    x = IDS if isinstance(shape, int) else rng.normal(size=(3, *shape)).astype("float32")
    model = make()
    y = rng.normal(size=tuple(model(x).shape)).astype("float32")
    model = with_other_weights(built(model, x, y))
    check_against_rows(model, x, y, unchecked_plan(model), tolerance)


def dropping():
    def call(inputs):
        return joined([make(2, dropout=0.5)(inputs) for make in RECURRENT.values()])

    return functional((3, 4), call)


def test_dropout_of_the_inputs_is_that_of_the_layers():
    model, x = dropping(), np.random.default_rng(3).normal(size=(3, 3, 4)).astype("float32")

    def outputs(seed, context):
        keras.utils.set_random_seed(seed)
        for number, generator in enumerate(keras_private.seed_generator_states(model)):
            generator.assign([seed, number])
        with context:
            return ops.convert_to_numpy(model(x, training=True))

    for seed in (1, 2):
        tapped = TapRecorder().tapped(unchecked_plan(model).rules, {})
        found, expected = outputs(seed, tapped), outputs(seed, contextlib.nullcontext())
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


def with_own_cell():
    layer = layers.LSTM(2)
    layer.cell = type("OwnCell", (layers.LSTMCell,), {})(2)
    return layer


def leaky():
    activation = layers.PReLU()
    activation.build((None, 2))
    return activation


OwnLoop = type("OwnLoop", (layers.GRU,), {"inner_loop": layers.RNN.inner_loop})
OwnCall = type("OwnCall", (layers.SimpleRNN,), {"call": layers.RNN.call})
WITHOUT_RULE = {
    "recurrent dropout": lambda: layers.LSTM(2, recurrent_dropout=0.5),
    "dropout by gate": lambda: layers.GRU(2, dropout=0.5, implementation=1),
    "activation with weights": lambda: layers.LSTM(2, activation=leaky()),
    "stateful": lambda: layers.GRU(2, stateful=True),
    "reset gate before the product": lambda: layers.GRU(2, reset_after=False),
    "unrolled, zeros for masked steps": lambda: layers.SimpleRNN(
        2, zero_output_for_mask=True, unroll=True
    ),
    "cell of a subclass": with_own_cell,
    "loop of a subclass": lambda: OwnLoop(2),
    "call of a subclass": lambda: OwnCall(2),
}


@pytest.mark.parametrize("name", [*RECURRENT, *WITHOUT_RULE])
def test_only_plain_layers_with_cells_of_keras_have_a_rule(name):
    layer = {**WITHOUT_RULE, **{key: partial(made, 2) for key, made in RECURRENT.items()}}[name]()
    layer.build((2, 3, 2))
    assert (rule_for(layer) is None) == (name in WITHOUT_RULE)
