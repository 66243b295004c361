"""Layers with their options, and the rule of each; `architectures.py` has whole models.

The layers of a table stand side by side in one model, on the same inputs, so that they are planned,
compiled and checked at once. Their variables are compared one by one.
"""

from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers, ops


@dataclass
class Table:
    """Layers on inputs of one shape.

    Args:
        shape: The shape of one input.
        layers: For each rule ("" for no weights), functions that make layers, by name.
        frozen: The name of the frozen weight of some layers.
        dtype: The type of the inputs. Integers lie between 0 and 5.
        not_on: Backends that cannot run these layers on a CPU.
    """

    shape: tuple[int, ...]
    layers: dict[str, dict[str, Any]]
    frozen: dict[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    not_on: tuple[str, ...] = ()

    def model(self):
        inputs = keras.Input(self.shape, dtype=self.dtype)
        outputs = []
        for makes in self.layers.values():
            for name, make in makes.items():
                layer = make()
                layer.name = name
                outputs.append(layers.Flatten()(layer(inputs)))
                for variable in layer.variables:
                    if variable.name == self.frozen.get(name):
                        variable.trainable = False
        return keras.Model(inputs, layers.Dense(2, name="last")(layers.Concatenate()(outputs)))

    def data(self, rows):
        rng = np.random.default_rng(3)
        if self.dtype == "int32":
            x = rng.integers(0, 6, (rows, *self.shape)).astype("int32")
        else:
            x = rng.normal(size=(rows, *self.shape)).astype("float32")
        return x, rng.normal(size=(rows, 2)).astype("float32")

    @property
    def rules(self):
        rules = {name: rule for rule, makes in self.layers.items() for name in makes if rule}
        return {**rules, "last": "Dense"}


class StandardizedConv2D(layers.Conv2D):
    """Changes the kernel of the convolution, and does not override `call`."""

    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel - ops.mean(kernel))


FIRST = {"data_format": "channels_first"}

TABLES = {
    "dense": Table(
        (3,),
        {
            "Dense": {
                "softmax": lambda: layers.Dense(5, activation="softmax"),
                "no_bias": lambda: layers.Dense(5, use_bias=False),
                "leaky_relu": lambda: layers.Dense(5, activation=layers.LeakyReLU()),
                "frozen_kernel": lambda: layers.Dense(5),
                "low_rank_scaled": lambda: layers.Dense(
                    5, lora_rank=2, lora_alpha=3, activation="tanh"
                ),
            },
            "general": {"prelu": lambda: layers.PReLU()},
            "": {"frozen": lambda: layers.Dense(5, trainable=False)},
        },
        frozen={"frozen_kernel": "kernel"},
    ),
    "convolutions_1d": Table(
        (7, 4),
        {
            "Convolution": {
                "same_strides": lambda: layers.Conv1D(3, 4, strides=2, padding="same"),
                "causal_strides": lambda: layers.Conv1D(3, 2, strides=2, padding="causal"),
                "causal_dilation": lambda: layers.Conv1D(3, 2, dilation_rate=3, padding="causal"),
                "groups": lambda: layers.Conv1D(4, 3, groups=2, padding="same"),
            },
            "general": {"low_rank": lambda: layers.Conv1D(3, 2, lora_rank=1)},
        },
    ),
    "convolutions_2d": Table(
        (5, 5, 2),
        {
            "Convolution": {
                "valid": lambda: layers.Conv2D(3, 3, activation="relu"),
                "same_strides": lambda: layers.Conv2D(3, 3, strides=2, padding="same"),
                "unequal_strides": lambda: layers.Conv2D(3, 2, strides=(2, 1), use_bias=False),
                "unequal_dilation": lambda: layers.Conv2D(3, (2, 1), dilation_rate=(1, 3)),
                "groups": lambda: layers.Conv2D(4, 3, groups=2),
                "frozen_kernel": lambda: layers.Conv2D(3, 2),
            },
            "general": {"own_operation": lambda: StandardizedConv2D(3, 2)},
        },
        frozen={"frozen_kernel": "kernel"},
    ),
    "convolutions_3d": Table(
        (4, 3, 4, 2),
        {
            "Convolution": {
                "same_strides": lambda: layers.Conv3D(
                    2, (3, 2, 2), strides=(2, 1, 2), padding="same"
                ),
            },
            "TransposedConvolution": {
                "transposed": lambda: layers.Conv3DTranspose(2, 3, strides=2, padding="same"),
            },
        },
    ),
    "depthwise_and_transposed_1d": Table(
        (7, 3),
        {
            "DepthwiseConvolution": {
                "depthwise_strides": lambda: layers.DepthwiseConv1D(
                    4, strides=2, padding="same", depth_multiplier=2
                ),
                "depthwise_dilation": lambda: layers.DepthwiseConv1D(
                    2, dilation_rate=2, use_bias=False
                ),
            },
            "TransposedConvolution": {
                "output_padding": lambda: layers.Conv1DTranspose(
                    2, 4, strides=3, output_padding=2, padding="same"
                ),
                "strides_over_kernel": lambda: layers.Conv1DTranspose(
                    2, 2, strides=4, use_bias=False
                ),
            },
        },
    ),
    "depthwise_and_transposed_2d": Table(
        (5, 4, 2),
        {
            "DepthwiseConvolution": {
                "depthwise": lambda: layers.DepthwiseConv2D((2, 3), activation="tanh"),
                "depthwise_strides": lambda: layers.DepthwiseConv2D(
                    3, strides=2, padding="same", depth_multiplier=3
                ),
            },
            "general": {"separable": lambda: layers.SeparableConv2D(3, 2, strides=2)},
            "TransposedConvolution": {
                "transposed_strides": lambda: layers.Conv2DTranspose(
                    3, (3, 2), strides=(2, 1), padding="same"
                ),
                "transposed_output_padding": lambda: layers.Conv2DTranspose(
                    3, 3, strides=2, padding="same", output_padding=(1, 0)
                ),
            },
        },
    ),
    "channels_first_and_dilated_transposed": Table(
        (4, 5, 4),
        {
            "Convolution": {
                "convolution": lambda: layers.Conv2D(
                    4, 3, padding="same", strides=2, groups=2, **FIRST
                ),
            },
            "DepthwiseConvolution": {
                "depthwise": lambda: layers.DepthwiseConv2D(2, depth_multiplier=2, **FIRST),
            },
            "TransposedConvolution": {
                "transposed": lambda: layers.Conv2DTranspose(
                    3, 3, strides=2, padding="same", **FIRST
                ),
                "dilated": lambda: layers.Conv2DTranspose(3, 2, dilation_rate=2),
                "dilated_same": lambda: layers.Conv2DTranspose(
                    3, (3, 2), dilation_rate=(1, 2), padding="same"
                ),
            },
        },
        not_on=("tensorflow",),
    ),
    "normalizations": Table(
        (3, 4),
        {
            "Normalization": {
                "layer_axes": lambda: layers.LayerNormalization(axis=[2, 1]),
                "layer_no_center": lambda: layers.LayerNormalization(center=False),
                "layer_no_scale": lambda: layers.LayerNormalization(scale=False),
                "layer_rms": lambda: layers.LayerNormalization(axis=[1, 2], rms_scaling=True),
                "layer_frozen_gamma": lambda: layers.LayerNormalization(),
                "group": lambda: layers.GroupNormalization(2),
                "group_no_scale": lambda: layers.GroupNormalization(1, scale=False),
            },
            "general": {
                "rms": lambda: layers.RMSNormalization(),
                "prelu_shared": lambda: layers.PReLU(shared_axes=[1]),
            },
        },
        frozen={"layer_frozen_gamma": "gamma"},
    ),
    "einsum_dense": Table(
        (3, 4),
        {
            "EinsumDense": {
                "dots": lambda: layers.EinsumDense("...c,cd->...d", 5, bias_axes="d"),
                "dots_behind": lambda: layers.EinsumDense("ab...,bc->ac...", 5, bias_axes="c"),
                "turned": lambda: layers.EinsumDense("abc,dc->abd", (3, 5), bias_axes="bd"),
                "around": lambda: layers.EinsumDense("abc,dce->adbe", (2, 3, 3), bias_axes="d"),
                "two_inputs": lambda: layers.EinsumDense("abc,bcd->ad", 5),
                "groups": lambda: layers.EinsumDense("abc,bcd->abd", (3, 5), bias_axes="bd"),
                "groups_behind": lambda: layers.EinsumDense("abc,bdc->adc", (5, 4), bias_axes="c"),
                "scale": lambda: layers.EinsumDense("abc,c->abc", (3, 4)),
                "summed_input": lambda: layers.EinsumDense("abc,bd->ad", 5),
                "low_rank_heads": lambda: layers.EinsumDense(
                    "abc,cde->abde", (3, 2, 5), bias_axes="de", lora_rank=2
                ),
                "low_rank_heads_joined": lambda: layers.EinsumDense(
                    "abc,bcd->ad", 5, lora_rank=2, lora_alpha=1
                ),
                "low_rank_groups": lambda: layers.EinsumDense("abc,bcd->abd", (3, 5), lora_rank=2),
            },
            "general": {
                "low_rank_group_last": lambda: layers.EinsumDense(
                    "abc,bdc->adc", (5, 4), lora_rank=2
                ),
            },
        },
    ),
    "embeddings": Table(
        (5,),
        {
            "Embedding": {"embedding": lambda: layers.Embedding(6, 3)},
            "general": {"low_rank": lambda: layers.Embedding(6, 3, lora_rank=2)},
        },
        dtype="int32",
    ),
}
