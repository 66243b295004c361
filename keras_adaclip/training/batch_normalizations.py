"""What to say of a batch normalization that runs in training mode, and where it can be replaced."""

from typing import Any

import keras

from keras_adaclip.backend import keras_private


def batch_normalization_issue(
    model: keras.Model, layer: keras.layers.Layer
) -> tuple[str, str, str]:
    """What is wrong with a batch normalization that runs in training mode.

    Args:
        model: the model, which holds it somewhere.
        layer: the batch normalization.
    """
    return (
        layer.name,
        "BatchNormalization in training mode mixes the examples of a batch, so one example changes "
        "the gradients of the others.",
        batch_normalization_fix(model, layer, "privatize"),
    )


def batch_normalization_fix(model: keras.Model, layer: keras.layers.Layer, caller: str) -> str:
    """What to do about a batch normalization.

    Args:
        model: the model, which holds it somewhere.
        layer: the batch normalization.
        caller: the function that can replace it, where only models of layers are around it.
    """
    holder = _holder(model, layer)
    if holder is None:
        return (
            f"Use `{caller}(model, replace_batch_normalization=True)`, which puts "
            "GroupNormalization in its place, or freeze it with `layer.trainable = False`. (A "
            "functional model overrides a `training=False` that it was built with.)"
        )
    kind = type(holder).__name__
    return (
        f"It is created inside of {holder.name!r}, where `replace_batch_normalization=True` cannot "
        f"replace it. Edit the class {kind}: use GroupNormalization there, or call the layer with "
        "`training=False`. Or freeze it with `layer.trainable = False`."
    )


def _holder(holder: Any, layer: keras.layers.Layer) -> keras.layers.Layer | None:
    """The layer around `layer` that is no plain model of layers; None where there is none."""
    if not isinstance(holder, keras.Sequential) and not hasattr(holder, "operations"):
        return holder
    for inner in holder.layers:
        if inner is not layer and any(
            each is layer for each in keras_private.flatten_layers(inner)
        ):
            return _holder(inner, layer)
    return None
