"""The forward pass, which leaves nothing of the data in any state, and the loss of each example.

The compiled loss is evaluated on batches of one example. This makes every reduction, mask rescaling
and custom loss exact, and no example's loss can depend on another example.
"""

import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_losses, keras_private
from keras_adaclip.gradients.batch import Batch, mapped
from keras_adaclip.gradients.random_numbers import Draws, drawing_for_each_example
from keras_adaclip.sampling import as_arrays, common_length

Tensor = Any

_EVALUATED_ROWS = 256


@dataclass(frozen=True)
class Forward:
    """Predictions, losses of shape `(batch_size,)`, and increments of the loss trackers."""

    y_pred: Any
    losses: Tensor
    loss_increments: list[Tensor]

    def of_units(self, num_copies: int) -> "Forward":
        """Return the mean loss over each unit's copies, and predictions for its first copy."""
        if num_copies == 1:
            return self

        def mean(values: Tensor) -> Tensor:
            """Average over copies."""
            return ops.mean(ops.reshape(values, (-1, num_copies, *values.shape[1:])), axis=1)

        y_pred = sliced(self.y_pred, slice(None, None, num_copies))
        return Forward(y_pred, mean(self.losses), [mean(each) for each in self.loss_increments])


def sliced(part: Any, rows: slice) -> Any:
    """Return some rows of every tensor in a part of a batch, with their masks and logits.

    Args:
        part: Inputs, targets, weights or predictions.
        rows: The rows.
    """

    def of_value(value: Tensor) -> Tensor:
        """Return the rows of one tensor."""
        return keras_losses.marked_like(value, value[rows], lambda mark: mark[rows])

    return mapped(of_value, part)


def stateless(
    model: keras.Model, draws: Draws | None = None
) -> AbstractContextManager[keras.StatelessScope]:
    """Return a scope with the model's variables as they are, which discards their changes.

    Metrics, which hold raw sums over earlier rows, read as zeros.

    Args:
        model: A built model.
        draws: The random numbers of layers; None leaves them to their seed generators.
    """
    values = [(each, ops.zeros(each.shape, each.dtype)) for each in model.metrics_variables]
    values += [(variable, variable.value) for variable in model.variables]
    return keras.StatelessScope(values) if draws is None else draws.made(values)


def forward_alone(
    model: keras.Model, batch: Batch, training: bool, draws: Draws | None = None
) -> Forward:
    """Return predictions and losses of the batch, and discard all changes of state.

    Args:
        model: A built model with a compiled loss.
        batch: The examples.
        training: The mode of the forward pass.
        draws: The random numbers of layers; None leaves them to their seed generators.
    """
    with stateless(model, draws):
        y_pred = call_model(model, batch.x, training)
        losses, increments = per_example_losses(model, batch, y_pred)
    return Forward(y_pred, losses, increments).of_units(batch.num_copies)


def call_model(model: keras.Model, x: Any, training: bool) -> Any:
    """Call the model, with `training` if its `call` accepts it.

    Args:
        model: The model.
        x: Its inputs, each of shape `(batch_size, ...)`.
        training: Whether to call it as in training.
    """
    # The class's `call`: the instance's may be tapped, and accepts anything.
    takes_training = "training" in inspect.signature(type(model).call).parameters
    drawing = drawing_for_each_example(model) if training else nullcontext()
    with keras_private.without_remat(), drawing:
        return model(x, training=training) if takes_training else model(x)


def per_example_losses(
    model: keras.Model, batch: Batch, y_pred: Any
) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of each example, without weight regularization.

    Args:
        model: A compiled model whose loss is built.
        batch: The examples.
        y_pred: Predictions of shape `(batch_size, ...)`.

    Returns:
        The losses, of shape `(batch_size,)`, and for each of `tracker_variables` the amount that
        each example adds to it.
    """
    trackers = tracker_variables(model)
    held = [(variable, variable.value) for variable in [*model.variables, *model.metrics_variables]]
    held += [(variable, ops.zeros(variable.shape, variable.dtype)) for variable in trackers]
    x = batch.x if keras_private.is_own(model, "compute_loss") else None
    marks = [keras_losses.marks_of(value) for value in keras.tree.flatten(y_pred)]
    structure = [y_pred, x, batch.y, batch.sample_weight, marks]
    # Some targets, weights and marks may be None.
    flat = keras.tree.flatten(structure)
    numbers = [number for number, value in enumerate(flat) if value is not None]

    def one_example(values: list[Tensor]) -> list[Tensor]:
        """Return the loss and the increments of one example."""
        alone: list[Tensor | None] = [None] * len(flat)
        for number, value in zip(numbers, values, strict=True):
            alone[number] = ops.expand_dims(value, 0)
        *arguments, marks = keras.tree.pack_sequence_as(structure, alone)
        for value, own in zip(keras.tree.flatten(arguments[0]), marks, strict=True):
            keras_losses.attach_marks(value, own)
        with keras_private.NestedScope(held) as scope:
            loss = compute_loss(model, *arguments)
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
        """Replace numbers by zeros if any prediction is not finite."""
        return ops.where(finite, value, ops.zeros_like(value))

    y_pred = keras.tree.map_structure(
        lambda value: keras_losses.marked_like(value, cleaned(value), cleaned), y_pred
    )
    # A copy, since on PyTorch Keras multiplies a mask into the weights in place.
    sample_weight = mapped(ops.copy, sample_weight)
    of_logits = keras_losses.cross_entropies_of_logits(model)
    unscaled = keras_losses.without_scaling_for_replicas()
    with keras_private.without_regularizers(model), of_logits, unscaled:
        loss = ops.sum(
            model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        )
    return ops.where(finite, ops.cast(loss, "float32"), float("nan"))


def update_loss_trackers(model: keras.Model, increments: list[Tensor], counted: Tensor) -> None:
    """Add to the metrics of `tracker_variables`.

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
    """Return the variables of the metrics whose increments by single losses are added up.

    They track the losses of single outputs, or an own `compute_loss` of a private model updates
    them and they are sums.
    """
    trackers = keras_losses.output_loss_trackers(model)
    is_private = getattr(model, "privacy_unit", "") == "example"
    if is_private and keras_private.is_own(model, "compute_loss"):
        trackers = trackers + keras_losses.own_sums(model)
    return [variable for metric in trackers for variable in metric.variables]


def single_gradient(
    model: keras.Model, alone: Batch, training: bool = True, draws: Draws | None = None
) -> tuple[list[Tensor], Tensor]:
    """Return the gradient of one example's loss, float32 per trainable variable, and the loss.

    Args:
        model: A built model with a compiled loss.
        alone: A batch of one. The mean loss is used if it has several copies.
        training: The mode of the forward pass.
        draws: The random numbers of layers; None leaves them to their seed generators.
    """

    def loss() -> tuple[Tensor, Any]:
        """Return the mean loss over the copies, twice."""
        y_pred = call_model(model, alone.x, training)
        parts = (y_pred, alone.x, alone.y, alone.sample_weight)
        losses = [
            compute_loss(model, *(sliced(part, slice(row, row + 1)) for part in parts))
            for row in range(alone.num_copies)
        ]
        value = ops.mean(ops.stack(losses))
        return value, value

    variables = [*model.variables, *model.metrics_variables]
    with stateless(model, draws):
        loss_value, gradients = backend.gradients_of(loss, model.trainable_variables, variables)
    return [ops.cast(gradient, "float32") for gradient in gradients], loss_value


def example_losses(model: keras.Model, x: Any, y: Any = None) -> np.ndarray:
    """Return the compiled loss of each example, in inference mode, without changing the model.

    Args:
        model: A compiled model. It is built if necessary.
        x: Arrays of shape `(num_examples, ...)`.
        y: Targets of the same length, or None.

    Returns:
        Losses of shape `(num_examples,)`, without weight regularization, NaN for predictions that
        are not finite.

    Raises:
        TypeError: If the data are not arrays.
        ValueError: If lengths differ.
    """
    data = as_arrays((x, y))
    given = {name: part for name, part in zip("xy", data, strict=True) if part is not None}
    num_examples = common_length(given)

    def rows(indices: np.ndarray) -> Any:
        """Return some rows of inputs and targets."""
        return mapped(lambda array: array[indices], data)

    few_x, few_y = rows(np.arange(min(3, num_examples)))
    keras_private.build_for_training(model, few_x, few_y, None)

    def losses(piece: Any) -> Tensor:
        """Return the losses of one batch."""
        batch = Batch(*mapped(ops.convert_to_tensor, piece))
        return forward_alone(model, batch, training=False).losses

    # All pieces have one size, so that they compile once: the last one repeats its last row.
    size = min(_EVALUATED_ROWS, num_examples)
    pieces = [
        rows(np.minimum(np.arange(start, start + size), num_examples - 1))
        for start in range(0, num_examples, size)
    ]
    found = backend.evaluate_each(losses, [*model.variables, *model.metrics_variables], pieces)
    return np.concatenate(found)[:num_examples].astype(np.float64)
