"""Layers in all their options, and the way that each takes; `architectures.py` is for what is more.

The configurations of a table stand side by side in one model, on the same inputs, so that they
are planned, compiled and checked at once; their variables are compared one by one.
"""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops


@dataclass
class Table:
    """Layers on inputs of one shape.

    Args:
        shape: that of one input.
        layers: for each name, the way of the layer ("" where it has no weights), a function that
            makes it, and the names of the weights that are not trained.
        dtype: that of the inputs; integers lie between 0 and 5.
        not_on: backends that cannot run these layers.
    """

    shape: tuple[int, ...]
    layers: dict[str, tuple[Any, ...]]
    dtype: str = "float32"
    not_on: tuple[str, ...] = ()

    def model(self):
        inputs = keras.Input(self.shape, dtype=self.dtype)
        outputs = []
        for name, (_, make, *frozen) in self.layers.items():
            layer = make()
            layer.name = name
            outputs.append(layers.Flatten()(layer(inputs)))
            for variable in layer.variables:
                if variable.name in frozen:
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
    def ways(self):
        ways = {name: way for name, (way, *_) in self.layers.items() if way}
        return {**ways, "last": "Dense"}


class StandardizedConv2D(layers.Conv2D):
    """Changes what is convolved with, and leaves `call` as it was."""

    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel - ops.mean(kernel))


CONVOLUTION, DEPTHWISE = "Convolution", "DepthwiseConvolution"
SEPARABLE, TRANSPOSED = "SeparableConvolution", "TransposedConvolution"

TABLES = {
    "dense": Table(
        (3,),
        {
            "tanh": ("Dense", lambda: layers.Dense(5, activation="tanh")),
            "no_bias": ("Dense", lambda: layers.Dense(5, use_bias=False)),
            "softmax": ("Dense", lambda: layers.Dense(5, activation="softmax")),
            "own_activation": (
                "Dense",
                lambda: layers.Dense(5, activation=lambda value: value * ops.tanh(value)),
            ),
            "leaky_relu": ("Dense", lambda: layers.Dense(5, activation=layers.LeakyReLU())),
            "frozen_kernel": ("Dense", lambda: layers.Dense(5), "kernel"),
            "frozen_bias": ("Dense", lambda: layers.Dense(5), "bias"),
            "frozen": ("", lambda: layers.Dense(5, trainable=False)),
            "low_rank": ("Dense", lambda: layers.Dense(5, lora_rank=2)),
            "low_rank_scaled": (
                "Dense",
                lambda: layers.Dense(5, lora_rank=2, lora_alpha=3, activation="tanh"),
            ),
            "prelu": ("PReLU", lambda: layers.PReLU()),
            "unit_normalization": ("", lambda: layers.UnitNormalization()),
        },
    ),
    "convolutions_1d": Table(
        (7, 4),
        {
            "valid": (CONVOLUTION, lambda: layers.Conv1D(3, 3, activation="relu")),
            "no_bias": (CONVOLUTION, lambda: layers.Conv1D(3, 2, use_bias=False)),
            "same_strides": (CONVOLUTION, lambda: layers.Conv1D(3, 4, strides=2, padding="same")),
            "strides_over_kernel": (CONVOLUTION, lambda: layers.Conv1D(3, 2, strides=3)),
            "causal": (CONVOLUTION, lambda: layers.Conv1D(3, 3, padding="causal")),
            "causal_strides": (
                CONVOLUTION,
                lambda: layers.Conv1D(3, 2, strides=2, padding="causal"),
            ),
            "causal_dilation": (
                CONVOLUTION,
                lambda: layers.Conv1D(3, 2, dilation_rate=3, padding="causal"),
            ),
            "same_dilation": (
                CONVOLUTION,
                lambda: layers.Conv1D(3, 2, dilation_rate=3, padding="same"),
            ),
            "groups": (CONVOLUTION, lambda: layers.Conv1D(4, 3, groups=2, padding="same")),
            "low_rank": ("general", lambda: layers.Conv1D(3, 2, lora_rank=1)),
        },
    ),
    "convolutions_2d": Table(
        (5, 5, 2),
        {
            "valid": (CONVOLUTION, lambda: layers.Conv2D(3, 3, activation="relu")),
            "no_bias": (CONVOLUTION, lambda: layers.Conv2D(3, 3, use_bias=False)),
            "same_strides": (CONVOLUTION, lambda: layers.Conv2D(3, 3, strides=2, padding="same")),
            "same_strides_even": (
                CONVOLUTION,
                lambda: layers.Conv2D(3, 2, strides=2, padding="same"),
            ),
            "unequal_strides": (CONVOLUTION, lambda: layers.Conv2D(3, 2, strides=(2, 1))),
            "same_dilation": (
                CONVOLUTION,
                lambda: layers.Conv2D(3, 2, dilation_rate=2, padding="same"),
            ),
            "unequal_dilation": (
                CONVOLUTION,
                lambda: layers.Conv2D(3, (2, 1), dilation_rate=(1, 3)),
            ),
            "groups": (CONVOLUTION, lambda: layers.Conv2D(4, 3, groups=2)),
            "one_by_one": (CONVOLUTION, lambda: layers.Conv2D(3, 1)),
            "unequal_kernel": (CONVOLUTION, lambda: layers.Conv2D(3, (1, 3), padding="same")),
            "frozen_kernel": (CONVOLUTION, lambda: layers.Conv2D(3, 2), "kernel"),
            "frozen_bias": (CONVOLUTION, lambda: layers.Conv2D(3, 2), "bias"),
            "own_operation": ("general", lambda: StandardizedConv2D(3, 2)),
        },
    ),
    "convolutions_3d": Table(
        (4, 3, 4, 2),
        {
            "valid": (CONVOLUTION, lambda: layers.Conv3D(3, 2)),
            "same_strides": (
                CONVOLUTION,
                lambda: layers.Conv3D(2, (3, 2, 2), strides=(2, 1, 2), padding="same"),
            ),
            "dilation": (
                CONVOLUTION,
                lambda: layers.Conv3D(2, 2, dilation_rate=(1, 2, 3), use_bias=False),
            ),
        },
    ),
    "depthwise_and_separable_1d": Table(
        (7, 3),
        {
            "depthwise": (DEPTHWISE, lambda: layers.DepthwiseConv1D(3, activation="tanh")),
            "depthwise_strides": (
                DEPTHWISE,
                lambda: layers.DepthwiseConv1D(4, strides=2, padding="same", depth_multiplier=2),
            ),
            "depthwise_dilation": (
                DEPTHWISE,
                lambda: layers.DepthwiseConv1D(2, dilation_rate=2, use_bias=False),
            ),
            "separable": (SEPARABLE, lambda: layers.SeparableConv1D(4, 3)),
            "separable_strides": (
                SEPARABLE,
                lambda: layers.SeparableConv1D(
                    4, 2, strides=2, padding="same", depth_multiplier=2, activation="tanh"
                ),
            ),
        },
    ),
    "depthwise_and_separable_2d": Table(
        (5, 4, 2),
        {
            "depthwise": (DEPTHWISE, lambda: layers.DepthwiseConv2D((2, 3), activation="tanh")),
            "depthwise_strides": (
                DEPTHWISE,
                lambda: layers.DepthwiseConv2D(3, strides=2, padding="same", depth_multiplier=3),
            ),
            "depthwise_dilation": (
                DEPTHWISE,
                lambda: layers.DepthwiseConv2D(2, dilation_rate=2, padding="same", use_bias=False),
            ),
            "depthwise_frozen_kernel": (
                DEPTHWISE,
                lambda: layers.DepthwiseConv2D(2),
                "kernel",
            ),
            "separable": (SEPARABLE, lambda: layers.SeparableConv2D(3, 2, activation="tanh")),
            "separable_strides": (
                SEPARABLE,
                lambda: layers.SeparableConv2D(
                    3, 3, strides=2, padding="same", depth_multiplier=2, use_bias=False
                ),
            ),
            "separable_dilation": (
                SEPARABLE,
                lambda: layers.SeparableConv2D(3, 2, dilation_rate=2, padding="same"),
            ),
            "separable_frozen_pointwise": (
                SEPARABLE,
                lambda: layers.SeparableConv2D(3, 2),
                "pointwise_kernel",
            ),
            "separable_frozen_depthwise": (
                SEPARABLE,
                lambda: layers.SeparableConv2D(3, 2),
                "depthwise_kernel",
            ),
            "separable_one_row": (SEPARABLE, lambda: layers.SeparableConv2D(3, (5, 2))),
        },
    ),
    "transposed_1d": Table(
        (4, 3),
        {
            "valid": (TRANSPOSED, lambda: layers.Conv1DTranspose(2, 3, activation="tanh")),
            "same_strides": (
                TRANSPOSED,
                lambda: layers.Conv1DTranspose(2, 5, strides=2, padding="same"),
            ),
            "output_padding": (
                TRANSPOSED,
                lambda: layers.Conv1DTranspose(2, 3, strides=3, output_padding=1),
            ),
            "same_output_padding": (
                TRANSPOSED,
                lambda: layers.Conv1DTranspose(2, 4, strides=3, output_padding=2, padding="same"),
            ),
            "strides_over_kernel": (
                TRANSPOSED,
                lambda: layers.Conv1DTranspose(2, 2, strides=4, use_bias=False),
            ),
        },
    ),
    "transposed_2d": Table(
        (3, 4, 2),
        {
            "valid": (TRANSPOSED, lambda: layers.Conv2DTranspose(3, 2, activation="tanh")),
            "unequal_strides": (
                TRANSPOSED,
                lambda: layers.Conv2DTranspose(3, (3, 2), strides=(2, 1), padding="same"),
            ),
            "same_strides_over_kernel": (
                TRANSPOSED,
                lambda: layers.Conv2DTranspose(3, 2, strides=3, padding="same", use_bias=False),
            ),
            "output_padding": (
                TRANSPOSED,
                lambda: layers.Conv2DTranspose(
                    3, 3, strides=2, padding="same", output_padding=(1, 0)
                ),
            ),
        },
    ),
    # TensorFlow has no dilated transposed convolution on a CPU.
    "transposed_dilated": Table(
        (3, 4, 2),
        {
            "valid": (TRANSPOSED, lambda: layers.Conv2DTranspose(3, 2, dilation_rate=2)),
            "same": (
                TRANSPOSED,
                lambda: layers.Conv2DTranspose(3, (3, 2), dilation_rate=(1, 2), padding="same"),
            ),
        },
        not_on=("tensorflow",),
    ),
    "transposed_3d": Table(
        (2, 3, 2, 2),
        {
            "same": (TRANSPOSED, lambda: layers.Conv3DTranspose(2, 3, strides=2, padding="same")),
            "valid": (TRANSPOSED, lambda: layers.Conv3DTranspose(2, (1, 2, 2), use_bias=False)),
        },
    ),
    # TensorFlow has these on a GPU only.
    "channels_first": Table(
        (2, 5, 4),
        {
            "convolution": (
                CONVOLUTION,
                lambda: layers.Conv2D(
                    4, 3, data_format="channels_first", padding="same", strides=2, groups=2
                ),
            ),
            "depthwise": (
                DEPTHWISE,
                lambda: layers.DepthwiseConv2D(2, data_format="channels_first", depth_multiplier=2),
            ),
            "separable": (
                SEPARABLE,
                lambda: layers.SeparableConv2D(3, 2, data_format="channels_first"),
            ),
            "transposed": (
                TRANSPOSED,
                lambda: layers.Conv2DTranspose(
                    3, 3, strides=2, padding="same", data_format="channels_first"
                ),
            ),
        },
        not_on=("tensorflow",),
    ),
    "channels_first_1d": Table(
        (3, 6),
        {
            "causal": (
                CONVOLUTION,
                lambda: layers.Conv1D(4, 2, data_format="channels_first", padding="causal"),
            ),
            "strides": (
                CONVOLUTION,
                lambda: layers.Conv1D(4, 3, strides=2, data_format="channels_first"),
            ),
        },
        not_on=("tensorflow",),
    ),
    "normalizations": Table(
        (3, 4),
        {
            "layer": ("Normalization", lambda: layers.LayerNormalization()),
            "layer_axes": ("Normalization", lambda: layers.LayerNormalization(axis=[2, 1])),
            "layer_no_center": ("Normalization", lambda: layers.LayerNormalization(center=False)),
            "layer_no_scale": ("Normalization", lambda: layers.LayerNormalization(scale=False)),
            "layer_rms": ("Normalization", lambda: layers.LayerNormalization(rms_scaling=True)),
            "layer_rms_axes": (
                "Normalization",
                lambda: layers.LayerNormalization(axis=[1, 2], rms_scaling=True),
            ),
            "layer_frozen_gamma": (
                "Normalization",
                lambda: layers.LayerNormalization(),
                "gamma",
            ),
            "layer_frozen_beta": (
                "Normalization",
                lambda: layers.LayerNormalization(),
                "beta",
            ),
            "group": ("Normalization", lambda: layers.GroupNormalization(2)),
            "group_no_scale": ("Normalization", lambda: layers.GroupNormalization(1, scale=False)),
            "group_no_center": (
                "Normalization",
                lambda: layers.GroupNormalization(-1, center=False),
            ),
            "rms": ("RMSNormalization", lambda: layers.RMSNormalization()),
            "rms_axes": ("RMSNormalization", lambda: layers.RMSNormalization(axis=[1, 2])),
            "prelu": ("PReLU", lambda: layers.PReLU()),
            "prelu_shared": ("PReLU", lambda: layers.PReLU(shared_axes=[1])),
            "prelu_one": ("PReLU", lambda: layers.PReLU(shared_axes=[1, 2])),
        },
    ),
    "einsum_dense_3d": Table(
        (3, 4),
        {
            "dense": (
                "EinsumDense",
                lambda: layers.EinsumDense("abc,cd->abd", (3, 5), "tanh", bias_axes="d"),
            ),
            "no_bias": ("EinsumDense", lambda: layers.EinsumDense("abc,cd->abd", (3, 5))),
            "dots": ("EinsumDense", lambda: layers.EinsumDense("...c,cd->...d", 5, bias_axes="d")),
            "dots_behind": (
                "EinsumDense",
                lambda: layers.EinsumDense("ab...,bc->ac...", 5, bias_axes="c"),
            ),
            "kernel_turned": (
                "EinsumDense",
                lambda: layers.EinsumDense("abc,dc->abd", (3, 5), bias_axes="bd"),
            ),
            "two_outputs": (
                "EinsumDense",
                lambda: layers.EinsumDense("abc,cde->abde", (3, 2, 3), bias_axes="e"),
            ),
            "two_outputs_around": (
                "EinsumDense",
                lambda: layers.EinsumDense("abc,dce->adbe", (2, 3, 3), bias_axes="d"),
            ),
            "two_inputs": ("EinsumDense", lambda: layers.EinsumDense("abc,bcd->ad", 5)),
            "one_kernel_a_position": (
                "EinsumDense",
                lambda: layers.EinsumDense("abc,bcd->abd", (3, 5), bias_axes="bd"),
            ),
            "groups_behind": (
                "EinsumDense",
                lambda: layers.EinsumDense("abc,bdc->adc", (5, 4), bias_axes="c"),
            ),
            "scale": ("EinsumDense", lambda: layers.EinsumDense("abc,c->abc", (3, 4))),
            "summed_input": ("EinsumDense", lambda: layers.EinsumDense("abc,bd->ad", 5)),
            "frozen_kernel": (
                "EinsumDense",
                lambda: layers.EinsumDense("abc,cd->abd", (3, 5), bias_axes="d"),
                "kernel",
            ),
            "low_rank": (
                "EinsumDense",
                lambda: layers.EinsumDense("abc,cd->abd", (3, 5), bias_axes="d", lora_rank=2),
            ),
            "low_rank_heads": (
                "EinsumDense",
                lambda: layers.EinsumDense("abc,cde->abde", (3, 2, 5), bias_axes="de", lora_rank=2),
            ),
            "low_rank_heads_joined": (
                "EinsumDense",
                lambda: layers.EinsumDense("abc,bcd->ad", 5, lora_rank=2, lora_alpha=1),
            ),
            "low_rank_groups": (
                "EinsumDense",
                lambda: layers.EinsumDense("abc,bcd->abd", (3, 5), lora_rank=2),
            ),
            "low_rank_group_last": (
                "general",
                lambda: layers.EinsumDense("abc,bdc->adc", (5, 4), lora_rank=2),
            ),
        },
    ),
    "embeddings": Table(
        (5,),
        {
            "embedding": ("Embedding", lambda: layers.Embedding(6, 3)),
            "low_rank": ("Embedding", lambda: layers.Embedding(6, 3, lora_rank=2)),
        },
        dtype="int32",
    ),
}
