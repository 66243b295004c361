"""The loss of each example, computed as if it were alone in its batch.

Evaluating the compiled loss on single-example batches makes every reduction, mask rescaling and
custom loss exact, and no example's loss can depend on another example.
"""

import functools
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
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
    custom = keras_private.is_own(model, "compute_loss")
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
        return [loss, *increments]

    losses, *increments = backend.map_examples(one_example, [flat[number] for number in numbers])
    return losses, increments


def compute_loss(model: keras.Model, y_pred: Any, **arguments: Any) -> Tensor:
    """The scalar loss of `model.compute_loss` for one example, without weight regularization.

    Predictions that are not finite give the loss NaN; the model's loss function never sees them,
    since some stop the program instead (binary cross-entropy on PyTorch).

    Args:
        model: a compiled model.
        y_pred: predictions of shape `(1, ...)`.
        **arguments: those of `x`, `y` and `sample_weight` that there are.
    """
    arguments = {"x": None, "y": None, "sample_weight": None, **arguments}
    finite = functools.reduce(
        ops.logical_and,
        [ops.all(ops.isfinite(value)) for value in keras.tree.flatten(y_pred)],
    )

    def cleaned(value: Tensor) -> Tensor:
        clean = ops.where(finite, value, ops.zeros_like(value))
        keras_private.attach_mask(clean, keras_private.mask_of(value))
        logits = keras_private.logits_of(value)
        if logits is not None:
            logits = ops.where(finite, logits, ops.zeros_like(logits))
        return keras_private.attach_logits(clean, logits)

    y_pred = keras.tree.map_structure(cleaned, y_pred)
    # On PyTorch Keras multiplies a mask into the weights it is given, in place.
    arguments["sample_weight"] = keras.tree.map_structure(
        lambda weight: None if weight is None else ops.copy(weight), arguments["sample_weight"]
    )
    with keras_private.without_regularizers(model), keras_private.without_scaling_for_replicas():
        loss = ops.sum(model.compute_loss(y_pred=y_pred, **arguments, training=True))
    return ops.where(finite, ops.cast(loss, "float32"), float("nan"))


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
    """The summed weight regularization of `model`, None where there is none.

    Args:
        model: the model, built.
    """
    terms = [
        ops.cast(variable.regularizer(variable), "float32")
        for variable in model.trainable_variables
        if variable.regularizer is not None
    ]
    return sum(terms[1:], terms[0]) if terms else None


def _variables_of(model: keras.Model) -> list[keras.Variable]:
    return [*model.variables, *model.metrics_variables]
