"""The loss of each example, computed as if it were alone in its batch.

Evaluating the compiled loss on single-example batches makes every reduction, mask rescaling and
custom loss exact, and no example's loss can depend on another example.
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip.backend import keras_private

Tensor = Any


def per_example_losses(
    model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any
) -> tuple[Tensor, list[Tensor]]:
    """The loss of each example, without weight regularization.

    Args:
        model: a compiled model whose loss is built.
        x: inputs of shape `(batch_size, ...)`, or None.
        y: targets of shape `(batch_size, ...)`, or None.
        y_pred: predictions of shape `(batch_size, ...)`.
        sample_weight: None or weights of shape `(batch_size, ...)`.

    Returns:
        The losses, of shape `(batch_size,)`, and, for each variable of the metrics that track
        the losses of single outputs, the amount that each example adds to it.
    """
    trackers = [
        variable
        for metric in keras_private.output_loss_trackers(model)
        for variable in metric.variables
    ]
    outside = [(variable, variable.value) for variable in _variables_of(model)]
    zeros = [(variable, ops.zeros(variable.shape, variable.dtype)) for variable in trackers]
    custom = type(model).compute_loss is not keras.Model.compute_loss
    named = {"x": x if custom else None, "y": y, "sample_weight": sample_weight}
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
        alone: list[Tensor | None] = [None] * len(flat)
        for number, value in zip(numbers, values, strict=True):
            alone[number] = ops.expand_dims(value, 0)
        example = keras.tree.pack_sequence_as(structure, alone)
        attributes = zip(example["masks"], example["logits"], strict=True)
        for value, (mask, logits) in zip(
            keras.tree.flatten(example["y_pred"]), attributes, strict=True
        ):
            keras_private.attach_mask(value, mask)
            keras_private.attach_logits(value, logits)
        with keras.StatelessScope([*outside, *zeros]) as scope:
            loss = compute_loss(model, y_pred=example["y_pred"], **example["named"])
        increments = [scope.get_current_value(variable) for variable in trackers]
        return [ops.cast(loss, "float32"), *increments]

    losses, *increments = ops.vectorized_map(one_example, [flat[number] for number in numbers])
    return losses, increments


def compute_loss(model: keras.Model, **arguments: Any) -> Tensor:
    """The scalar loss of `model.compute_loss`, without weight regularization.

    Args:
        model: a compiled model.
        **arguments: `y_pred` and those of `x`, `y` and `sample_weight` that there are.
    """
    arguments = {"x": None, "y": None, "sample_weight": None, **arguments}
    with keras_private.without_regularizers(model):
        return ops.sum(model.compute_loss(**arguments, training=True))


def add_to_output_loss_trackers(
    model: keras.Model, increments: list[Tensor], counted: Tensor
) -> None:
    """Adds to the metrics that track the losses of single outputs.

    Args:
        model: a compiled model.
        increments: what `per_example_losses` returned.
        counted: bool tensor of shape `(batch_size,)`, the examples to count.
    """
    trackers = [
        variable
        for metric in keras_private.output_loss_trackers(model)
        for variable in metric.variables
    ]
    for variable, increment in zip(trackers, increments, strict=True):
        present = ops.where(counted, increment, ops.zeros_like(increment))
        variable.assign(variable + ops.cast(ops.sum(present), variable.dtype))


def regularization_loss(model: keras.Model) -> Tensor | None:
    """The summed weight regularization of `model`, None where there is none."""
    terms = [
        ops.cast(variable.regularizer(variable), "float32")
        for variable in model.trainable_variables
        if variable.regularizer is not None
    ]
    return sum(terms[1:], terms[0]) if terms else None


def _variables_of(model: keras.Model) -> list[keras.Variable]:
    return [*model.variables, *model.metrics_variables]
