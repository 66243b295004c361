"""The choice of a plan, and that planning and tapping leave the model as it was."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.gradients import proof
from keras_adaclip.gradients.contributions import BatchGradients
from tests.gradients.architectures import functional, stack
from tests.gradients.support import LOOPED, built, plan_for, runner
from tests.models import helpers


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


class NoisyWeights(layers.Layer):
    """Has weights and draws random numbers, which may depend on the data."""

    def __init__(self, of_data=None, **options):
        super().__init__(**options)
        self.of_data, self.noise = of_data, layers.Dropout(0.5)
        self.seed = keras.random.SeedGenerator(1)

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")

    def call(self, inputs, training=None):
        outputs = self.noise(inputs * self.scale, training=training)
        if not training or self.of_data is None:
            return outputs
        if self.of_data == "columns":
            shape = (ops.shape(inputs)[1], ops.shape(inputs)[0])
            return outputs * ops.transpose(keras.random.uniform(shape, seed=self.seed))
        if self.of_data == "law":
            return outputs + keras.random.uniform(ops.shape(outputs), outputs, 9.0, seed=self.seed)
        drawn = keras.random.categorical(inputs, 1, seed=self.seed)
        return outputs * (1.0 + ops.cast(drawn, "float32"))


def reversed_rows():
    """Puts the rows of the batch in another order and back again."""
    return functional((3,), lambda x: ops.flip(layers.Dense(2)(ops.flip(x, axis=0)), axis=0))


class OnParameters(keras.Model):
    """Calls a layer on something that is no batch."""

    def __init__(self):
        super().__init__()
        self.dense, self.mixing = layers.Dense(3), layers.Dense(3)

    def call(self, inputs):
        return ops.matmul(self.dense(inputs), self.mixing(ops.eye(3)))


class TokensAndPlaces(layers.Layer):
    """Looks up tokens and their places in one table."""

    def build(self, input_shape):
        self.table = layers.Embedding(7, 3)

    def call(self, inputs):
        return self.table(ops.cast(inputs > 0.0, "int32")) + self.table(ops.arange(3))


class FirstGateInTraining(layers.Layer):
    """Has a gate without an axis of rows, of which training takes the first row."""

    def build(self, input_shape):
        self.gate, self.dropout = layers.Dense(3), layers.Dropout(0.5)

    def call(self, inputs, training=False):
        gate = self.gate(ops.ones((1, 1)))
        return self.dropout(inputs, training=training) * (gate[0] if training else gate)


@pytest.mark.parametrize("most", [1, 1 << 20])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (ActiveInTraining, "differ from plain ones"),
        (reversed_rows, "differ from plain ones"),
        (OnParameters, "differ from plain ones"),
        (lambda: stack(TokensAndPlaces(), shape=(3,)), "without the batch axis"),
        (lambda: stack(FirstGateInTraining(), shape=(3,)), "differ from plain ones"),
        (lambda: stack(NoisyWeights("choice"), shape=(3,)), "has weights and draws random numbers"),
        (lambda: stack(NoisyWeights("law"), shape=(3,)), "has weights and draws random numbers"),
        (lambda: stack(NoisyWeights("columns"), shape=(3,)), "whose batch axis is not the first"),
    ],
)
def test_models_that_do_not_go_layer_by_layer_are_differentiated_as_a_whole(
    make, reason, most, monkeypatch
):
    monkeypatch.setattr(proof, "_MOST_COMPARED", most)
    model = make()
    x, y = data(model)
    plan = plan_for(built(model, x, y), x, y)
    assert not plan.is_layerwise
    assert reason in plan.looped_reason


def test_a_layer_with_weights_of_its_own_is_differentiated_with_what_it_drew():
    model = stack(NoisyWeights(), shape=(1,))
    x, y = np.ones((64, 1), "float32"), np.full((64, 1), 9.0, "float32")
    plan = plan_for(built(model, x, y, loss="mae"), x, y)
    assert plan.is_layerwise
    # The derivative of |w d - 9| by w is minus the factor d of dropout, 0 or 2.
    found = runner(model, plan, seed=np.array([3, 5], np.int32))(x, y)
    np.testing.assert_allclose(found.norms, found.y_pred[:, 0], atol=1e-6)
    assert set(np.round(found.norms)) == {0.0, 2.0}


def test_rows_of_others_are_no_proof_even_if_they_are_equal():
    x, y = np.ones((3, 3), "float32"), np.full((3, 2), 99.0, "float32")
    plan = plan_for(built(reversed_rows(), x, y, loss="mae"), x, y)
    assert "differ from plain ones" in plan.looped_reason


@pytest.mark.parametrize("most", [1, 1 << 20])
def test_sums_of_the_wrong_sign_are_no_proof(most, monkeypatch):
    """Norms alone would not show it."""
    sums = BatchGradients.weighted_sums
    monkeypatch.setattr(
        BatchGradients, "weighted_sums", lambda self, factors, *rest: sums(self, -factors, *rest)
    )
    monkeypatch.setattr(proof, "_MOST_COMPARED", most)
    model = stack(layers.Dense(4, activation="relu"), layers.Dense(2), shape=(3,))
    x, y = data(model)
    assert "differ from plain" in plan_for(built(model, x, y), x, y).looped_reason


class Root(layers.Layer):
    """Has a weight that must not become negative."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(8,), initializer="zeros")

    def call(self, inputs):
        return inputs * ops.sum(ops.sqrt(self.scale + 1e-8))


@pytest.mark.parametrize("most", [1, 1 << 20])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: stack(layers.Dense(4, activation="relu"), layers.Dense(2), shape=(3,)),
        lambda: stack(Root(), layers.Dense(2), shape=(3,)),
    ],
    ids=["numbers that are not finite", "weights that must not be moved"],
)
def test_odd_rows_and_weights_do_not_spoil_the_plan(make, rows, most, monkeypatch):
    monkeypatch.setattr(proof, "_MOST_COMPARED", most)
    model = make()
    x, y = data(model, rows)
    x[0, 0], y[-1, 1] = np.nan, np.inf
    assert plan_for(built(model, x, y), x, y).is_layerwise


def test_weights_that_saturate_the_output_do_not_spoil_the_plan():
    model = stack(layers.Dense(3, activation="softmax"), shape=(3,))
    x = np.random.default_rng(0).uniform(0, 255, (3, 3)).astype("float32")
    y = np.array([0, 1, 2], np.int32)
    model = built(model, x, y, loss="sparse_categorical_crossentropy")
    assert plan_for(model, x, y).is_layerwise


def test_planning_and_stepping_leave_the_model_as_it_was():
    armed, activation = [], layers.PReLU()
    failing = layers.Lambda(lambda x: x * (1 / (0 if armed else 1)))
    made = [layers.Dropout(0.3), layers.Dense(4, activation=activation), layers.LSTM(2), failing]
    model = stack(*made, shape=(2, 3))
    x, y = data(model, shape=(2, 3))
    model = built(model, x, y)
    variables = [*model.variables, *model.metrics_variables]
    before = [ops.convert_to_numpy(variable) for variable in variables]

    def check():
        assert all("call" not in vars(layer) for layer in model._flatten_layers())
        assert model.layers[1].activation is activation
        for variable, value in zip(variables, before, strict=True):
            np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)

    plan = plan_for(model, x, y)
    runner(model, plan)(x, y)
    check()
    armed.append(True)
    with pytest.raises(ZeroDivisionError):
        runner(model, plan, compile_step=False)(x, y)
    check()


def test_each_example_has_a_dropout_mask_of_its_own_where_one_follows_another():
    """`tests/soundness/test_rules_steps.py` has the other way."""
    model = stack(layers.Dropout(0.5), layers.Dense(1, use_bias=False), shape=(1,))
    x = np.ones((100, 1), np.float32)
    model = built(model, x, x * 3.0, loss="mae")
    seed = np.array([3, 5], np.int32)
    was_dropped = runner(model, LOOPED, seed=seed)(x, x * 3.0).norms < 1e-9
    # Half of them, and neighbours alike half of the time; 5 standard deviations each: a false
    # alarm in fewer than one of a million seeds.
    assert abs(was_dropped.mean() - 0.5) < 0.25
    assert abs(np.mean(was_dropped[1:] == was_dropped[:-1]) - 0.5) < 0.25


def test_layerwise_refuses_a_model_that_does_not_go_layer_by_layer():
    dense = layers.Dense(1)
    penalty = layers.Lambda(lambda x: x * ops.sum(ops.square(dense.kernel)))
    model = ka.PrivateSequential([keras.Input((3,)), dense, penalty])
    model = helpers.compiled(model, 0.0, 0.5, gradient_method="layerwise", loss="mse")
    x, y = data(model, 6)
    with pytest.raises(ValueError, match=r"gradient_method='layerwise'.*differ from plain"):
        model.fit(x, y, batch_size=2, verbose=0)
    assert model.privacy_ledger.steps == 0
    assert model.gradient_plan is None
    model.optimizer.gradient_method = "auto"
    model.fit(x, y, batch_size=2, verbose=0)
    assert not model.gradient_plan.is_layerwise
