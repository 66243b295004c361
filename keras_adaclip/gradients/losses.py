"""The loss of each example, computed as if it were alone in its batch.

The compiled loss is evaluated on batches of one example. This makes every reduction, mask rescaling
and custom loss exact, and no example's loss can depend on another example.
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.batch import Batch, mapped

Tensor = Any


def per_example_losses(
    model: keras.Model, batch: Batch, y_pred: Any
) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of each example, without weight regularization.

    Args:
        model: A compiled model whose loss is built.
        batch: The examples.
        y_pred: Predictions of shape `(batch_size, ...)`.

    Returns:
        The losses, of shape `(batch_size,)`, and for each variable of the metrics that track the
        losses of single outputs, the amount that each example adds to it.
    """
    trackers = tracker_variables(model)
    variables = [*model.variables, *model.metrics_variables]
    outside = [(variable, variable.value) for variable in variables]
    zeros = [(variable, ops.zeros(variable.shape, variable.dtype)) for variable in trackers]
    custom = keras_private.is_own(model, "compute_loss")
    named = {"x": batch.x if custom else None, "y": batch.y, "sample_weight": batch.sample_weight}
    named = {name: value for name, value in named.items() if value is not None}
    outputs = keras.tree.flatten(y_pred)
    structure = {
        "named": named,
        "y_pred": y_pred,
        "masks": [keras_private.mask_of(value) for value in outputs],
        "logits": [keras_private.logits_of(value) for value in outputs],
    }
    # Targets and weights of single outputs may be None.
    flat = keras.tree.flatten(structure)
    numbers = [number for number, value in enumerate(flat) if value is not None]

    def one_example(values: list[Tensor]) -> list[Tensor]:
        """Return the loss and the increments of one example."""
        alone: list[Tensor | None] = [None] * len(flat)
        for number, value in zip(numbers, values, strict=True):
            alone[number] = ops.expand_dims(value, 0)
        example = keras.tree.pack_sequence_as(structure, alone)
        parts = keras.tree.flatten(example["y_pred"])
        for value, mask, logits in zip(parts, example["masks"], example["logits"], strict=True):
            keras_private.attach_mask(value, mask)
            keras_private.attach_logits(value, logits)
        with keras_private.NestedScope([*outside, *zeros]) as scope:
            loss = compute_loss(model, y_pred=example["y_pred"], **example["named"])
        return [loss, *(scope.get_current_value(variable) for variable in trackers)]

    losses, *increments = backend.map_examples(one_example, [flat[number] for number in numbers])
    return losses, increments


def compute_loss(
    model: keras.Model, y_pred: Any, x: Any = None, y: Any = None, sample_weight: Any = None
) -> Tensor:
    """Return the scalar loss of `model.compute_loss` for one example, without regularization.

    Predictions that are not finite give the loss NaN. The model's loss function never sees them,
    since some raise an error instead (binary cross-entropy on PyTorch).

    Args:
        model: A compiled model.
        y_pred: Predictions of shape `(1, ...)`.
        x: Inputs of shape `(1, ...)`, or None.
        y: Targets of shape `(1, ...)`, or None.
        sample_weight: None or weights of shape `(1, ...)`.
    """
    finite = ops.convert_to_tensor(True)
    for value in keras.tree.flatten(y_pred):
        finite = ops.logical_and(finite, ops.all(ops.isfinite(value)))

    def cleaned(value: Tensor) -> Tensor:
        """Replace predictions and logits by zeros if any prediction is not finite."""
        clean = ops.where(finite, value, ops.zeros_like(value))
        keras_private.attach_mask(clean, keras_private.mask_of(value))
        logits = keras_private.logits_of(value)
        if logits is not None:
            logits = ops.where(finite, logits, ops.zeros_like(logits))
        return keras_private.attach_logits(clean, logits)

    # A copy, since on PyTorch Keras multiplies a mask into the weights in place.
    arguments = {"x": x, "y": y, "sample_weight": mapped(ops.copy, sample_weight)}
    y_pred = keras.tree.map_structure(cleaned, y_pred)
    with keras_private.without_regularizers(model), keras_private.without_scaling_for_replicas():
        loss = ops.sum(model.compute_loss(y_pred=y_pred, **arguments, training=True))
    return ops.where(finite, ops.cast(loss, "float32"), float("nan"))


def update_loss_trackers(model: keras.Model, increments: list[Tensor], counted: Tensor) -> None:
    """Add to the metrics that track the losses of single outputs.

    Args:
        model: A compiled model.
        increments: The increments that `per_example_losses` returned.
        counted: Bool tensor of shape `(batch_size,)`, the examples to count.
    """
    for variable, increment in zip(tracker_variables(model), increments, strict=True):
        present = ops.where(counted, increment, ops.zeros_like(increment))
        variable.assign(variable + ops.cast(ops.sum(present), variable.dtype))


def regularization_loss(model: keras.Model) -> Tensor | None:
    """Return the summed weight regularization, None if there is none.

    Args:
        model: A built model.
    """
    terms = [
        ops.cast(variable.regularizer(variable), "float32")
        for variable in model.trainable_variables
        if variable.regularizer is not None
    ]
    return sum(terms[1:], terms[0]) if terms else None


def tracker_variables(model: keras.Model) -> list[keras.Variable]:
    """Return the variables of the metrics that track the losses of single outputs."""
    trackers = keras_private.output_loss_trackers(model)
    return [variable for metric in trackers for variable in metric.variables]
