"""The report of `private_summary` and `check` on the gradients of each layer."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka


class Scale(layers.Layer):
    """A layer without a rule."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")

    def call(self, inputs):
        return inputs * self.scale


class Penalty(layers.Layer):
    """Multiplies by a norm of a kernel that another layer owns."""

    def __init__(self, dense):
        super().__init__()
        self.dense = dense

    def call(self, inputs):
        return inputs * keras.ops.sum(keras.ops.square(self.dense.kernel))


def private():
    inputs = keras.Input((20,), dtype="int32")
    x = layers.Embedding(30, 4, name="table")(inputs)
    x = layers.Dense(40, name="wide")(x)
    x = layers.Dense(2, name="narrow")(x)
    x = Scale(name="scale")(layers.Flatten()(x))
    model = ka.PrivateModel(inputs, layers.Dense(1, name="head")(x), name="example")
    optimizer = ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0)
    model.compile(optimizer=optimizer, loss="mse")
    return model


def summary(model, **arguments):
    texts = []
    model.private_summary(print_fn=texts.append, **arguments)
    (text,) = texts
    assert max(map(len, text.splitlines())) <= 80
    return [line.split("  ") for line in text.splitlines()], text


def cells(line):
    return [cell.strip() for cell in line if cell.strip()]


def test_a_line_for_each_layer():
    lines, text = summary(private(), batch_size=256)
    assert [cells(line) for line in lines[:6]] == [
        ["Layer", "Rule", "Norms", "Memory"],
        # 20 cotangents of 4 numbers, and three matrices of 20 x 20.
        ["table (Embedding)", "Embedding", "Gram of rows", "5 KiB"],
        # 20 inputs of 4 and cotangents of 40 numbers, 4 x 40 weights and 40 biases.
        ["wide (Dense)", "Dense", "written out", "4.22 KiB"],
        ["narrow (Dense)", "Dense", "written out", "3.6 KiB"],
        ["scale (Scale)", "general", "written out", "160 B"],
        # 40 inputs and one cotangent, and the bias.
        ["head (Dense)", "Dense", "two norms", "168 B"],
    ]
    assert "layer by layer" in text
    assert "Norms and sums take 13.1 KiB per example, 3.29 MiB for 256 at a time." in text


def test_the_last_resort_says_why():
    inputs = keras.Input((3,))
    dense = layers.Dense(2)
    model = ka.PrivateModel(inputs, Penalty(dense)(dense(inputs)))
    optimizer = ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0)
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(np.ones((4, 3)), np.ones((4, 2)), batch_size=2, sampling="shuffle", verbose=0)
    _, text = summary(model)
    assert "One example after another, which is slow: layer-wise gradients" in text


def test_a_model_of_unknown_shapes_wants_a_few_inputs():
    model = ka.PrivateSequential([layers.Dense(2, name="only")])
    with pytest.raises(ValueError, match=r"private_summary\(x=\.\.\.\)"):
        model.private_summary()
    lines, _ = summary(model, x=np.ones((2, 3), "float32"))
    assert cells(lines[1]) == ["only (Dense)", "Dense", "two norms", "28 B"]


def test_sequences_of_any_length_have_no_number():
    inputs = keras.Input((None, 3))
    x = layers.GlobalAveragePooling1D()(layers.Dense(2, name="each")(inputs))
    lines, text = summary(ka.PrivateModel(inputs, x))
    assert cells(lines[1])[0] == "each (Dense)"
    assert "layer by layer" in text


def test_check_prints_issues_and_layers():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="head")])
    found = ka.check(model)
    assert found == []
    assert [(report.layer, report.rule) for report in found.ways] == [("head", "DenseRule")]
    assert "No issue was found." in str(found)
    assert "head (Dense)" in str(found)
    model = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(name="mixes")])
    found = ka.check(model)
    assert len(found) == 1
    assert not found.ways
    assert str(found).startswith("- mixes: BatchNormalization in training mode")
