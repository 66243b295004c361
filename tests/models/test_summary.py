"""The report of `private_summary` and `check` on the gradients of each layer."""

import re

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


def private():
    inputs = keras.Input((20,), dtype="int32")
    x = layers.Embedding(30, 4, name="table")(inputs)
    x = layers.Dense(40, name="wide")(x)
    x = Scale(name="scale")(layers.Flatten()(x))
    model = ka.PrivateModel(inputs, layers.Dense(1, name="head")(x), name="example")
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0), loss="mse")
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
    assert [cells(line)[:3] for line in lines[:5]] == [
        ["Layer", "Rule", "Norms"],
        ["table (Embedding)", "Embedding", "Gram of rows"],
        ["wide (Dense)", "Dense", "written out"],
        ["scale (Scale)", "general", "written out"],
        ["head (Dense)", "Dense", "two norms"],
    ]
    assert "layer by layer" in text
    assert re.search(r"take [\d.]+ KiB per example, [\d.]+ MiB for 256 at a time\.", text)


def test_a_model_of_unknown_shapes_wants_a_few_inputs():
    model = ka.PrivateSequential([layers.Dense(2, name="only")])
    with pytest.raises(ValueError, match=r"private_summary\(x=\.\.\.\)"):
        model.private_summary()
    lines, _ = summary(model, x=np.ones((2, 3), "float32"))
    assert cells(lines[1]) == ["only (Dense)", "Dense", "two norms", "28 B"]
