"""What all convolutions have in common: kernels that meet windows, and a bias for each filter."""

import abc
import math
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.forms import Materialized, PerExampleGradient
from keras_adaclip.gradients.layers.patches import channels_last
from keras_adaclip.gradients.layers.rule import LayerRule, TappedCall

Tensor = Any


class ConvolutionalRule(LayerRule):
    """Bias: the cotangents summed over the positions. Kernels: as a subclass says."""

    taps_activation = True

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradients of kernels and bias."""
        layer = call.layer
        cotangents = ops.cast(channels_last(layer, call.cotangents[0]), "float32")
        # What is made of the windows is many times as large as the input: that of a layer whose
        # turn has not come would lie about.
        inputs = backend.after(channels_last(layer, call.inputs), cotangents)
        bias = layer.bias if layer.use_bias else None
        return [
            Materialized(ops.sum(by_position(cotangents), axis=1))
            if variable is bias
            else self.kernel_gradient(layer, inputs, cotangents, variable)
            for variable in variables
        ]

    @abc.abstractmethod
    def kernel_gradient(
        self,
        layer: keras.layers.Layer,
        inputs: Tensor,
        cotangents: Tensor,
        kernel: keras.Variable,
    ) -> PerExampleGradient:
        """The gradient of a kernel.

        Args:
            layer: the layer.
            inputs: tensor of shape `(batch_size, *spatial, channels)`.
            cotangents: float32 tensor of shape `(batch_size, *spatial, filters)`.
            kernel: one of the layer's variables.
        """


def by_position(value: Tensor) -> Tensor:
    """From `(batch_size, *spatial, channels)` to `(batch_size, positions, channels)`."""
    return ops.reshape(value, (-1, math.prod(ops.shape(value)[1:-1]), value.shape[-1]))
