"""Layers with their options, and the rule of each; `architectures.py` has whole models.

The layers of a table stand side by side in one model, on the same inputs, so that they are planned,
compiled and checked at once. Their variables are compared one by one.
"""

from functools import partial

import keras
from keras import layers, ops

from tests.gradients.architectures import Architecture


def table(shape, made, not_on=()):
    """An architecture of layers side by side.

    Args:
        shape: The shape of one input, or a number of ids.
        made: For each rule ("" for no weights), functions that make layers.
        not_on: Backends that cannot run these layers on a CPU.
    """

    def make():
        is_ids = isinstance(shape, int)
        inputs = keras.Input((shape,) if is_ids else shape, dtype="int32" if is_ids else None)
        outputs = []
        for name, function in named.items():
            layer = function(name=name)
            outputs.append(layers.Flatten()(layer(inputs)))
            for variable in layer.variables:
                if variable.name == getattr(layer, "frozen_weight", None):
                    variable.trainable = False
        return keras.Model(inputs, layers.Dense(2, name="last")(layers.Concatenate()(outputs)))

    named = {
        f"{rule or 'untrained'}_{number}": function
        for rule, functions in made.items()
        for number, function in enumerate(functions)
    }
    kinds = {name: name.split("_")[0] for name in named if not name.startswith("untrained")}
    return Architecture(shape, make, {**kinds, "last": "Dense"}, not_on)


class StandardizedConv2D(layers.Conv2D):
    """Changes the kernel of the convolution, and does not override `call`."""

    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel - ops.mean(kernel))


def frozen(weight, layer_class, *args, **kwargs):
    """A layer with one weight that is not trained."""
    layer = layer_class(*args, **kwargs)
    layer.frozen_weight = weight
    return layer


FIRST = {"data_format": "channels_first"}

TABLES = {
    "dense": table(
        (3,),
        {
            "Dense": [
                partial(layers.Dense, 5, activation="softmax"),
                partial(layers.Dense, 5, use_bias=False),
                partial(layers.Dense, 5, activation=layers.LeakyReLU()),
                partial(frozen, "kernel", layers.Dense, 5),
                partial(layers.Dense, 5, lora_rank=2, lora_alpha=3, activation="tanh"),
            ],
            "general": [partial(layers.PReLU)],
            "": [partial(layers.Dense, 5, trainable=False)],
        },
    ),
    "convolutions_1d": table(
        (7, 4),
        {
            "Convolution": [
                partial(layers.Conv1D, 3, 2, strides=2, padding="causal"),
                partial(layers.Conv1D, 3, 2, dilation_rate=3, padding="causal"),
            ],
            "general": [partial(layers.Conv1D, 3, 2, lora_rank=1)],
        },
    ),
    "convolutions_2d": table(
        (5, 5, 2),
        {
            "Convolution": [
                partial(layers.Conv2D, 3, 3, activation="relu"),
                partial(layers.Conv2D, 3, 2, strides=(2, 1), use_bias=False),
                partial(layers.Conv2D, 3, (2, 1), dilation_rate=(1, 3)),
                partial(layers.Conv2D, 4, 3, groups=2),
                partial(frozen, "kernel", layers.Conv2D, 3, 2),
            ],
            "general": [partial(StandardizedConv2D, 3, 2)],
        },
    ),
    "convolutions_3d": table(
        (4, 3, 4, 2),
        {
            "Convolution": [
                partial(layers.Conv3D, 2, (3, 2, 2), strides=(2, 1, 2), padding="same")
            ],
            "TransposedConvolution": [
                partial(layers.Conv3DTranspose, 2, 3, strides=2, padding="same")
            ],
        },
    ),
    "depthwise_and_transposed_1d": table(
        (7, 3),
        {
            "DepthwiseConvolution": [
                partial(layers.DepthwiseConv1D, 4, strides=2, padding="same", depth_multiplier=2),
                partial(layers.DepthwiseConv1D, 2, dilation_rate=2, use_bias=False),
            ],
            "TransposedConvolution": [
                partial(layers.Conv1DTranspose, 2, 4, strides=3, output_padding=2, padding="same"),
                partial(layers.Conv1DTranspose, 2, 2, strides=4, use_bias=False),
            ],
        },
    ),
    "depthwise_and_transposed_2d": table(
        (5, 4, 2),
        {
            "DepthwiseConvolution": [
                partial(layers.DepthwiseConv2D, (2, 3), activation="tanh"),
                partial(layers.DepthwiseConv2D, 3, strides=2, padding="same", depth_multiplier=3),
            ],
            "general": [partial(layers.SeparableConv2D, 3, 2, strides=2)],
            "TransposedConvolution": [
                partial(layers.Conv2DTranspose, 3, (3, 2), strides=(2, 1), padding="same"),
                partial(
                    layers.Conv2DTranspose, 3, 3, strides=2, padding="same", output_padding=(1, 0)
                ),
            ],
        },
    ),
    "channels_first_and_dilated_transposed": table(
        (4, 5, 4),
        {
            "Convolution": [
                partial(layers.Conv2D, 4, 3, padding="same", strides=2, groups=2, **FIRST)
            ],
            "DepthwiseConvolution": [
                partial(layers.DepthwiseConv2D, 2, depth_multiplier=2, **FIRST)
            ],
            "TransposedConvolution": [
                partial(layers.Conv2DTranspose, 3, 3, strides=2, padding="same", **FIRST),
                partial(layers.Conv2DTranspose, 3, 2, dilation_rate=2),
                partial(layers.Conv2DTranspose, 3, (3, 2), dilation_rate=(1, 2), padding="same"),
            ],
        },
        not_on=("tensorflow",),
    ),
    "normalizations": table(
        (3, 4),
        {
            "Normalization": [
                partial(layers.LayerNormalization, axis=[2, 1]),
                partial(layers.LayerNormalization, center=False),
                partial(layers.LayerNormalization, scale=False),
                partial(frozen, "gamma", layers.LayerNormalization),
                partial(layers.GroupNormalization, 2),
                partial(layers.GroupNormalization, 1, scale=False),
            ],
            "general": [partial(layers.RMSNormalization), partial(layers.PReLU, shared_axes=[1])],
        },
    ),
    "einsum_dense": table(
        (3, 4),
        {
            "EinsumDense": [
                partial(layers.EinsumDense, "...c,cd->...d", 5, bias_axes="d"),
                partial(layers.EinsumDense, "abc,dc->abd", (3, 5), bias_axes="bd"),
                partial(layers.EinsumDense, "abc,dce->adbe", (2, 3, 3), bias_axes="d"),
                partial(layers.EinsumDense, "abc,bcd->ad", 5),
                partial(layers.EinsumDense, "abc,bcd->abd", (3, 5), bias_axes="bd"),
                partial(layers.EinsumDense, "abc,bdc->adc", (5, 4), bias_axes="c"),
                partial(layers.EinsumDense, "abc,c->abc", (3, 4)),
                partial(layers.EinsumDense, "abc,bd->ad", 5),
                partial(
                    layers.EinsumDense, "abc,cde->abde", (3, 2, 5), bias_axes="de", lora_rank=2
                ),
                partial(layers.EinsumDense, "abc,bcd->ad", 5, lora_rank=2, lora_alpha=1),
                partial(layers.EinsumDense, "abc,bcd->abd", (3, 5), lora_rank=2),
            ],
            "general": [partial(layers.EinsumDense, "abc,bdc->adc", (5, 4), lora_rank=2)],
        },
    ),
    "embeddings": table(
        5,
        {
            "Embedding": [partial(layers.Embedding, 6, 3)],
            "general": [partial(layers.Embedding, 6, 3, lora_rank=2)],
        },
    ),
}
