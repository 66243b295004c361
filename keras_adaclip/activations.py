"""Activations for private training.

    φ(x) = s σ(T x) - o

Source: Papernot et al. 2021, "Tempered sigmoid activations for deep learning with differential
privacy".
"""

from typing import Any, Self

import keras
from keras import ops

from keras_adaclip._checks import check_positive, check_real

__all__ = ["TemperedSigmoid"]

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_adaclip")
class TemperedSigmoid:
    """A bounded activation, which keeps gradients short: fewer are clipped than with ReLU.

    It is `scale * sigmoid(inverse_temperature * x) - offset`; with the default values this is the
    hyperbolic tangent. Pass an instance as the `activation` of a layer; it is saved and loaded
    with the model.

    Args:
        scale: positive float, the distance between the smallest and the largest value.
        inverse_temperature: positive float, the steepness.
        offset: float, minus the smallest value.

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

    def get_config(self) -> dict[str, Any]:
        """Return every constructor argument under its own name."""
        return {
            "scale": self.scale,
            "inverse_temperature": self.inverse_temperature,
            "offset": self.offset,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the activation that `get_config` describes."""
        return cls(**config)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"
