"""The report of `private_summary` and `check` on the gradients of each layer."""

import re

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from tests.models import helpers


class Scale(layers.Layer):
    """A layer without a rule."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")

    def call(self, inputs):
        return inputs * self.scale


def summary(model, **arguments):
    texts = []
    model.private_summary(print_fn=texts.append, **arguments)
    (text,) = texts
    assert max(map(len, text.splitlines())) <= 80
    return text


def test_a_line_for_each_layer():
    inputs = keras.Input((20,), dtype="int32")
    x = layers.Dense(40, name="wide")(layers.Embedding(30, 4, name="table")(inputs))
    x = Scale(name="scale")(layers.Flatten()(x))
    model = helpers.compiled(ka.PrivateModel(inputs, layers.Dense(1, name="head")(x)), loss="mse")
    text = summary(model, batch_size=256)
    for line in (
        "Layer +Rule +Norms",
        r"table \(Embedding\) +Embedding +Gram of rows",
        r"wide \(Dense\) +Dense +written out",
        r"scale \(Scale\) +general +written out",
        r"head \(Dense\) +Dense +two norms",
        r"(?s)layer by layer.*take [\d.]+ KiB per example, [\d.]+ MiB for 256 at a time\.",
    ):
        assert re.search(line, text), line


def test_a_model_of_unknown_shapes_wants_a_few_inputs():
    model = ka.PrivateSequential([layers.Dense(2, name="only")])
    with pytest.raises(ValueError, match=r"private_summary\(x=\.\.\.\)"):
        model.private_summary()
    text = summary(model, x=np.ones((2, 3), "float32"))
    assert re.search(r"only \(Dense\) +Dense +two norms +28 B", text)
