"""Converts a Keras model into one of our classes that shares its layers and weights."""

import math
from typing import Any

import keras

from keras_adaclip.backend import keras_private


def converted(
    model: keras.Model,
    sequential: type,
    functional: type,
    caller: str,
    replace_batch_normalization: bool,
) -> Any:
    """A model of another class that shares the layers and weights of `model`.

    Args:
        model: a Functional or Sequential model.
        sequential: the class that takes the place of a Sequential model.
        functional: the class that takes the place of a Functional model.
        caller: the name of the public function, for errors.
        replace_batch_normalization: whether group normalizations take the place of batch
            normalizations.

    Raises:
        TypeError: where `model` is a subclassed model, or no Keras model; where its class replaces
            methods of Keras.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            "Argument `model` must be a Keras model. "
            f"Received: model of type {type(model).__name__}"
        )
    is_sequential = isinstance(model, keras.Sequential)
    if not is_sequential and not (hasattr(model, "inputs") and hasattr(model, "outputs")):
        raise TypeError(
            f"`{caller}` takes Functional and Sequential models; {type(model).__name__!r} is a "
            f"subclassed model. Derive its class from `keras_adaclip.{functional.__name__}` in "
            f"place of `keras.Model`. Received: model={model.name!r} of type {type(model).__name__}"
        )
    cls = f"keras_adaclip.{(sequential if is_sequential else functional).__name__}"
    _refuse_own_methods(
        model,
        keras_private.own_methods(model),
        f"Derive the class from `{cls}` to keep them (`train_step` alone cannot be private), or "
        f"train the layers without them: `keras_adaclip.{functional.__name__}(model.input, "
        "model.output)`.",
    )
    if replace_batch_normalization:
        model = _without_batch_normalization(model, {})
    if is_sequential:
        layers = list(model.layers)
        if model.built:
            first = model.inputs[0]
            layers.insert(0, keras.Input(batch_shape=first.shape, dtype=first.dtype))
        return sequential(layers, name=model.name)
    return functional(model.input, model.output, name=model.name)


def _refuse_own_methods(model: keras.Model, methods: list[str], advice: str) -> None:
    """Raises where a copy of `model` would not do what the model does.

    Args:
        model: a Functional or Sequential model.
        methods: those that its class or the instance replaces.
        advice: what to do.

    Raises:
        TypeError: with the names of the methods.
    """
    if methods:
        raise TypeError(
            f"Model {model.name!r} of type {type(model).__name__} has methods of its own in the "
            f"place of Keras's, which would be dropped: {', '.join(map(repr, methods))}. {advice}"
        )


def _without_batch_normalization(model: keras.Model, replaced: dict[int, Any]) -> keras.Model:
    """The model with every batch normalization replaced, all other layers being the same objects.

    Args:
        model: a Functional or Sequential model.
        replaced: what has taken the place of which layer so far, by the layer's `id`.
    """
    of_layer = [name for name in keras_private.own_methods(model) if hasattr(keras.Layer, name)]
    _refuse_own_methods(
        model,
        of_layer,
        "Replace the batch normalization inside of it yourself, and leave "
        "`replace_batch_normalization` out.",
    )

    def replace(layer: keras.layers.Layer) -> keras.layers.Layer:
        if id(layer) not in replaced:
            if isinstance(layer, keras.layers.BatchNormalization):
                replaced[id(layer)] = _group_normalization(layer)
            elif _holds_batch_normalization(layer):
                replaced[id(layer)] = _without_batch_normalization(layer, replaced)
            else:
                replaced[id(layer)] = layer
        return replaced[id(layer)]

    if isinstance(model, keras.Sequential):
        return keras.models.clone_model(model, clone_function=replace)
    return keras.models.clone_model(model, clone_function=replace, call_function=_call)


def _call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
    """Calls a layer; batch normalization was called with a mask, group normalization has none."""
    if isinstance(layer, keras.layers.GroupNormalization):
        kwargs.pop("mask", None)
    return layer(*args, **kwargs)


def _group_normalization(layer: keras.layers.BatchNormalization) -> keras.layers.Layer:
    """A group normalization with the options of a batch normalization, and new weights."""
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


def _holds_batch_normalization(layer: keras.layers.Layer) -> bool:
    """Whether `layer` is a Functional or Sequential model with a batch normalization inside."""
    if not isinstance(layer, keras.Sequential) and not hasattr(layer, "operations"):
        return False
    return any(
        isinstance(inner, keras.layers.BatchNormalization) or _holds_batch_normalization(inner)
        for inner in layer.layers
    )
