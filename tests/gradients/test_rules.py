"""Which rule a layer takes: those of the package, and those that a user registers."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.clipping import Clipper, FixedClipping, ParameterGroups
from keras_adaclip.gradients.layers import rule, rule_for
from tests import oracles
from tests.gradients import support
from tests.gradients.architectures import functional, stack


class Mixing(layers.Layer):
    """A layer of a user: a matrix product over the positions, with a scale of its own."""

    def __init__(self, factor=1.0, **arguments):
        super().__init__(**arguments)
        self.factor = factor

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], 2), name="kernel")

    def call(self, inputs):
        return self.factor * ops.matmul(inputs, self.kernel)


class MixingRule(ka.gradients.LayerRule):
    def covers(self, layer):
        return layer.factor != 2.0

    def gradients(self, call, variables):
        factor = call.layer.factor
        return [
            ka.gradients.OuterProduct(call.inputs, factor * call.cotangents[0], variable.shape)
            for variable in variables
        ]


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(rule, "_RULES", dict(rule._RULES))


@pytest.mark.usefixtures("registry")
def test_a_registered_rule_is_used_and_exact():
    ka.gradients.register(Mixing)(MixingRule)
    x = np.random.default_rng(0).normal(size=(3, 4, 3)).astype("float32")
    model = support.built(stack(Mixing(3.0), layers.Dense(1), shape=(4, 3)), x, x[:, :, :1])
    plan = support.plan_for(model, x, x[:, :, :1])
    assert support.rules(plan) == ["Mixing", "Dense"]
    support.check_against_rows(model, x, x[:, :, :1], plan)


@pytest.mark.usefixtures("registry")
def test_the_rule_of_the_nearest_class_counts():
    class Renamed(Mixing):
        pass

    class Overridden(Mixing):
        def call(self, inputs):
            return 2.0 * super().call(inputs)

    ka.gradients.register(Mixing)(MixingRule)
    assert isinstance(rule_for(Renamed()), MixingRule)
    assert rule_for(Overridden()) is None
    assert rule_for(Mixing(2.0)) is None

    own_rule = type("OwnRule", (MixingRule,), {})
    ka.gradients.register(Renamed)(own_rule)
    assert type(rule_for(Renamed())) is own_rule
    assert type(rule_for(Mixing())) is MixingRule


def test_only_rules_of_layer_classes_can_be_registered():
    for layer_class, rule_class in ((Mixing(name="mixing"), MixingRule), (Mixing, layers.Dense)):
        with pytest.raises(TypeError, match="takes a class of Keras layers, and decorates"):
            ka.gradients.register(layer_class)(rule_class)


@pytest.mark.parametrize("equation", ["aab,bc->aac", "abb,bc->abc", "abc,cd->bad", "abc,acd->abd"])
def test_an_einsum_without_a_batch_of_matrix_products_has_no_rule(equation):
    """The batch comes twice, a diagonal, the batch is not first, it is in the kernel."""
    layer = layers.EinsumDense(equation, (3, 3))
    layer.bias, layer.input_spec = None, layers.InputSpec(ndim=3)
    assert rule_for(layer) is None


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="knows every size in a step")
def test_sizes_that_are_known_only_when_the_step_runs():
    import tensorflow as tf

    makes = [
        lambda: layers.Conv1D(4, 4, strides=2, padding="same", groups=2),
        lambda: layers.Conv1D(3, 2, dilation_rate=2, padding="causal"),
        lambda: layers.DepthwiseConv1D(3, strides=2, padding="same"),
        lambda: layers.Conv1DTranspose(3, 3, strides=2, padding="same"),
        lambda: layers.EinsumDense("abc,dc->abd", (None, 3), bias_axes="d"),
    ]

    def call(inputs):
        outputs = [layers.GlobalAveragePooling1D()(make()(inputs)) for make in makes]
        return layers.Dense(2)(layers.Concatenate()(outputs))

    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=size).astype("float32") for size in ((3, 9, 4), (3, 2)))
    model = support.built(functional((None, 4), call), x, y)
    plan = support.plan_for(model, x, y)
    assert "general" not in support.rules(plan)
    clipping = FixedClipping(0.5)
    groups = ParameterGroups.of("flat", model.trainable_variables)
    current = Clipper(clipping, groups, clipping.initial_state(groups))

    @tf.function(input_signature=[tf.TensorSpec((None, None, 4)), tf.TensorSpec((None, 2))])
    def step(x, y):
        batch = ka.gradients.Batch(x, y)
        total, observed = ka.gradients.clipped_sum(model, batch, current, plan)
        return total.gradients, observed.norms[:, 0]

    for length in (9, 6):
        expected = support.row_gradients(model, x[:, :length], y)
        gradients, norms = support.numpy(step(x[:, :length], y))
        np.testing.assert_allclose(norms, oracles.gradient_norms(expected), rtol=1e-5)
        support.assert_close(gradients, oracles.clipped_sums(expected, 0.5))
