"""What the plan decides, and that planning and tapping leave the model as it was."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_adaclip.gradients import LayerRule, Materialized, proof
from keras_adaclip.gradients.layers import rule
from tests import oracles
from tests.gradients.architectures import functional, stack
from tests.gradients.support import (
    assert_close,
    built,
    plan_for,
    row_gradients,
    runner,
    ways,
)


def data(model, rows=3, shape=(3,)):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, *shape)).astype("float32")
    return x, rng.normal(size=tuple(model(x).shape)).astype("float32")


class ActiveInTraining(keras.Model):
    """Uses a kernel outside its layer, and only in training."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, inputs, training=None):
        outputs = self.dense(inputs)
        return outputs * ops.sum(ops.square(self.dense.kernel)) if training else outputs


class Lookup(layers.Layer):
    """Has a weight, and an argument that all examples share."""

    def build(self, *_):
        self.scale = self.add_weight(shape=(3,), initializer="ones")

    def call(self, inputs, shared):
        return ops.matmul(inputs * self.scale, shared)


class Shared(keras.Model):
    def __init__(self):
        super().__init__()
        self.lookup = Lookup()
        self.lookup.build()
        self.dense = layers.Dense(2)

    def call(self, inputs):
        return self.dense(self.lookup(inputs, shared=ops.eye(3) * 2.0))


class NoisyWeights(layers.Layer):
    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")
        self.noise = layers.Dropout(0.5)

    def call(self, inputs, training=None):
        return self.noise(inputs * self.scale, training=training)


class Reversed(keras.Model):
    """Puts the rows of the batch in another order and back again."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, inputs):
        return ops.flip(self.dense(ops.flip(inputs, axis=0)), axis=0)


class OnParameters(keras.Model):
    """Calls a layer on something that is no batch."""

    def __init__(self):
        super().__init__()
        self.dense, self.mixing = layers.Dense(3), layers.Dense(3)

    def call(self, inputs):
        return ops.matmul(self.dense(inputs), self.mixing(ops.eye(3)))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (ActiveInTraining, "differ from plain ones"),
        (Reversed, "differ from plain ones"),
        (OnParameters, "without the batch axis"),
        (lambda: stack(NoisyWeights(), shape=(3,)), "has weights and draws random numbers"),
    ],
    ids=["training only", "reversed rows", "called on parameters", "random layer with weights"],
)
def test_what_no_layer_alone_can_answer_for_goes_through_the_whole_model(make, reason):
    model = make()
    x, y = data(model)
    plan = plan_for(built(model, x, y), x, y)
    assert ways(plan) == "whole"
    assert reason in plan.whole_model_reason
    assert list(plan.describe()) == ["(whole model)"]
    assert reason in plan.describe()["(whole model)"]


def test_an_argument_that_all_examples_share_is_not_split():
    model = Shared()
    x, y = data(model)
    model = built(model, x, y)
    plan = plan_for(model, x, y)
    assert ways(plan) == ["general", "Dense"]
    expected = oracles.clipped_sums(row_gradients(model, x, y), 0.5)
    assert_close(runner(model, plan, 0.5)(x, y).gradients, expected)


def test_a_subclass_with_a_call_of_its_own_takes_the_general_way():
    class Doubled(layers.Dense):
        def call(self, inputs, training=None):
            return 2.0 * super().call(inputs)

    class Renamed(layers.Dense):
        pass

    model = stack(Doubled(3), Renamed(2), shape=(3,))
    x, y = data(model)
    assert ways(plan_for(built(model, x, y), x, y)) == ["general", "Dense"]


@pytest.mark.parametrize("rows", [1, 2])
def test_few_examples_are_enough_to_plan(rows):
    model = stack(layers.Dense(4, activation="relu"), layers.Dense(2), shape=(3,))
    x, y = data(model, rows)
    assert ways(plan_for(built(model, x, y), x, y)) == ["Dense", "Dense"]


def test_rows_that_are_not_finite_do_not_spoil_the_plan():
    model = stack(layers.Dense(4, activation="tanh"), layers.Dense(2), shape=(3,))
    x, y = data(model)
    x[0, 0], y[1, 1] = np.nan, np.inf
    assert ways(plan_for(built(model, x, y), x, y)) == ["Dense", "Dense"]


def test_weights_that_saturate_the_output_do_not_spoil_the_plan():
    model = stack(layers.Dense(3, activation="softmax"), shape=(3,))
    x = np.random.default_rng(0).uniform(0, 255, (3, 3)).astype("float32")
    y = np.array([0, 1, 2], np.int32)
    model = built(model, x, y, loss="sparse_categorical_crossentropy")
    assert ways(plan_for(model, x, y)) == ["Dense"]


def test_planning_and_stepping_leave_the_model_as_it_was():
    activation = layers.PReLU()
    model = stack(
        layers.Dropout(0.3), layers.Dense(4, activation=activation), layers.LSTM(2), shape=(2, 3)
    )
    x, y = data(model, shape=(2, 3))
    model = built(model, x, y)
    variables = [*model.variables, *model.metrics_variables]
    before = [ops.convert_to_numpy(variable) for variable in variables]
    predicted = ops.convert_to_numpy(model(x))

    plan = plan_for(model, x, y)
    runner(model, plan)(x, y)

    assert all("call" not in vars(layer) for layer in model._flatten_layers())
    assert model.layers[1].activation is activation
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)
    np.testing.assert_array_equal(ops.convert_to_numpy(model(x)), predicted)


def test_a_step_that_fails_leaves_no_tap_behind():
    class Failing(layers.Layer):
        armed = False

        def call(self, inputs):
            if self.armed:
                raise ZeroDivisionError
            return inputs

    failing = Failing()
    model = stack(layers.Dense(3, activation="tanh"), failing, layers.Dense(2), shape=(3,))
    x, y = data(model)
    model = built(model, x, y)
    plan = plan_for(model, x, y)
    failing.armed = True
    with pytest.raises(ZeroDivisionError):
        runner(model, plan, compile_step=False)(x, y)
    assert all("call" not in vars(layer) for layer in model._flatten_layers())
    assert model.layers[0].activation is keras.activations.tanh


def dropped(layerwise_way, rows):
    """Which of `rows` equal examples were dropped, by the norms of their gradients."""
    if layerwise_way:
        model = stack(layers.Dropout(0.5), layers.Dense(1, use_bias=False), shape=(1,))
    else:
        model = stack(layers.Dense(1, use_bias=False), NoisyWeights(), shape=(1,))
    x = np.ones((rows, 1), np.float32)
    model = built(model, x, x * 3.0, loss="mae")
    plan = plan_for(model, x, x)
    assert ways(plan) == (["Dense"] if layerwise_way else "whole")
    return runner(model, plan)(x, x * 3.0).norms < 1e-9


@pytest.mark.parametrize(("layerwise_way", "rows"), [(True, 900), (False, 100)])
def test_each_example_has_a_dropout_mask_of_its_own(layerwise_way, rows):
    was_dropped = dropped(layerwise_way, rows)
    # Half of them, and neighbours alike half of the time; 5 standard deviations each: a false
    # alarm in fewer than one of a million seeds.
    assert abs(was_dropped.mean() - 0.5) < 2.5 / np.sqrt(rows)
    assert abs(np.mean(was_dropped[1:] == was_dropped[:-1]) - 0.5) < 2.5 / np.sqrt(rows - 1)


def test_dropout_of_the_model_is_active_with_weights_of_its_own():
    class OwnWeight(keras.Model):
        def __init__(self):
            super().__init__()
            self.dropout = layers.Dropout(0.5)
            self.scale = self.add_weight(shape=(3,), initializer="ones")

        def call(self, inputs, training=None):
            return self.dropout(inputs, training=training) * self.scale

    model = OwnWeight()
    x = np.ones((40, 3), np.float32)
    model = built(model, x, x * 3.0)
    plan = plan_for(model, x, x)
    assert "draws random numbers" in plan.whole_model_reason
    assert len(np.unique(runner(model, plan)(x, x * 3.0).norms)) > 1


def test_nested_functional_models_are_taken_apart():
    inner = stack(layers.Dense(3), shape=(3,))
    model = functional((3,), lambda inputs: inner(ops.tanh(inner(inputs))))
    x, y = data(model)
    assert ways(plan_for(built(model, x, y), x, y)) == ["Dense"]


def test_a_unit_that_rounding_switches_does_not_spoil_the_plan(monkeypatch):
    """One failed comparison is not enough, as many as are tried are."""
    model = stack(layers.Dense(2), shape=(3,))
    x, y = np.ones((3, 3), np.float32), np.zeros((3, 2), np.float32)
    built(model, x, y)
    compared, seen = proof.compared, []

    def fails(times):
        def compared_later(model, rows, *rest):
            seen.append(ops.convert_to_numpy(rows.x))
            return len(seen) > times and compared(model, rows, *rest)

        seen.clear()
        monkeypatch.setattr(proof, "compared", compared_later)

    fails(2)
    assert plan_for(model, x, y).is_layerwise
    assert len({rows.tobytes() for rows in seen}) == 3
    fails(99)
    assert "differ from plain ones" in plan_for(model, x, y).whole_model_reason


class Doubled(layers.Layer):
    """A layer that gets a wrong rule."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")

    def call(self, inputs):
        return inputs * self.scale


class MixingRule(LayerRule):
    def gradients(self, call, variables):
        gradients = call.cotangents[0] * call.inputs
        return [Materialized(gradients - ops.mean(gradients, axis=0, keepdims=True))]


def test_a_wrong_rule_is_found_behind_weights_that_begin_with_zeros(monkeypatch):
    monkeypatch.setitem(rule._RULES, Doubled, MixingRule())
    model = stack(Doubled(), layers.Dense(2, kernel_initializer="zeros"), shape=(3,))
    x, y = data(model)
    plan = plan_for(built(model, x, y), x, y)
    assert "differ from plain ones" in plan.whole_model_reason


def test_weights_that_must_not_be_moved_are_compared_as_they_are():
    class Root(layers.Layer):
        def build(self, input_shape):
            self.scale = self.add_weight(shape=(8,), initializer="zeros")

        def call(self, inputs):
            return inputs * ops.sum(ops.sqrt(self.scale + 1e-8))

    model = stack(Root(), layers.Dense(2), shape=(3,))
    x, y = data(model)
    assert plan_for(built(model, x, y), x, y).is_layerwise
