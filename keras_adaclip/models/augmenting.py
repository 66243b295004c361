"""Checks that an augmentation layer leaves each example's contribution its own."""

from typing import Any

import keras

from keras_adaclip._checks import check_integer
from keras_adaclip.gradients import Augmentation, Batch
from keras_adaclip.training import PrivacyIssue, layer_issues, probe, refuse


def checked_augmentation(layer: Any, multiplicity: Any, rows: Batch) -> Augmentation | None:
    """Return the augmentation that `fit` was asked for, or None.

    Args:
        layer: A Keras layer, or None.
        multiplicity: Number of copies of each example.
        rows: A few examples, to run the layer on.

    Raises:
        TypeError: If `layer` is not a Keras layer, or `multiplicity` is not an integer.
        ValueError: If the layer mixes examples, learns, or changes the inputs' shape, or there are
            several inputs.
    """
    multiplicity = check_integer("augmentation_multiplicity", multiplicity, minimum=1)
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
    inputs = keras.tree.flatten(rows.x)
    if len(inputs) != 1:
        raise ValueError(
            "`augmentation` works on models with one input tensor. Put the augmentation into the "
            "model instead, as layers on the inputs that need it."
        )
    tensor = keras.ops.convert_to_tensor(inputs[0])
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
    augmentation = Augmentation(layer, multiplicity)
    model = augmentation.as_model(rows)
    refuse(model, layer_issues(model))
    finding = probe(model, Batch(tensor))
    issues = list(finding.issues)
    if not finding.is_repeatable:
        issues.append(
            PrivacyIssue(
                layer.name,
                "It draws random numbers without a Keras seed generator, so that a compiled step "
                "would draw the same ones again and again.",
                "Draw from `keras.random` with a `keras.random.SeedGenerator` of the layer.",
            )
        )
    refuse(model, issues)
    return augmentation
