"""Checks that an augmentation layer leaves each example's contribution its own."""

import numbers
from typing import Any

import keras

from keras_adaclip.gradients import Augmentation, Batch
from keras_adaclip.training import layer_issues, probe


def checked_augmentation(layer: Any, multiplicity: Any, rows: Batch) -> Augmentation | None:
    """What `fit(augmentation=..., augmentation_multiplicity=...)` asks for, None for neither.

    Args:
        layer: a Keras layer, or None.
        multiplicity: number of copies of each example.
        rows: a few examples, to run the layer on.

    Raises:
        TypeError: where `layer` is no Keras layer, or `multiplicity` no integer.
        ValueError: where the layer mixes examples, learns, or changes the inputs' shape, or there
            are several inputs.
    """
    if isinstance(multiplicity, bool) or not isinstance(multiplicity, numbers.Integral):
        raise TypeError(
            "Argument `augmentation_multiplicity` must be an integer. "
            f"Received: augmentation_multiplicity={multiplicity!r}"
        )
    multiplicity = int(multiplicity)
    if multiplicity < 1:
        raise ValueError(
            "Argument `augmentation_multiplicity` must be at least 1. "
            f"Received: augmentation_multiplicity={multiplicity}"
        )
    if layer is None:
        if multiplicity > 1:
            raise ValueError(
                "Argument `augmentation_multiplicity` needs an `augmentation`: copies of an "
                "example that do not differ have the gradient of one. "
                f"Received: augmentation_multiplicity={multiplicity}, augmentation=None"
            )
        return None
    if not isinstance(layer, keras.layers.Layer):
        raise TypeError(
            "Argument `augmentation` must be a Keras layer, such as `keras.layers.RandomFlip()` "
            f"or a `keras.Sequential` of such layers. Received: augmentation={layer!r}"
        )
    if len(keras.tree.flatten(rows.x)) != 1:
        raise ValueError(
            "`augmentation` works on models with one input tensor. Put the augmentation into the "
            "model instead, as layers on the inputs that need it."
        )
    _refuse_unsound(layer, rows)
    return Augmentation(layer, multiplicity)


def _refuse_unsound(layer: keras.layers.Layer, rows: Batch) -> None:
    (inputs,) = keras.tree.flatten(rows.x)
    tensor = keras.ops.convert_to_tensor(inputs)
    found = layer(tensor, training=False)
    if found.shape[1:] != tensor.shape[1:]:
        raise ValueError(
            f"The augmentation layer {layer.name!r} must keep the shape of its inputs. It makes "
            f"{tuple(found.shape[1:])} of {tuple(tensor.shape[1:])}."
        )
    if layer.trainable_variables:
        raise ValueError(
            f"The augmentation layer {layer.name!r} has trainable weights, which nothing would "
            "train. Put it into the model, or freeze it with `layer.trainable = False`."
        )
    model = Augmentation(layer).as_model(rows)
    issues = [str(issue) for issue in layer_issues(model)]
    if not issues:
        finding = probe(model, Batch(tensor))
        issues = [" ".join(parts) for parts in finding.issues]
        if not finding.is_repeatable:
            issues.append(
                f"{layer.name}: it draws random numbers without a Keras seed generator, so that "
                "a compiled step would draw the same ones again and again."
            )
    if issues:
        listed = "\n".join(f"- {issue}" for issue in issues)
        raise ValueError(
            f"The augmentation layer {layer.name!r} cannot be used in private training:\n{listed}"
        )
