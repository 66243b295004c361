"""Activations for private training.

    φ(x) = s σ(T x) - o

Source: Papernot et al. 2021, "Tempered sigmoid activations for deep learning with differential
privacy".
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip._checks import check_positive, check_real
from keras_adaclip._configurable import Configurable

__all__ = ["TemperedSigmoid"]

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_adaclip")
class TemperedSigmoid(Configurable):
    """A bounded activation, which keeps gradients short: fewer are clipped than with ReLU.

    It is `scale * sigmoid(inverse_temperature * x) - offset`; with the default values this is the
    hyperbolic tangent. Pass an instance as the `activation` of a layer; it is saved and loaded
    with the model.

    Args:
        scale: Positive float, the distance between the smallest and the largest value.
        inverse_temperature: Positive float, the steepness.
        offset: Float, minus the smallest value.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If `offset` is not finite, or another argument not positive and finite.

    Example:

    >>> layer = keras.layers.Dense(4, activation=TemperedSigmoid(scale=1.5, offset=0.5))
    >>> float(layer.activation(0.0))
    0.25

    Reference:
        Papernot et al. 2021, "Tempered sigmoid activations for deep learning with differential
        privacy", section 4.
    """

    def __init__(
        self, scale: float = 2.0, inverse_temperature: float = 2.0, offset: float = 1.0
    ) -> None:
        self.scale = check_positive("scale", scale)
        self.inverse_temperature = check_positive("inverse_temperature", inverse_temperature)
        self.offset = check_real("offset", offset)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the activation of each entry of `x`, in its shape and float type."""
        return self.scale * ops.sigmoid(self.inverse_temperature * x) - self.offset
