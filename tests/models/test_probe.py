"""What the forward pass must not do, however it hides it."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from keras_adaclip.gradients import Batch
from keras_adaclip.training import Probe


class AddMeanOfOthers(keras.layers.Layer):
    """Adds the mean over the batch, in training mode only where asked."""

    def __init__(self, in_training_only=False, **kwargs):
        super().__init__(**kwargs)
        self.in_training_only = in_training_only

    def call(self, inputs, training=False):
        if self.in_training_only and not training:
            return inputs
        return inputs + ops.mean(inputs, axis=0, keepdims=True)


class AddRowsBefore(keras.layers.Layer):
    """A running sum over the batch: row 0 sees only itself."""

    def call(self, inputs):
        return ops.cumsum(inputs, axis=0)


class RememberInTrainableWeight(keras.layers.Layer):
    """Writes the mean of the batch into a trainable weight."""

    def build(self, shape):
        self.centre = self.add_weight(shape=(shape[-1],), name="centre")

    def call(self, inputs, training=False):
        outputs = inputs - self.centre
        if training:
            self.centre.assign(self.centre + ops.mean(ops.stop_gradient(inputs), axis=0))
        return outputs


class UnseededNoise(keras.layers.Layer):
    """Random numbers that no Keras seed generator knows of."""

    def call(self, inputs):
        import tensorflow as tf

        return inputs + tf.random.normal((1,))


def model_with(*layers, dropout=False, dtype="float32"):
    stack = [keras.Input((4,), dtype=dtype)]
    if dtype != "float32":
        stack += [keras.layers.Embedding(5, 3), keras.layers.Flatten()]
    if dropout:
        stack.append(keras.layers.Dropout(0.5))
    return ka.PrivateSequential([*stack, *layers, keras.layers.Dense(2)])


def float_rows(constant=False):
    values = np.ones((3, 4)) if constant else np.random.default_rng(0).normal(size=(3, 4))
    return Batch(values.astype("float32"))


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(
    "layer",
    [AddMeanOfOthers(), AddMeanOfOthers(in_training_only=True), AddRowsBefore()],
    ids=["mean", "mean_in_training", "running_sum"],
)
@pytest.mark.parametrize("constant", [False, True])
def test_mixing_is_found_and_named(layer, dropout, constant):
    model = model_with(layer, dropout=dropout)
    issues = Probe(model, float_rows(constant)).examined().issues
    assert [issue.layer for issue in issues] == [layer.name]


def test_rows_of_one_constant_id_hide_no_mixing():
    layer = AddMeanOfOthers()
    model = model_with(layer, dtype="int32")
    issues = Probe(model, Batch(np.zeros((3, 4), "int32"))).examined().issues
    assert [issue.layer for issue in issues] == [layer.name]


@pytest.mark.parametrize("name", ["MixUp", "CutMix"])
def test_blending_augmentations_are_refused(name):
    class Blending(ka.PrivateModel):
        def __init__(self):
            super().__init__()
            self.blend = getattr(keras.layers, name)()

        def call(self, inputs):
            return self.blend(inputs)

    model = Blending()
    assert [issue.layer for issue in ka.check(model)] == [model.blend.name]


def test_independent_layers_pass():
    model = model_with(
        keras.layers.Dense(6, activation="relu"), keras.layers.LayerNormalization(), dropout=True
    )
    assert Probe(model, float_rows()).examined().issues == []


def test_assigned_trainable_weight_is_found():
    layer = RememberInTrainableWeight()
    model = model_with(layer)
    assert [issue.layer for issue in Probe(model, float_rows()).examined().issues] == [
        layer.centre.path
    ]


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="PyTorch's generator is set for the examination, and JAX has none",
)
def test_unseeded_randomness_is_refused():
    model = model_with(UnseededNoise(name="noise"))
    (issue,) = Probe(model, float_rows()).examined().issues
    assert issue.layer == "noise"
    assert "draws random numbers outside of the framework" in issue.reason
