"""`privatize`: the private twin of a Keras model."""

import math
from typing import Any

import keras

from keras_adaclip.models.private_model import PrivateModel
from keras_adaclip.models.private_sequential import PrivateSequential
from keras_adaclip.models.private_training import PrivateTraining


def privatize(model: keras.Model, replace_batch_normalization: bool = False) -> Any:
    """A private model that shares the layers and weights of a Functional or Sequential model.

    Args:
        model: the model; it is not changed, but its weights are those of the new model too.
        replace_batch_normalization: whether every `BatchNormalization` is replaced by a new
            `GroupNormalization`. The weights of the other layers stay shared.

    Returns:
        A `PrivateModel` or a `PrivateSequential`, to be compiled with a `DPOptimizer`.

    Raises:
        TypeError: where `model` is a subclassed model, or no Keras model.

    Example:

    >>> import keras
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> type(privatize(model)).__name__
    'PrivateSequential'
    """
    if isinstance(model, PrivateTraining):
        raise TypeError("The model is private already. Received: a private model")
    if not isinstance(model, keras.Model):
        raise TypeError(
            "Argument `model` must be a Keras model. "
            f"Received: model of type {type(model).__name__}"
        )
    is_sequential = isinstance(model, keras.Sequential)
    if not is_sequential and not (hasattr(model, "inputs") and hasattr(model, "outputs")):
        raise TypeError(
            f"`privatize` takes Functional and Sequential models; {type(model).__name__!r} is a "
            "subclassed model. Make its class private instead: derive it from "
            "`keras_adaclip.PrivateModel` in place of `keras.Model`. "
            f"Received: model={model.name!r} of type {type(model).__name__}"
        )
    if replace_batch_normalization:
        model = keras.models.clone_model(
            model, clone_function=_without_batch_normalization, recursive=_is_nested(model)
        )
    if is_sequential:
        layers = list(model.layers)
        if model.built:
            first = model.inputs[0]
            layers.insert(0, keras.Input(batch_shape=first.shape, dtype=first.dtype))
        return PrivateSequential(layers, name=model.name)
    return PrivateModel(model.input, model.output, name=model.name)


def _without_batch_normalization(layer: keras.layers.Layer) -> keras.layers.Layer:
    """The layer itself, or a group normalization in the place of a batch normalization."""
    if not isinstance(layer, keras.layers.BatchNormalization):
        return layer
    groups: int = 1
    if layer.built:
        groups = math.gcd(32, int(layer.moving_mean.shape[0]))
    return keras.layers.GroupNormalization(
        groups=groups,
        axis=layer.axis,
        epsilon=layer.epsilon,
        center=layer.center,
        scale=layer.scale,
        name=f"{layer.name}_as_group_normalization",
    )


def _is_nested(model: keras.Model) -> bool:
    return any(isinstance(layer, keras.Model) for layer in model.layers)
